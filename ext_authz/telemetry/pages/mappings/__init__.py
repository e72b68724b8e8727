"""What each engine calls its signals: data, read by `reading`.

PURE. A new engine is one more `EngineMapping` in `ENGINES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ext_authz.telemetry.pages.mappings.general import KSERVE, RAY_SERVE, TRITON, TRITON_TRTLLM
from ext_authz.telemetry.pages.mappings.language import (
    DYNAMO,
    LLAMACPP,
    LMDEPLOY,
    SGLANG,
    TGI,
    TRTLLM,
    VLLM,
)
from ext_authz.telemetry.pages.mappings.rules import (
    COUNTERS,
    OPTIONAL_MEANS,
    Combine,
    EngineMapping,
    Mean,
    Rule,
    Signal,
    Way,
)

__all__ = [
    "COUNTERS",
    "ENGINES",
    "OPTIONAL_MEANS",
    "VLLM",
    "Combine",
    "EngineMapping",
    "Mean",
    "Rule",
    "Signal",
    "Way",
]

ENGINES: Mapping[str, EngineMapping] = MappingProxyType(
    {
        mapping.engine: mapping
        for mapping in (
            VLLM,
            SGLANG,
            TRTLLM,
            TRITON,
            TRITON_TRTLLM,
            TGI,
            RAY_SERVE,
            KSERVE,
            LLAMACPP,
            LMDEPLOY,
            DYNAMO,
        )
    }
)
"""The engines that can be read, by the name a pool's configuration gives."""
