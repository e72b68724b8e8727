"""The response tap: what a configuration asks for, and the rendered Envoy bootstrap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ext_authz.config import load
from ext_authz.deploy.envoy import render_envoy
from ext_authz.settings import Pool
from tests.support.envoy import validate
from tests.support.settings import make_edge, make_pool, make_settings

ADDRESSED = make_pool("only", "127.0.0.1:8000")
NAMED = make_pool("named", "vllm.gpu.svc:8000")


def _text(ratio: float, pool: Pool = ADDRESSED) -> str:
    return render_envoy(make_settings((pool,), edge=make_edge(tapped_ratio=ratio)))


def _filters(text: str) -> list[dict[str, Any]]:
    (listener,) = yaml.load(text, yaml.CSafeLoader)["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    filters: list[dict[str, Any]] = manager["http_filters"]
    return filters


def test_nothing_of_it_is_there_unless_asked_for() -> None:
    """Without the tap there is neither a filter nor a cluster."""
    assert "ext_proc" not in _text(0.0)
    assert "ext_authz_tap" not in _text(0.0)


@pytest.mark.parametrize(
    ("ratio", "parts"), [(1.0, 1_000_000), (0.25, 250_000), (1e-9, 1), (0.1234567, 123_457)]
)
def test_it_sees_a_share_of_what_was_admitted(ratio: float, parts: int) -> None:
    """It stands last, waits for nothing, lets everything pass, and reads no request."""
    tap = _filters(_text(ratio))[-2]
    assert tap["name"] == "ext_authz.tap"
    (matcher,) = tap["typed_config"]["xds_matcher"]["matcher_list"]["matchers"]
    action = matcher["on_match"]["action"]["typed_config"]
    assert action["sample_percent"]["default_value"] == {
        "numerator": parts,
        "denominator": "MILLION",
    }
    processor = action["typed_config"]["typed_config"]
    assert processor["observability_mode"] is True
    assert processor["failure_mode_allow"] is True
    assert processor["processing_mode"] == {
        "request_header_mode": "SKIP",
        "response_header_mode": "SEND",
        "response_body_mode": "STREAMED",
        "response_trailer_mode": "SKIP",
    }


@pytest.mark.parametrize("pool", [ADDRESSED, NAMED])
def test_envoy_accepts_it(pool: Pool, tmp_path: Path) -> None:
    """The real Envoy validates a bootstrap with a tap."""
    done = validate(_text(0.5, pool), tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("body", "ratio", "warned"),
    [
        ("{}", 0.0, False),
        ("{response_tap: true}", 1.0, False),
        ("{response_tap: true, response_tap_share: 0.1}", 0.1, False),
        ("{response_tap_share: 0.1}", 0.0, True),
    ],
)
def test_what_is_tapped(tmp_path: Path, body: str, ratio: float, warned: bool) -> None:
    """Nothing unless it is asked for, then all or a share; a share of nothing is warned of."""
    path = tmp_path / "gate.yaml"
    path.write_text(f"admission_control: {{learning: {body}}}")
    loaded = load(path)
    assert loaded.settings.edge.tapped_ratio == ratio
    fields = [problem.field for problem in loaded.warnings]
    assert ("admission_control.learning.response_tap_share" in fields) is warned
