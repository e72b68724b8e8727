"""Servers of any model: they count requests and batches, and know no KV cache of their own."""

from __future__ import annotations

from types import MappingProxyType

from ext_authz.telemetry.pages.mappings.rules import (
    Combine,
    EngineMapping,
    Mean,
    Rule,
    Signal,
    Way,
    same_name,
)

TRITON_METRICS_PORT = 8002

# The durations are sums over successful requests, each of which is charged its whole batch.
# Refusals of a full queue are not among the failures, whatever their label says: no REJECTIONS.
_TRITON_MEANS = MappingProxyType(
    {
        Signal.EXECUTION: (
            Mean(
                "nv_inference_request_duration_us",
                "nv_inference_request_success",
                less="nv_inference_queue_duration_us",
                scale=1e-6,
            ),
        ),
        Signal.QUEUEING: (
            Mean("nv_inference_queue_duration_us", "nv_inference_request_success", scale=1e-6),
        ),
        Signal.BATCH: (Mean("nv_inference_count", "nv_inference_exec_count"),),
    }
)

# An ensemble is one more model, beside its steps.
TRITON = EngineMapping(
    engine="triton",
    model_label="model",
    ports=(TRITON_METRICS_PORT,),
    rules=MappingProxyType(
        {
            # A gauge in spite of its name.
            Signal.WAITING: same_name("nv_inference_pending_request_count"),
            Signal.REQUESTS: same_name("nv_inference_request_success"),
        }
    ),
    means=_TRITON_MEANS,
    running_by_little=True,
)


def _trtllm_backend(kind: str) -> Way:
    return Way("nv_trt_llm_request_metrics", where=MappingProxyType({"request_type": kind}))


def _trtllm_cache(kind: str, times: Way | None = None) -> Way:
    where = MappingProxyType({"kv_cache_block_type": kind})
    return Way("nv_trt_llm_kv_cache_block_metrics", where=where, times=times)


# A request usually passes an ensemble, whose every step counts it: only the step that runs the
# engine is looked at. Before the server told what waits, active stood for all.
TRITON_TRTLLM = EngineMapping(
    engine="triton-trtllm",
    model_label="model",
    ports=(TRITON_METRICS_PORT,),
    rules=MappingProxyType(
        {
            Signal.RUNNING: Rule((_trtllm_backend("scheduled"), _trtllm_backend("active"))),
            Signal.WAITING: Rule((_trtllm_backend("waiting"),), optional=True),
            Signal.SLOTS: Rule((_trtllm_backend("max"),)),
            Signal.KV_USAGE: Rule((_trtllm_cache("fraction"),), Combine.MAX, upper=1.0),
            Signal.KV_CAPACITY: Rule((_trtllm_cache("max", times=_trtllm_cache("tokens_per")),)),
            Signal.REQUESTS: same_name("nv_inference_request_success"),
        }
    ),
    means=_TRITON_MEANS,
    models_of="nv_trt_llm_request_metrics",
)

# One page per node, with all of its replicas. The sums of its latency histograms are made of the
# middles of their buckets (1.5 s for what took 1 s), so that no mean is read from them.
RAY_SERVE = EngineMapping(
    engine="ray",
    model_label="deployment",
    rules=MappingProxyType(
        {
            Signal.RUNNING: same_name("ray_serve_replica_processing_queries"),
            Signal.WAITING: same_name("ray_serve_deployment_queued_queries"),
            Signal.REQUESTS: Rule(
                (
                    Way("ray_serve_deployment_request_counter_total"),
                    Way("ray_serve_deployment_request_counter"),
                )
            ),
            # Appears with the first one.
            Signal.REJECTIONS: Rule(
                (
                    Way(
                        "ray_serve_num_http_error_requests_total",
                        where=MappingProxyType({"error_code": "503"}),
                    ),
                ),
                optional=True,
            ),
        }
    ),
)

# Knative's queue-proxy in front of a KServe model: one port for the autoscaler's gauges, one for
# what users see. Both gauges tell everything it holds, running or queued in it, and there is no
# third to tell how much of that runs: adding them would count each request twice.
KSERVE = EngineMapping(
    engine="kserve",
    model_label="configuration_name",
    ports=(9090, 9091),
    rules=MappingProxyType(
        {
            Signal.RUNNING: Rule(
                (Way("revision_queue_depth"), Way("queue_average_concurrent_requests"))
            ),
            Signal.REQUESTS: same_name("revision_app_request_count", optional=True),
            Signal.REJECTIONS: Rule(
                (Way("revision_request_count", where=MappingProxyType({"response_code": "503"})),),
                optional=True,
            ),
        }
    ),
    means=MappingProxyType(
        {
            # Milliseconds, in spite of no unit in the name.
            Signal.EXECUTION: (
                Mean(
                    "revision_app_request_latencies_sum",
                    "revision_app_request_latencies_count",
                    scale=1e-3,
                ),
            ),
            Signal.WHOLE: (
                Mean(
                    "revision_request_latencies_sum",
                    "revision_request_latencies_count",
                    scale=1e-3,
                ),
            ),
        }
    ),
)
