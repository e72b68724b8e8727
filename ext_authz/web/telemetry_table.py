"""`ext-authz telemetry`: what the gate knows, as a table that a person can watch.

PURE but for fetching: `table` turns the admin page's JSON into lines.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

CLEAR = "\x1b[H\x1b[2J"
REFRESH_S = 1.0
_GAUGES = ("running", "waiting", "kv_usage_ratio", "mean_execution_s", "thermal_factor")
_HEAD = (
    f"{'':<30}{'state':<10}{'running':>20}{'waiting':>20}{'kv':>20}{'execution':>20}{'thermal':>20}"
)


def fetch(admin: str) -> Mapping[str, Any]:
    """The telemetry page of the gate whose admin server listens at `admin` (host:port)."""
    with urllib.request.urlopen(f"http://{admin}/debug/telemetry", timeout=5) as answer:
        page: Mapping[str, Any] = json.load(answer)
    return page


def show(admin: str, once: bool, as_json: bool) -> None:
    """Print the page, once or until interrupted."""
    while True:
        page = fetch(admin)
        text = json.dumps(page, indent=2) if as_json else "\n".join(table(page))
        print(text if once or not sys.stdout.isatty() else CLEAR + text, flush=True)
        if once:
            return
        time.sleep(REFRESH_S)


def table(page: Mapping[str, Any]) -> Iterator[str]:
    """Pools, devices and sources; each number as `value source age`."""
    yield _HEAD
    for pool, endpoints in page["pools"].items():
        yield pool
        for address, endpoint in endpoints.items():
            cells = "".join(f"{_cell(endpoint['signals'].get(name)):>20}" for name in _GAUGES)
            yield f"  {address:<28}{endpoint['state']:<10}{cells}"
    if page["devices"]:
        yield ""
        yield "devices"
        for name, device in page["devices"].items():
            known = (f"{s} {_cell(v)}" for s, v in device["signals"].items())
            yield f"  {name:<44}{'LOST  ' if device['lost'] else ''}{', '.join(known)}"
    yield ""
    yield "sources"
    for name, source in page["sources"].items():
        missing = f"  missing: {', '.join(source['missing'])}" if source["missing"] else ""
        yield f"  {name:<44}{source['reports']} reports, {source['failures']} failures{missing}"


def _cell(signal: Mapping[str, Any] | None) -> str:
    if signal is None:
        return "unknown"
    value = signal["value"]
    shown = f"{value:.3g}" if isinstance(value, float) else str(value)
    # The kind of the source is enough here; its whole name is in the JSON.
    return f"{shown} {signal['source'].partition('/')[0]} {signal['age_s']:.1f}s"
