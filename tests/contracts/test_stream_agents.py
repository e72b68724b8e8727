"""Agents over gRPC: who is heard, how much, and how streams end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from ext_authz.errors import TelemetryError
from ext_authz.telemetry.sources.feedback.intake import Intake
from ext_authz.telemetry.sources.feedback.stream import METHOD, FeedbackServer, StreamSettings
from tests.support.feedback import HOME, ManualClock, Reports, heartbeat
from tests.support.processes import eventually
from tests.support.scrape_rig import until
from tests.support.stream_rig import LISTEN, Rig, answer, ending, frame, send, served


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with served(StreamSettings(LISTEN)) as made:
        yield made


@pytest.mark.parametrize("token", [None, "", "wrong", "secret-1 ", "Secret-1", "secret-11"])
async def test_a_wrong_token_is_shown_out(tmp_path: Path, token: str | None) -> None:
    """Nothing said without one of the tokens is heard."""
    file = tmp_path / "token"
    file.write_text("secret-1\nsecret-2\n")
    async with served(StreamSettings(LISTEN, token_file=file)) as rig:
        bad = rig.agent("secret-1x" if token == "secret-1 " else token)
        with suppress(aio.AioRpcError):  # it may be refused before this is written
            await send(bad, heartbeat(1, 1))
        assert await ending(bad) is grpc.StatusCode.UNAUTHENTICATED
        for number, right in enumerate(("secret-1", "secret-2")):
            await send(rig.agent(right), heartbeat(1, 10 + number))
            await rig.heard(10 + number)
        assert rig.reports.running == [10, 11]


@pytest.mark.parametrize(
    "content", ["", "\n \n", "x" * 20_000, "caf\N{LATIN SMALL LETTER E WITH ACUTE}"]
)
async def test_without_a_usable_token_it_does_not_listen(tmp_path: Path, content: str) -> None:
    """A token file that says nothing never means that everybody may speak."""
    file = tmp_path / "token"
    file.write_text(content)
    server = FeedbackServer(StreamSettings(LISTEN, token_file=file), [HOME], ManualClock())
    with pytest.raises(TelemetryError) as caught:
        await server.run(Reports())
    assert content.strip() == "" or content not in str(caught.value)
    assert server.port == 0
    file.unlink()
    with pytest.raises(TelemetryError):
        await server.run(Reports())


async def test_who_is_let_in_hears_so_at_once(tmp_path: Path) -> None:
    """Before it has said anything; who is shown out hears no such thing."""
    file = tmp_path / "token"
    file.write_text("secret\n")
    async with served(StreamSettings(LISTEN, token_file=file)) as rig:
        for token, welcome in (("secret", True), ("wrong", False)):
            told = await rig.agent(token).initial_metadata()
            assert ("gate" in {key for key, _ in told or ()}) is welcome


class Gone:
    """A call whose caller has left."""

    async def send_initial_metadata(self, _: object) -> None:
        raise RuntimeError("it has left")


async def test_an_agent_that_is_gone_before_it_is_let_in_takes_no_place() -> None:
    """Or after some of those nobody would be let in."""
    server = FeedbackServer(StreamSettings(LISTEN, max_agents=2), [HOME], ManualClock())
    intake = Intake("stream", {HOME}, 2)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            await server._serve(nothing(), Gone(), intake, Reports())
    assert intake.peers == 0


async def nothing() -> AsyncIterator[bytes]:
    """An agent that says nothing."""
    return
    yield b""


async def test_agents_speak_only_for_what_is_configured(rig: Rig) -> None:
    """Other endpoints are dropped, counted, and the agent is told so."""
    call = rig.agent()
    await send(call, heartbeat(1, 1, address="10.0.0.9:8000"))
    assert (await answer(call))["refused"] == {"unknown_endpoint": 1}
    assert rig.reports.samples == []
    assert rig.reports.dropped("unknown_endpoint") == 1


async def test_cards_are_believed_of_agents_that_speak_for_an_endpoint(rig: Rig) -> None:
    """Devices come through with their dates; those of a stranger do not."""
    card = {"device": "GPU-a", "age_ms": 500, "temperature_c": 60, "lost": "yes", "throttled": True}
    await send(rig.agent(), heartbeat(1, devices=[card], endpoints=[]))
    await until(lambda: rig.reports.dropped("no_endpoint") == 1)
    await send(rig.agent(), heartbeat(1, devices=[card]))
    await until(lambda: any(report.devices for report in rig.reports.all))
    (device,) = (device for report in rig.reports.all for device in report.devices)
    assert (device.device, device.at_s, device.source) == ("GPU-a", 999.5, "stream")
    assert (device.temperature_c, device.throttled, device.lost) == (60.0, True, False)


async def test_the_latest_agent_speaks_for_an_endpoint(rig: Rig) -> None:
    """Of two for one endpoint the later is heard, the earlier again once that one is gone."""
    first = rig.agent()
    await send(first, heartbeat(1, 1))
    await rig.heard(1)
    second = rig.agent()
    await send(second, heartbeat(1, 2, run="r2"))
    await rig.heard(2)
    rig.clock.time_s += 0.05
    await send(first, heartbeat(2, 3))
    await until(lambda: rig.reports.dropped("superseded") == 1)
    second.cancel()

    async def again() -> bool:
        rig.clock.time_s += 0.05
        await send(first, heartbeat(int(rig.clock.time_s * 100), 4))
        return 4 in rig.reports.running

    await eventually(again)
    assert rig.reports.running[:2] == [1, 2]
    assert 3 not in rig.reports.running


async def test_a_later_agent_that_fell_silent_gives_way(rig: Rig) -> None:
    """An agent that is connected and says nothing does not keep the endpoint to itself."""
    first = rig.agent()
    await send(first, heartbeat(1, 1))
    await rig.heard(1)
    second = rig.agent()
    await send(second, heartbeat(1, 2, run="r2"))
    await rig.heard(2)
    rig.clock.time_s += 2.5
    await send(first, heartbeat(2, 3))
    await rig.heard(3)


async def test_repeated_and_reordered_heartbeats_are_dropped(rig: Rig) -> None:
    """A sequence number that does not rise is not news; a new run begins anew."""
    call = rig.agent()
    for seq, running, run in ((5, 1, "r1"), (5, 2, "r1"), (4, 3, "r1"), (1, 4, "r2")):
        rig.clock.time_s += 0.05
        await rig.next_report(call, heartbeat(seq, running, run=run))
    assert rig.reports.running == [1, 4]
    assert rig.reports.dropped("out_of_order") == 2


async def test_there_is_room_for_so_many_agents() -> None:
    """One more is refused, and is welcome when another has left."""
    async with served(StreamSettings(LISTEN, max_agents=2)) as rig:
        calls = []
        for number in range(2):
            calls.append(rig.agent())
            await send(calls[-1], heartbeat(1, number))
            await rig.heard(number)
        assert await ending(rig.agent()) is grpc.StatusCode.RESOURCE_EXHAUSTED
        calls[0].cancel()

        async def is_heard() -> bool:
            call = rig.agent()
            try:
                await send(call, heartbeat(1, 9))
                await answer(call)
            except aio.AioRpcError:
                return False
            return True

        await eventually(is_heard)


async def test_many_agents_are_asked_to_speak_less_often() -> None:
    """Together they are to send no more than the gate can take."""
    async with served(StreamSettings(LISTEN, max_heartbeats_per_s=4.0)) as rig:
        calls = [rig.agent() for _ in range(2)]
        for call in calls:
            await send(call, heartbeat(1))
            await answer(call)
        await send(calls[0], heartbeat(2))
        assert (await answer(calls[0]))["interval_ms"] == 500.0


async def test_an_agent_that_never_stops_is_shown_out(rig: Rig) -> None:
    """Reading is bounded: far more than was asked for ends the stream."""
    call = rig.agent()
    with suppress(aio.AioRpcError, asyncio.InvalidStateError):
        for seq in range(1, 20_000):
            await call.write(frame(heartbeat(seq)))
    # An ending that meets a write on its way is told as INTERNAL by gRPC itself.
    assert await ending(call) in {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL}
    await send(rig.agent(), heartbeat(1, 0.5, run="r2"))
    await rig.heard(0.5)


async def test_a_silent_stream_ends() -> None:
    """A connection that says nothing does not hold its place."""
    async with served(StreamSettings(LISTEN, idle_s=0.1)) as rig:
        assert await ending(rig.agent()) is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_an_agent_that_does_not_read_its_answers_is_heard(rig: Rig) -> None:
    """Acknowledgements that nobody takes do not stop heartbeats."""
    call = rig.agent()
    for seq in range(1, 300):
        rig.clock.time_s += 0.05
        await send(call, heartbeat(seq, seq))
    await rig.heard(299)


async def test_a_taken_address_is_an_error_and_passes() -> None:
    """It says so, and listens once the address is free."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        server = FeedbackServer(StreamSettings(address), [HOME], ManualClock())
        with pytest.raises(TelemetryError, match="cannot listen"):
            await server.run(Reports())
    async with served(StreamSettings(address)) as rig:
        await send(rig.agent(), heartbeat(1, 1))
        await rig.heard(1)


async def test_it_runs_again_after_it_was_cancelled() -> None:
    """Cancelling ends the streams and lets the address go; closing twice is fine."""
    reports = Reports()
    server = FeedbackServer(StreamSettings(LISTEN), [HOME], ManualClock())
    await server.close()
    for run in range(2):
        running = asyncio.ensure_future(server.run(reports))
        await until(lambda: server.port != 0)
        made: Any = aio.insecure_channel(f"127.0.0.1:{server.port}")
        async with made as channel:
            call = channel.stream_stream(METHOD)()
            await send(call, heartbeat(1, run))
            await answer(call)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert server.port == 0
            assert await ending(call) is grpc.StatusCode.UNAVAILABLE
    await server.close()
    await server.close()
