"""From settings to sources."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ext_authz.clock import SystemClock
from ext_authz.errors import TelemetryError
from ext_authz.telemetry.registry import build_sources
from ext_authz.telemetry.scrape import ScrapeSettings
from tests.support.settings import make_pool

A, B = make_pool("a", "x:1", "x:2"), make_pool("b", "x:3")


def test_one_scrape_for_each_endpoint_of_each_pool() -> None:
    """Every endpoint is asked, each under a name of its own."""
    sources = build_sources((ScrapeSettings(0.3),), {"a": A, "b": B}, SystemClock())
    assert [source.name for source in sources] == ["scrape/x:1", "scrape/x:2", "scrape/x:3"]


def test_an_engine_that_nobody_can_read() -> None:
    """It is said aloud, as its endpoints would silently never be seen."""
    pools = {"a": replace(A, engine="abacus")}
    with pytest.raises(TelemetryError, match="pool a: nothing reads the engine abacus"):
        build_sources((ScrapeSettings(),), pools, SystemClock())
