from __future__ import annotations

from ext_authz.snapshot import EndpointSample, Freshness, Report, Staleness
from ext_authz.telemetry.merge import Merger
from ext_authz.telemetry.sources.static import Assumption, StaticSettings, StaticSource

ADDRESS = "10.0.0.1:8000"


def source() -> StaticSource:
    assumed = Assumption(ADDRESS, slots=8, kv_capacity_tokens=1000, mean_execution_s=2, device="g0")
    return StaticSource(StaticSettings((assumed, Assumption("10.0.0.2:8000", slots=4))))


async def test_assumptions_are_renewed_and_tell_no_load() -> None:
    """Each poll dates the assumptions anew, so that they never get stale; load is unknown."""
    merger = Merger({ADDRESS: None, "10.0.0.2:8000": None})
    made = source()
    for now in (1.0, 1000.0):
        merger.take(await made.poll(now))
        assert merger.snapshot.freshness(ADDRESS, now + 0.5, Staleness(1.0)) is Freshness.FRESH
    first, second = (await made.poll(5.0)).endpoints
    assert (first.slots, first.kv_capacity_tokens, first.mean_execution_s) == (8, 1000, 2)
    assert (first.device, first.load, first.source, first.at_s) == ("g0", None, "static", 5.0)
    assert (second.endpoint, second.mean_execution_s) == ("10.0.0.2:8000", None)
    await made.close()


async def test_what_is_measured_wins() -> None:
    """An assumption gives way to a measurement, even to an older one, number by number."""
    merger = Merger({ADDRESS: None})
    measured = EndpointSample(ADDRESS, 1.0, running=3, mean_execution_s=7, source="scrape")
    merger.take(Report(endpoints=(measured,)))
    merger.take(await source().poll(2.0))
    got = merger.snapshot.samples[ADDRESS]
    assert (got.running, got.mean_execution_s, got.slots) == (3, 7, 8)
