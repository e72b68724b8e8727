"""The filters of Envoy that a user could pick instead, as configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadtest.edge import Config

_TYPES = "type.googleapis.com/envoy.extensions.filters.http"
# A bucket holds this many seconds of its rate, and never less than this many requests: less would
# refuse what a Poisson process at the allowed rate sends.
BURST_S, BURST_REQUESTS = 0.1, 4


@dataclass(frozen=True, slots=True)
class Gradient:
    """Settings of `adaptive_concurrency`; None for `interval_s` stands for a fixed minimum,
    measured beforehand on an idle server, instead of one that is measured anew each time by letting
    `min_concurrency` requests in at once. `buffer_ratio` is how much longer than the minimum is
    still no overload. The limit is set anew after `updates` times the latency on an idle server:
    in less, short answers are all that can have ended, and the limit would climb without end."""

    percentile: float = 50.0
    interval_s: float | None = None
    request_count: int = 50
    min_concurrency: int = 3
    buffer_ratio: float = 0.25
    updates: float = 3.0
    most: int = 1000


@dataclass(frozen=True, slots=True)
class Rejecting:
    """Settings of `admission_control`."""

    window_s: float = 30.0
    threshold_ratio: float = 0.95
    aggression: float = 1.0
    max_rejected_ratio: float = 0.8


GRADIENT = Gradient()
REJECTING = Rejecting()


def gradient(settings: Gradient, idle_s: float) -> Config:
    """`adaptive_concurrency`; it answers 429 instead of its default 503, as the product does."""
    minimum: Config = {
        "jitter": {"value": 10.0},
        "request_count": settings.request_count,
        "min_concurrency": settings.min_concurrency,
        "buffer": {"value": 100.0 * settings.buffer_ratio},
    }
    if settings.interval_s is None:
        minimum["fixed_value"] = f"{idle_s:.3f}s"
    else:
        minimum["interval"] = f"{settings.interval_s:g}s"
    return _filter(
        "adaptive_concurrency",
        "AdaptiveConcurrency",
        {
            "gradient_controller_config": {
                "sample_aggregate_percentile": {"value": settings.percentile},
                "concurrency_limit_params": {
                    "max_concurrency_limit": settings.most,
                    "concurrency_update_interval": f"{max(0.1, settings.updates * idle_s):.1f}s",
                },
                "min_rtt_calc_params": minimum,
            },
            "enabled": {"default_value": True, "runtime_key": "adaptive_concurrency.enabled"},
            "concurrency_limit_exceeded_status": {"code": "TooManyRequests"},
        },
    )


def rejecting(settings: Rejecting) -> Config:
    """`admission_control`; every status below 500 is a success."""
    return _filter(
        "admission_control",
        "AdmissionControl",
        {
            "enabled": {"default_value": True, "runtime_key": "admission_control.enabled"},
            "sampling_window": f"{settings.window_s:g}s",
            "success_criteria": {
                "http_criteria": {"http_success_status": [{"start": 100, "end": 500}]},
                "grpc_criteria": {"grpc_success_status": [0]},
            },
            "sr_threshold": _percent(settings.threshold_ratio, "sr_threshold"),
            "aggression": {
                "default_value": settings.aggression,
                "runtime_key": "admission_control.aggression",
            },
            "max_rejection_probability": _percent(settings.max_rejected_ratio, "max_rejected"),
        },
    )


def key_rates(weights: Mapping[str, float], rate_rps: float) -> Config:
    """`local_ratelimit` with a bucket for each key; without a known one, next to nothing."""
    total = sum(weights.values())
    always = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
    return _filter(
        "local_ratelimit",
        "LocalRateLimit",
        {
            "stat_prefix": "static_rate",
            "token_bucket": {"max_tokens": 10, "tokens_per_fill": 1, "fill_interval": "1s"},
            "always_consume_default_token_bucket": False,
            "rate_limits": [
                {
                    "actions": [
                        {"request_headers": {"header_name": "x-api-key", "descriptor_key": "key"}}
                    ]
                }
            ],
            "descriptors": [
                {
                    "entries": [{"key": "key", "value": key}],
                    "token_bucket": _bucket(rate_rps * weight / total),
                }
                for key, weight in weights.items()
            ],
            "filter_enabled": always,
            "filter_enforced": always,
            "enable_retry_after_header": True,
        },
    )


def bucket_of(rate_rps: float) -> int:
    """How many requests the bucket of such a rate holds."""
    return max(BURST_REQUESTS, round(rate_rps * BURST_S))


def _bucket(rate_rps: float) -> Config:
    # It fills evenly; ten seconds' worth is named so that rates need not be whole.
    return {
        "max_tokens": bucket_of(rate_rps),
        "tokens_per_fill": max(1, round(10 * rate_rps)),
        "fill_interval": "10s",
    }


def _percent(ratio: float, key: str) -> Config:
    return {
        "default_value": {"value": 100.0 * ratio},
        "runtime_key": f"admission_control.{key}",
    }


def _filter(name: str, message: str, fields: Config) -> Config:
    return {
        "name": f"envoy.filters.http.{name}",
        "typed_config": {"@type": f"{_TYPES}.{name}.v3.{message}", **fields},
    }
