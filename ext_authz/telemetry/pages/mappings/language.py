"""Servers of language models: they tell requests in batches and the use of their KV cache."""

from __future__ import annotations

from types import MappingProxyType

from ext_authz.telemetry.pages.mappings.rules import (
    Combine,
    EngineMapping,
    Mean,
    Rule,
    Signal,
    Way,
    histogram,
    same_name,
)

VLLM = EngineMapping(
    engine="vllm",
    model_label="model_name",
    rules=MappingProxyType(
        {
            Signal.RUNNING: same_name("vllm:num_requests_running"),
            Signal.WAITING: same_name("vllm:num_requests_waiting"),
            # A fraction in spite of its name. The second name is that of releases up to 0.8.
            Signal.KV_USAGE: Rule(
                (Way("vllm:kv_cache_usage_perc"), Way("vllm:gpu_cache_usage_perc")),
                Combine.MAX,
                upper=1.0,
            ),
            # Blocks x size is wrong for hybrid models and for data parallelism, hence second.
            Signal.KV_CAPACITY: Rule(
                (
                    Way("vllm:cache_config_info", factors=("kv_cache_size_tokens",)),
                    Way("vllm:cache_config_info", factors=("num_gpu_blocks", "block_size")),
                )
            ),
            Signal.PROMPT_TOKENS: same_name("vllm:prompt_tokens_total"),
            Signal.GENERATION_TOKENS: same_name("vllm:generation_tokens_total"),
            Signal.REQUESTS: same_name("vllm:request_success_total"),
            # Only releases that can bound their queue have it.
            Signal.REJECTIONS: same_name("vllm:admission_rejections_total", optional=True),
        }
    ),
    means=MappingProxyType(
        {
            Signal.EXECUTION: (
                histogram("vllm:request_inference_time_seconds"),
                Mean(
                    "vllm:e2e_request_latency_seconds_sum",
                    "vllm:e2e_request_latency_seconds_count",
                    less="vllm:request_queue_time_seconds_sum",
                ),
            ),
            Signal.QUEUEING: (histogram("vllm:request_queue_time_seconds"),),
            Signal.FIRST_TOKEN: (histogram("vllm:time_to_first_token_seconds"),),
        }
    ),
    awake=Way("vllm:engine_sleep_state", where=MappingProxyType({"sleep_state": "awake"})),
)

# Every scheduler of a tensor- or pipeline-parallel group may show the group's numbers.
_RANKS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank"})
_EVERY_PRIORITY = MappingProxyType({"priority": ""})


def _sglang(
    *names: str, combine: Combine = Combine.SUM, upper: float | None = None, optional: bool = False
) -> Rule:
    """A gauge under both prefixes there have been, all priorities together."""
    ways = tuple(
        Way(f"sglang{mark}{name}", where=_EVERY_PRIORITY) for name in names for mark in ":_"
    )
    return Rule(ways, combine, upper, copies=_RANKS, optional=optional)


SGLANG = EngineMapping(
    engine="sglang",
    model_label="model_name",
    rules=MappingProxyType(
        {
            Signal.RUNNING: _sglang("num_running_reqs"),
            Signal.WAITING: _sglang("num_queue_reqs"),
            Signal.KV_USAGE: _sglang("token_usage", combine=Combine.MAX, upper=1.0),
            Signal.KV_CAPACITY: Rule(
                (
                    *_sglang("max_total_num_tokens").ways,
                    *(
                        Way(
                            f"sglang{mark}num_pages",
                            where=_EVERY_PRIORITY,
                            times=Way(f"sglang{mark}page_size", where=_EVERY_PRIORITY),
                        )
                        for mark in ":_"
                    ),
                ),
                copies=_RANKS,
                optional=True,
            ),
            Signal.PROMPT_TOKENS: _sglang("prompt_tokens_total"),
            Signal.GENERATION_TOKENS: _sglang("generation_tokens_total"),
            Signal.REQUESTS: _sglang("num_requests_total"),
        }
    ),
    # Two histograms with different labels: what a request took less what it queued is a mean less
    # a mean.
    means=MappingProxyType(
        {
            Signal.WHOLE: tuple(
                histogram(f"sglang{mark}e2e_request_latency_seconds") for mark in ":_"
            ),
            Signal.QUEUEING: tuple(histogram(f"sglang{mark}queue_time_seconds") for mark in ":_"),
            Signal.FIRST_TOKEN: tuple(
                histogram(f"sglang{mark}time_to_first_token_seconds") for mark in ":_"
            ),
        }
    ),
)

# Its page is put together from several processes, a dead one among them perhaps.
_PROCESSES = frozenset({"pid"})

TRTLLM = EngineMapping(
    engine="trtllm",
    model_label="model_name",
    path="/prometheus/metrics",
    rules=MappingProxyType(
        {
            Signal.RUNNING: Rule((Way("trtllm_num_requests_running"),), copies=_PROCESSES),
            Signal.WAITING: Rule((Way("trtllm_num_requests_waiting"),), copies=_PROCESSES),
            Signal.SLOTS: Rule(
                (Way("trtllm_max_num_active_requests"), Way("trtllm_max_batch_size_runtime")),
                copies=_PROCESSES,
                optional=True,
            ),
            Signal.KV_USAGE: same_name("trtllm_kv_cache_utilization", Combine.MAX, 1.0),
            Signal.KV_CAPACITY: Rule(
                (
                    Way(
                        "trtllm_kv_cache_max_blocks",
                        times=Way("trtllm_kv_cache_tokens_per_block"),
                    ),
                ),
                copies=_PROCESSES,
            ),
            Signal.PROMPT_TOKENS: same_name("trtllm_prompt_tokens_total", optional=True),
            Signal.GENERATION_TOKENS: same_name("trtllm_generation_tokens_total", optional=True),
            Signal.REQUESTS: same_name("trtllm_request_success_total", optional=True),
        }
    ),
    means=MappingProxyType(
        {
            Signal.EXECUTION: (
                histogram("trtllm_request_inference_time_seconds"),
                Mean(
                    "trtllm_e2e_request_latency_seconds_sum",
                    "trtllm_e2e_request_latency_seconds_count",
                    less="trtllm_request_queue_time_seconds_sum",
                ),
            ),
            Signal.QUEUEING: (histogram("trtllm_request_queue_time_seconds"),),
        }
    ),
)

TGI = EngineMapping(
    engine="tgi",
    model_label="model_name",  # no label names it: a server has one model
    rules=MappingProxyType(
        {
            Signal.RUNNING: same_name("tgi_batch_current_size"),
            Signal.WAITING: same_name("tgi_queue_size"),
            Signal.PROMPT_TOKENS: same_name("tgi_request_input_length_sum"),
            Signal.GENERATION_TOKENS: same_name("tgi_request_generated_tokens_sum"),
            Signal.REQUESTS: same_name("tgi_request_success"),
            # Appears with the first one.
            Signal.REJECTIONS: Rule(
                (Way("tgi_request_failure", where=MappingProxyType({"err": "overloaded"})),),
                optional=True,
            ),
        }
    ),
    means=MappingProxyType(
        {
            Signal.EXECUTION: (histogram("tgi_request_inference_duration"),),
            Signal.QUEUEING: (histogram("tgi_request_queue_duration"),),
        }
    ),
)

# No series has a label, and none counts requests: how long one takes cannot be read.
LLAMACPP = EngineMapping(
    engine="llamacpp",
    model_label="model_name",
    rules=MappingProxyType(
        {
            Signal.RUNNING: same_name("llamacpp:requests_processing"),
            Signal.WAITING: same_name("llamacpp:requests_deferred"),
            # Only older builds have it.
            Signal.KV_USAGE: same_name(
                "llamacpp:kv_cache_usage_ratio", Combine.MAX, 1.0, optional=True
            ),
            Signal.PROMPT_TOKENS: same_name("llamacpp:prompt_tokens_total"),
            Signal.GENERATION_TOKENS: same_name("llamacpp:tokens_predicted_total"),
        }
    ),
)

LMDEPLOY = EngineMapping(
    engine="lmdeploy",
    model_label="model_name",
    rules=MappingProxyType(
        {
            Signal.RUNNING: same_name("lmdeploy:num_requests_running"),
            Signal.WAITING: same_name("lmdeploy:num_requests_waiting"),
            Signal.KV_USAGE: same_name("lmdeploy:gpu_cache_usage_perc", Combine.MAX, 1.0),
            Signal.PROMPT_TOKENS: same_name("lmdeploy:prompt_tokens_total"),
            Signal.GENERATION_TOKENS: same_name("lmdeploy:generation_tokens_total"),
            Signal.REQUESTS: same_name("lmdeploy:request_success_total"),
        }
    ),
    means=MappingProxyType(
        {
            Signal.EXECUTION: (histogram("lmdeploy:request_inference_time_seconds"),),
            Signal.QUEUEING: (histogram("lmdeploy:request_queue_time_seconds"),),
        }
    ),
)

_IN_FRONTEND = Way("dynamo_frontend_inflight_requests")
_IN_FRONTEND_QUEUE = Way("dynamo_frontend_queued_requests")

DYNAMO = EngineMapping(
    engine="dynamo",
    model_label="model",
    rules=MappingProxyType(
        {
            # A request in the queue counts as in flight, too.
            Signal.RUNNING: Rule(
                (Way(_IN_FRONTEND.name, less=_IN_FRONTEND_QUEUE),),
            ),
            Signal.WAITING: same_name(_IN_FRONTEND_QUEUE.name),
            # The share of each worker that the frontend knows.
            Signal.SLOTS: same_name("dynamo_frontend_model_max_num_seqs", optional=True),
            Signal.KV_CAPACITY: Rule(
                (
                    Way(
                        "dynamo_frontend_model_total_kv_blocks",
                        times=Way("dynamo_frontend_model_kv_cache_block_size"),
                    ),
                ),
                optional=True,
            ),
            Signal.PROMPT_TOKENS: same_name(
                "dynamo_frontend_input_sequence_tokens_sum", optional=True
            ),
            Signal.GENERATION_TOKENS: same_name(
                "dynamo_frontend_output_sequence_tokens_sum", optional=True
            ),
            Signal.REQUESTS: same_name("dynamo_frontend_requests_total", optional=True),
            Signal.REJECTIONS: same_name("dynamo_frontend_model_rejection_total", optional=True),
        }
    ),
)
