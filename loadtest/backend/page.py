"""Metric pages as real engines publish them: their names, types, labels and buckets.

PURE. `vllm_page` follows vLLM 0.32 and `triton_page` Triton 2.51, cut to what describes requests,
cache and durations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from loadtest.backend.engine import Gauges
from loadtest.backend.profiles import LlmProfile
from loadtest.backend.totals import FixedTotals, Histogram, LlmTotals

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Row = tuple[Mapping[str, str], float]


def _labels(labels: Mapping[str, str]) -> str:
    """Labels in the order of their names, as prometheus_client writes them."""
    escaped = (
        (name, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n"))
        for name, value in sorted(labels.items())
    )
    inside = ",".join(f'{name}="{value}"' for name, value in escaped)
    return f"{{{inside}}}" if inside else ""


class _Vllm:
    """Collects the lines of a vLLM page; every series carries `common`."""

    def __init__(self, common: Mapping[str, str], created_s: float) -> None:
        self._common = common
        self._created_s = created_s
        self.lines: list[str] = []

    def gauge(self, name: str, meaning: str, rows: Iterable[Row]) -> None:
        self._family(name, "gauge", meaning, rows)

    def counter(self, stem: str, meaning: str, rows: Iterable[Row]) -> None:
        """A counter and the gauge that dates it, which prefix matching must not mistake for it."""
        rows = list(rows)
        self._family(f"{stem}_total", "counter", meaning, rows)
        dates = [(labels, self._created_s) for labels, _ in rows]
        self._family(f"{stem}_created", "gauge", meaning, dates)

    def histogram(self, name: str, meaning: str, histogram: Histogram) -> None:
        self.lines += (f"# HELP {name} {meaning}", f"# TYPE {name} histogram")
        for bound, count in histogram.cumulative():
            labels = _labels({**self._common, "le": bound})
            self.lines.append(f"{name}_bucket{labels} {float(count)!r}")
        labels = _labels(self._common)
        self.lines.append(f"{name}_count{labels} {float(histogram.count)!r}")
        self.lines.append(f"{name}_sum{labels} {histogram.sum!r}")
        self._family(f"{name}_created", "gauge", meaning, [({}, self._created_s)])

    def _family(self, name: str, kind: str, meaning: str, rows: Iterable[Row]) -> None:
        self.lines += (f"# HELP {name} {meaning}", f"# TYPE {name} {kind}")
        for labels, value in rows:
            self.lines.append(f"{name}{_labels({**self._common, **labels})} {float(value)!r}")


_VLLM_ENDS = ("stop", "length", "abort", "error", "repetition")


def vllm_page(
    model: str, profile: LlmProfile, totals: LlmTotals, created_s: float, gauges: Gauges
) -> str:
    """The page of one engine that serves `model`. `created_s` is Unix seconds of its start."""
    page = _Vllm({"engine": "0", "model_name": model}, created_s)
    page.gauge("vllm:num_requests_running", "In execution batches.", [({}, gauges.running)])
    page.gauge("vllm:num_requests_waiting", "Waiting to run.", [({}, gauges.waiting)])
    page.gauge(
        "vllm:num_requests_waiting_by_reason",
        "Waiting to run, by what for.",
        [({"reason": "capacity"}, gauges.waiting), ({"reason": "deferred"}, 0)],
    )
    page.gauge("vllm:kv_cache_usage_perc", "Cache in use, 1 is all.", [({}, gauges.kv_ratio)])
    page.counter("vllm:num_preemptions", "Evictions.", [({}, gauges.preemptions)])
    page.counter("vllm:prompt_tokens", "Prompt tokens computed.", [({}, gauges.prompt_tokens)])
    page.counter("vllm:generation_tokens", "Tokens put out.", [({}, gauges.generated_tokens)])
    counts = {reason.value: count for reason, count in totals.ends.items()}
    page.counter(
        "vllm:request_success",
        "Requests ended, by reason.",
        [({"finished_reason": reason}, counts.get(reason, 0)) for reason in _VLLM_ENDS],
    )
    for name, meaning, histogram in _vllm_histograms(totals):
        page.histogram(name, meaning, histogram)
    # two families lack one of the common labels
    cache = _Vllm({"engine": "0"}, created_s)
    cache.gauge("vllm:cache_config_info", "The cache.", [(_cache_labels(profile), 1)])
    rejections = _Vllm({"model_name": model}, created_s)
    rejections.counter(
        "vllm:admission_rejections",
        "Arrivals refused by a queue limit.",
        [
            ({"reason": "max_num_queued_reqs"}, totals.refused),
            ({"reason": "max_num_queued_tokens"}, 0),
        ],
    )
    return "\n".join([*page.lines, *cache.lines, *rejections.lines, ""])


def _cache_labels(profile: LlmProfile) -> dict[str, str]:
    return {
        "block_size": str(profile.block_tokens),
        "cache_dtype": "auto",
        "enable_prefix_caching": "False",
        "gpu_memory_utilization": "0.92",
        "kv_cache_max_concurrency": repr(profile.kv_tokens / profile.max_model_tokens),
        "kv_cache_size_tokens": str(profile.kv_tokens),
        "num_gpu_blocks": str(profile.kv_tokens // profile.block_tokens),
        "num_gpu_blocks_override": "None",
        "sliding_window": "None",
    }


def _vllm_histograms(totals: LlmTotals) -> tuple[tuple[str, str, Histogram], ...]:
    return (
        ("vllm:request_prompt_tokens", "Prompt tokens of a request.", totals.prompt),
        ("vllm:request_generation_tokens", "Output tokens of a request.", totals.generation),
        ("vllm:time_to_first_token_seconds", "Arrival to first token.", totals.ttft),
        ("vllm:request_time_per_output_token_seconds", "Mean gap of a request.", totals.tpot),
        ("vllm:e2e_request_latency_seconds", "Arrival to end.", totals.e2e),
        ("vllm:request_queue_time_seconds", "Arrival to batch.", totals.queue),
        ("vllm:request_inference_time_seconds", "Batch to end.", totals.inference),
        ("vllm:request_prefill_time_seconds", "Batch to first token.", totals.prefill),
        ("vllm:request_decode_time_seconds", "First token to end.", totals.decode),
    )


def triton_page(model: str, totals: FixedTotals, gauges: Gauges) -> str:
    """The page of a server of one fixed-shape model, version 1."""
    own = {"model": model, "version": "1"}
    lines: list[str] = []

    def family(
        name: str, kind: str, meaning: str, rows: Iterable[tuple[Mapping[str, str], int]]
    ) -> None:
        lines.extend((f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"))
        lines.extend(f"{name}{_labels({**own, **labels})} {value}" for labels, value in rows)

    def counter(name: str, meaning: str, value: int) -> None:
        family(name, "counter", meaning, [({}, value)])

    counter("nv_inference_request_success", "Requests served.", totals.success)
    failures = {
        "OTHER": 0,
        "BACKEND": 0,
        "CANCELED": totals.cancelled_requests,
        "REJECTED": totals.refused,
    }
    family(
        "nv_inference_request_failure",
        "counter",
        "Requests that failed, by reason.",
        [({"reason": reason}, count) for reason, count in failures.items()],
    )
    counter("nv_inference_count", "Rows inferred.", totals.rows)
    counter("nv_inference_exec_count", "Batches run.", gauges.steps)
    counter("nv_inference_request_duration_us", "Microseconds, arrival to end.", totals.request_us)
    counter("nv_inference_queue_duration_us", "Microseconds in the queue.", totals.queue_us)
    counter("nv_inference_compute_input_duration_us", "Microseconds of input.", 0)
    counter("nv_inference_compute_infer_duration_us", "Microseconds of kernels.", totals.infer_us)
    counter("nv_inference_compute_output_duration_us", "Microseconds of output.", 0)
    family(
        "nv_inference_pending_request_count",
        "gauge",
        "Requests awaiting execution.",
        [({}, gauges.waiting)],
    )
    return "\n".join([*lines, ""])
