"""The response tap: Envoy's external processor in observability mode, which shows answers as they
pass and waits for nothing. See docs/tap.md."""

from __future__ import annotations

from collections.abc import AsyncIterator
from enum import StrEnum

from ext_authz.clock import Clock
from ext_authz.errors import CodecError
from ext_authz.serving.codec import Codec
from ext_authz.serving.gate import Gate
from ext_authz.serving.tap_read import Answer, AnswerPart, start_reading


class TapResult(StrEnum):
    """What became of a tapped answer: labels of `tapped_answers`."""

    # Seen to its end; something was learned.
    READ = "read"
    # The tap ended before the answer, or the answer is too long: no output tokens.
    CUT = "cut"
    # Failed, of another kind, or silent about itself.
    NOTHING = "nothing"
    # As many as may be were being read.
    FULL = "full"
    # Without a decision's id, or shown twice.
    UNJOINABLE = "unjoinable"
    MALFORMED = "malformed"


class TapService:
    """Reads the answers that Envoy shows."""

    def __init__(self, gate: Gate, codec: Codec, clock: Clock) -> None:
        self._gate = gate
        self._codec = codec
        self._clock = clock

    async def follow(self, messages: AsyncIterator[bytes]) -> None:
        """Read one answer until it ends, the tap does, or nothing more can be learned."""
        try:
            async for message in messages:
                part = self._codec.decode_part(message)
                if part is not None:
                    self._count(await self._answer(part, messages))
                    return
        except CodecError:
            self._count(TapResult.MALFORMED)

    async def _answer(self, head: AnswerPart, messages: AsyncIterator[bytes]) -> TapResult:
        answer = start_reading(head)
        if answer is None:
            return TapResult.NOTHING
        taps = self._gate.taps
        if taps.full:
            return TapResult.FULL
        if not (head.decision_id and taps.begin(head.decision_id)):
            return TapResult.UNJOINABLE
        reading, whole = None, False
        try:
            whole = await self._read(head.decision_id, answer, messages)
        finally:
            reading = answer.reading(whole)
            taps.tell(head.decision_id, reading, self._clock.now())
        if reading is None:
            return TapResult.NOTHING
        return TapResult.READ if whole else TapResult.CUT

    async def _read(self, decision_id: str, answer: Answer, messages: AsyncIterator[bytes]) -> bool:
        """Whether the answer was seen to its end. Its first token is told when it comes: the end
        may be minutes away."""
        told = False
        async for message in messages:
            part = self._codec.decode_part(message)
            if part is None:
                continue
            answer.take(part.body, self._clock.now())
            if not told and answer.first_s is not None:
                told = True
                self._gate.first_token(decision_id, answer.first_s)
            if part.last or answer.done:
                return part.last
        return False

    def _count(self, result: TapResult) -> None:
        self._gate.metrics.count("tapped_answers", result)
