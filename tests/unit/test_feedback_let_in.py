"""When an agent begins to write to a gate."""

from __future__ import annotations

import asyncio

import pytest

from ext_authz.telemetry.sources.feedback import send
from ext_authz.telemetry.sources.feedback.send import _let_in


class Call:
    """A stream of which this is what the gate said first; None: it says nothing."""

    def __init__(self, said: tuple[tuple[str, str], ...] | None) -> None:
        self._said = said

    async def initial_metadata(self) -> tuple[tuple[str, str], ...]:
        if self._said is None:
            await asyncio.get_running_loop().create_future()
        return self._said or ()


@pytest.mark.parametrize("said", [(("gate", "1"),), (("x", "y"), ("gate", "2"))])
async def test_at_once_when_it_is_let_in(said: tuple[tuple[str, str], ...]) -> None:
    """Whatever the gate's version says beside it."""
    async with asyncio.timeout(0.5 * send.WELCOME_S):
        await _let_in(Call(said))


@pytest.mark.parametrize("said", [None, (), (("x", "y"),)])
async def test_after_a_while_if_nobody_says_anything(
    said: tuple[tuple[str, str], ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gate that does not say so, or a hop that keeps it: silence is no reason to say nothing."""
    monkeypatch.setattr(send, "WELCOME_S", 0.05)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await _let_in(Call(said))
    assert loop.time() - began_s >= 0.04
