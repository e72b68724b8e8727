"""What a running gate records can be replayed by another configuration."""

from __future__ import annotations

import asyncio
import json
import signal
import stat
from pathlib import Path

import pytest

from tests.support.processes import eventually
from tests.support.stack import engine_stack, python, send_signal

pytestmark = pytest.mark.slow


async def test_a_day_is_recorded_and_replayed(tmp_path: Path) -> None:
    """Every request is a line by the end of the drain, and the command reads them."""
    path = tmp_path / "journal.jsonl"
    async with engine_stack(tmp_path, journal={"file": path.name}) as up:
        stack = up.stack
        for _ in range(20):
            await stack.post()
        await stack.idle()
        await eventually(path.exists)
        page = await stack.status()
        assert page["journal"] == {"file": str(path), "trouble": None}
        send_signal(stack.gate, signal.SIGTERM)
        assert await asyncio.to_thread(stack.gate.wait, 10.0) == 0
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        names = [str(path), "--config", str(tmp_path / "gate.yaml"), "--json"]
        command = python("-m", "ext_authz", "replay", *names)
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        told = json.loads(output)
        assert process.returncode == 0
        assert told["requests"] == 20
        assert told["all"]["now"]["admitted"] == 20
        assert told["all"]["then"]["promises_kept"] > 0
