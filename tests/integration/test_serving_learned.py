"""What was learned outlives the process: over a drain, a crash and a change of the file."""

from __future__ import annotations

import asyncio
import json
import signal
import stat
from pathlib import Path

import pytest

from tests.support.processes import eventually
from tests.support.stack import engine_stack, kill, send_signal

pytestmark = pytest.mark.slow


async def test_learned_state_over_restarts(tmp_path: Path) -> None:
    """Saved at an interval and at a drain, taken up by the next process, ignored when damaged."""
    path = tmp_path / "learned.json"
    learning = {"state_file": "learned.json", "save_every": "1s"}
    async with engine_stack(tmp_path, learning=learning) as up:
        stack = up.stack
        assert "there is none yet" in stack.gate.output()
        for _ in range(30):
            await stack.post()
        await stack.idle()
        await eventually(path.exists)
        send_signal(stack.gate, signal.SIGTERM)
        assert await asyncio.to_thread(stack.gate.wait, 10.0) == 0
        whole = json.loads(path.read_text())
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        lessons = whole["learned"]["pools"]["primary"]["predictor"]["whole"]["lessons"]
        assert lessons > 0

        await stack.start_gate()
        assert "is taken up" in stack.gate.output()
        page = await stack.status()
        assert page["learned_state"]["left"] == []
        assert page["learned_state"]["age_s"] < 60.0

        async def saved_again() -> bool:
            return await stack.metric("learned_state_saves_total", result="saved") >= 1.0

        await eventually(saved_again)
        await kill(stack.gate)
        again = json.loads(path.read_text())["learned"]["pools"]["primary"]["predictor"]
        assert again["whole"]["lessons"] == lessons

        path.write_text('{"ext_authz_learned":1,')
        await stack.start_gate()
        assert f"learned state {path} is ignored: it is damaged" in stack.gate.output()
