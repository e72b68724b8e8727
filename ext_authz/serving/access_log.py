"""StreamAccessLogs: how admitted requests end.

Entries are feedback, never the ledger: they come late, doubled or not at all, and leases end
what they do not. A backlog is worked off in slices with a pause between them, so that it cannot
stall concurrent Checks, and what is learned from outcomes waits until all are settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

from ext_authz.clock import Clock
from ext_authz.errors import CodecError
from ext_authz.serving.codec import Codec
from ext_authz.serving.gate import Gate
from ext_authz.serving.settlement import EntryResult

# A Check needs several turns of the event loop and meets a slice in each, unless there is a
# pause. A turn of the loop without one (sleep of 0) is no pause: slices follow each other with
# hardly anything in between. Measured, see docs/outcomes.md: what Checks wait follows the part of
# the time that goes to slices, so that this is one in five at most.
SLICE_S = 0.0005
PAUSE_S = 0.002
# After which what a message brought is learned from: what the tap shows of a short answer may come
# a little after its entry.
LATER_S = 0.02
# Lessons learned at once, each of some tens of microseconds, and the pause after them: no more
# than 500 a second, which take some hundredths of a core. What is predicted is learned from a few
# hundred requests, so that more of the same second would hardly say more.
LESSONS, LESSONS_PAUSE_S = 4, 0.008


class AccessLogSink:
    """Takes in streams of access-log messages. All streams share the slices.

    A stream's next message is asked for when this one is worked off, so that what is held is a
    message and a transport window for each stream, whatever is sent.
    """

    def __init__(self, gate: Gate, codec: Codec, clock: Clock) -> None:
        self._gate = gate
        self._codec = codec
        self._clock = clock
        # Fair: streams that wait get their turns in order.
        self._turn = asyncio.Lock()
        self._spent_s = 0.0
        # Messages that are being worked off.
        self._behind = 0
        self._learning: asyncio.TimerHandle | None = None
        # Of the lessons that wait, the first ones have waited long enough.
        self._ripe = 0

    async def consume(self, messages: AsyncIterator[bytes]) -> bytes:
        """Take in one stream until it ends; the (empty) response."""
        async for message in messages:
            try:
                entries = iter(self._codec.split_access_log(message))
            except CodecError:
                self._gate.settlement.count(EntryResult.MALFORMED)
                entries = iter(())
            self._behind += 1
            try:
                await self._work_off(entries)
            finally:
                self._behind -= 1
            self._learn_soon()
        return self._codec.empty_access_log_response()

    async def _work_off(self, entries: Iterator[bytes]) -> None:
        done = False
        while not done:
            async with self._turn:
                done = self._slice(entries)
                if self._spent_s >= SLICE_S:
                    self._spent_s = 0.0
                    await asyncio.sleep(PAUSE_S)

    def _slice(self, entries: Iterator[bytes]) -> bool:
        """Work until the slice is used up, with what others have used of it; whether all
        entries are done."""
        began_s = now = self._clock.now()
        ends_s = began_s + SLICE_S - self._spent_s
        done = True
        for data in entries:
            self._take(data, now)
            now = self._clock.now()
            if now >= ends_s:
                done = False
                break
        if now == began_s:
            # Messages with nothing in them take time as well.
            now = self._clock.now()
        self._spent_s += now - began_s
        return done

    def _take(self, data: bytes, now: float) -> None:
        try:
            entry = self._codec.decode_entry(data)
        except CodecError:
            self._gate.settlement.count(EntryResult.MALFORMED)
            return
        if entry is None:
            self._gate.settlement.count(EntryResult.UNJOINABLE)
        else:
            self._gate.ended(entry, now)

    def _learn_soon(self) -> None:
        if self._learning is None and self._gate.lessons:
            after_s = LESSONS_PAUSE_S if self._ripe else LATER_S
            self._ripe = self._ripe or len(self._gate.lessons)
            self._learning = asyncio.get_running_loop().call_later(after_s, self._learn)

    def _learn(self) -> None:
        """Learn a little, unless settlements wait, and come back while there is more."""
        self._learning = None
        if not self._behind:
            now_ripe = min(LESSONS, self._ripe)
            self._ripe -= now_ripe
            self._gate.learn(now_ripe, self._clock.now())
        self._learn_soon()
