"""Promises as a configuration writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ext_authz.config.compile import load
from ext_authz.settings import Slo


@pytest.mark.parametrize(
    ("written", "slo"),
    [
        ("{}", Slo(0.15)),
        ("{default_ms: 900}", Slo(0.9)),
        ("{default: {ttft_ms: 800}}", Slo(None, 0.8)),
        ("{default: {tpot_ms: 30}}", Slo(None, None, 0.03)),
        ("{default: {e2e_ms: 2000, ttft_ms: 800}}", Slo(2.0, 0.8)),
    ],
)
def test_defaults_by_the_end_or_by_tokens(tmp_path: Path, written: str, slo: Slo) -> None:
    """Who promises tokens only has streams, which end when they end: no end is promised then."""
    file = tmp_path / "gate.yaml"
    file.write_text(f"admission_control: {{slo: {written}}}\n")
    assert load(file).settings.admission.default_slo == slo
