"""The fast host in a process of its own, and beside the other one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.hosts import serving_pids
from tests.support.hosts_rig import running
from tests.support.processes import eventually
from tests.support.service import WIRE, chat
from tests.support.stack import KEYS

pytestmark = pytest.mark.timeout(900)  # the first one may have to install it


async def test_nothing_outlives_the_process_that_was_started(tmp_path: Path) -> None:
    """Even if it had no time to say so."""
    with running(tmp_path, "pyvoy") as server:
        pid, envoy = serving_pids(server.process)
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: not Path(f"/proc/{envoy}/cmdline").exists())


def test_the_same_bytes_in_are_the_same_bytes_out(tmp_path: Path) -> None:
    """From both hosts, but for what chance and time put in."""
    told: dict[str, list[bytes]] = {}
    for host in ("grpc", "pyvoy"):
        folder = tmp_path / host
        folder.mkdir()
        with running(folder, host) as server:
            told[host] = [_constant(server.check(request)) for request in _requests()]
    assert told["grpc"] == told["pyvoy"]
    assert len(set(told["grpc"])) >= 4


def _requests() -> list[bytes]:
    good = chat(key=KEYS["acme"])
    return [
        *(good[:size] for size in range(0, len(good), 16)),
        *(chat(key=key) for key in (*KEYS.values(), "sk-unknown", "")),
        chat(key=KEYS["acme"], **{"x-gpu-pool": "forged", "content-type": "application/grpc"}),
    ]


def _constant(answer: bytes) -> bytes:
    """The answer without its id and its random hints."""
    read = WIRE.check_response.FromString(answer)
    read.dynamic_metadata.fields.pop("decision_id", None)
    for header in read.denied_response.headers:
        if header.header.key.startswith(("retry-after", "x-gpu-retry", "ratelimit")):
            header.header.value = header.header.raw_value = ""
    written: bytes = read.SerializeToString(deterministic=True)
    return written
