"""One small scenario of the comparison from beginning to end: real Envoy, gate, backends, k6."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.compare.measures import measured, series
from loadtest.compare.playing import Raw, play_raw
from loadtest.compare.scenario import Kind, Scenario, Server, Shape, Tenant, Throttled, steady
from loadtest.compare.tries import Try
from loadtest.compare.variants import product
from loadtest.edge import without_gate

pytestmark = pytest.mark.slow

# What the product may ask a backend for by itself.
METRICS = "/metrics"
ROOT = Path(__file__).parents[2]

# It takes no more at once than it can serve well, so that nothing hangs on what a gate knows of it.
SMALL = Scenario(
    "small", "two kinds of tenants on one server, which slows down in the middle",
    servers=(Server(changes={"knee.sequences": 10, "max_sequences": 10}),),
    capacity_rps=25.0, measured_s=3,
    tenants=(
        Tenant("calm", steady(0.2), weight=3.0, shape=Shape(Kind.STREAM)),
        Tenant("loud", steady(1.5), shape=Shape(Kind.COMPLETION), slo_s=2.5),
    ),
    innocent="calm", events=(Throttled(6.5, 1.2),),
)  # fmt: skip


@pytest.fixture(scope="module")
def raw() -> Raw:
    """The scenario played once, through the gate."""
    return play_raw(SMALL, product())


def test_clients_and_servers_tell_the_same(raw: Raw) -> None:
    """Every try that got an answer from a server is in the server's log under its name, was inside
    while its client waited, and none else is there."""
    tries = {f"{t.tenant}/{t.number}/{t.tries}": t for t in raw.sent.tries}
    assert len(tries) == len(raw.sent.tries) > 150
    done = {one.name: one for one in raw.served if one.done}
    assert set(done) == {name for name, t in tries.items() if t.served}
    for name, one in done.items():
        assert tries[name].at_s - 0.02 <= one.arrived_s <= one.ended_s
        assert one.ended_s <= tries[name].ended_s + 0.02
        assert one.work_s > 0.0
    assert {one.tenant for one in raw.served} == {"calm", "loud"}


def test_streams_tell_when_their_first_token_came(raw: Raw) -> None:
    """k6 cannot see it come; the last event of a stream says it."""
    for one in raw.sent.tries:
        if one.served:
            assert (one.ttft_s is None) == (one.tenant == "loud")
            assert one.ttft_s is None or 0.0 < one.ttft_s < one.took_s + 0.01


def test_figures_come_of_it(raw: Raw) -> None:
    """Nothing needs looking up by hand."""
    row = measured(SMALL, raw.sent.tries, raw.served, limit=10.0)
    assert 0.0 < row.goodput_rps <= 25.0
    assert row.premature is not None
    assert row.innocent_ok is not None
    assert row.ttft_p99_s is not None
    assert row.refused > 0
    assert not math.isnan(raw.cpu.busy)
    plotted = series(SMALL, raw.sent.tries, raw.served, limit=10.0)
    assert sum(plotted.offered_rps) == len(raw.sent.tries)
    assert set(plotted.work_s) == {"calm", "loud"}
    assert plotted.hints


def test_the_product_asks_a_backend_for_nothing_but_its_metrics_page(raw: Raw) -> None:
    """All else that reaches it is what clients sent. So it can know of it what its page, its
    answers and the access log tell, and nothing of what judges it."""
    sent = {"/v1/chat/completions", "/v1/completions"}
    assert set(raw.asked) == {METRICS, *sent}
    through = sum(raw.asked[path] for path in sent)
    probed = raw.probe.streams if raw.probe else 0
    assert through == len(raw.served) + probed


def test_the_product_knows_no_word_of_the_load_test() -> None:
    """Neither the header that names tries nor the timing that backends add to their answers."""
    for path in (ROOT / "ext_authz").rglob("*.py"):
        text = path.read_text()
        assert "loadtest" not in text, path
        assert "first_token_unix_ms" not in text, path


def test_a_variant_without_a_gate_has_the_same_arrivals(tmp_path: Path) -> None:
    """Same seed, same arrivals and prompts, whatever stands in between; what a run leaves can be
    kept."""
    short = replace(SMALL, measured_s=1, events=())
    kept = tmp_path / "kept"
    first = play_raw(short, product(), keep=kept).sent.tries
    names = {path.name for path in kept.iterdir()}
    assert {"gate.yaml", "gate.log", "envoy.yaml", "tries.jsonl", "served.json"} <= names
    plain = replace(product(), name="plain", gate=False, change=without_gate)
    second = play_raw(short, plain).sent.tries
    assert [(t.tenant, t.number, t.prompt_tokens) for t in sorted(first, key=_which)] == [
        (t.tenant, t.number, t.prompt_tokens) for t in sorted(second, key=_which)
    ]
    assert not any(t.refused for t in second)


def _which(one: Try) -> tuple[str, int]:
    return one.tenant, one.number
