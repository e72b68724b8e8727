"""What a worker has yet to tell, and how it travels."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.errors import TelemetryError
from ext_authz.snapshot import DeviceSample, EndpointSample, ModelSample, Origin, Report
from ext_authz.telemetry.sources.nvml.source import NvmlSettings
from ext_authz.telemetry.sources.orca.source import OrcaSettings
from ext_authz.telemetry.sources.prometheus.settings import PrometheusSettings
from ext_authz.telemetry.sources.scrape import ScrapeSettings
from ext_authz.telemetry.worker.outbox import Outbox
from ext_authz.telemetry.worker.wire import Said, Wanted, encoded, receive
from tests.support.finding import finding
from tests.support.settings import make_pool

REPORT = Report(
    (
        EndpointSample(
            "10.0.0.1:1",
            5.0,
            running=2.0,
            by_model=MappingProxyType({"m": ModelSample(1.0, None, 0.5)}),
            source="scrape",
            origins=MappingProxyType({"running": Origin("scrape", 5.0)}),
        ),
    ),
    (DeviceSample("GPU-1", 4.0, "nvml", throttled=True),),
    frozenset({"waiting"}),
    MappingProxyType({"nan": 2}),
)

turns = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.one_of(st.none(), st.dictionaries(st.sampled_from(["nan", "inf"]), st.integers(1, 9))),
        st.booleans(),
    )
)


@given(turns)
def test_nothing_is_counted_twice_or_lost_and_the_newest_is_told(
    said: list[tuple[str, dict[str, int] | None, bool]],
) -> None:
    """Against a list of all that was said: per source the counts add up over the batches, and
    each batch has the last report, the last failure, and which of them came last."""
    outbox = Outbox()
    since: dict[str, list[Report | str]] = {}

    def check() -> None:
        assert bool(outbox) == bool(since)
        batch = outbox.take()
        assert [one.name for one in batch] == list(since)
        for one in batch:
            reports = [e for e in since[one.name] if isinstance(e, Report)]
            errors = [e for e in since[one.name] if isinstance(e, str)]
            assert (one.reports, one.failures) == (len(reports), len(errors))
            assert one.error == (errors[-1] if errors else None)
            assert one.failing == isinstance(since[one.name][-1], str)
            dropped = sum((Counter(r.dropped) for r in reports), Counter[str]())
            newest = replace(reports[-1], dropped=dict(dropped)) if reports else None
            assert one.report == newest
        since.clear()

    for number, (name, dropped, taken) in enumerate(said):
        if dropped is None:
            outbox.failed(name, TelemetryError(f"failure {number}"))
            since.setdefault(name, []).append(f"failure {number}")
        else:
            report = Report((EndpointSample(name, float(number)),), dropped=dropped)
            outbox.heard(name, report)
            since.setdefault(name, []).append(report)
        if taken:
            check()
    check()
    assert outbox.take() == ()


@pytest.mark.parametrize(
    "message",
    [
        (),
        (Said("a", 2, 1, REPORT, "HTTP status 503", failing=True), Said("b", reports=1)),
        Wanted(),
        Wanted(
            (
                ScrapeSettings(),
                PrometheusSettings("http://p:9090"),
                NvmlSettings(),
                OrcaSettings(9000),
            ),
            MappingProxyType({"p": finding("p", "x", "10.0.0.1:1"), "q": make_pool("q", "h:1")}),
        ),
    ],
)
async def test_what_is_sent_arrives(message: Wanted | tuple[Said, ...]) -> None:
    """Read-only mappings and all, one message after the other; then the end is seen."""
    reader = asyncio.StreamReader()
    reader.feed_data(encoded(message) + encoded(()))
    reader.feed_eof()
    assert await receive(reader) == message
    assert await receive(reader) == ()
    with pytest.raises(EOFError):
        await receive(reader)


async def test_a_message_that_is_cut_off_is_the_end() -> None:
    """The other side died while it wrote."""
    reader = asyncio.StreamReader()
    reader.feed_data(encoded((Said("a", report=REPORT),))[:-1])
    reader.feed_eof()
    with pytest.raises(EOFError):
        await receive(reader)
