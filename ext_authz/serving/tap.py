"""The response tap: Envoy's external processor in observability mode, which shows answers as they
pass and waits for nothing. See docs/tap.md."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from enum import StrEnum

from ext_authz.admission.ledger import Reservation
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
    # Of no booking that is open here.
    UNKNOWN = "unknown"
    MALFORMED = "malformed"


class TapService:
    """Reads the answers that Envoy shows. `learn_soon` is called when one has been read."""

    def __init__(
        self, gate: Gate, codec: Codec, clock: Clock, learn_soon: Callable[[], None]
    ) -> None:
        self._gate = gate
        self._codec = codec
        self._clock = clock
        self._learn_soon = learn_soon

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
        charged = self._gate.controller.ledger.find(head.decision_id)
        if charged is None:
            return TapResult.UNKNOWN
        answer = start_reading(head)
        if answer is None:
            return TapResult.NOTHING
        if self._gate.taps.full:
            return TapResult.FULL
        if not self._gate.taps.begin(charged.id):
            return TapResult.UNKNOWN
        return await self._read(charged, answer, messages)

    async def _read(
        self, charged: Reservation, answer: Answer, messages: AsyncIterator[bytes]
    ) -> TapResult:
        whole = False
        usage = None
        try:
            async for message in messages:
                part = self._codec.decode_part(message)
                if part is not None:
                    answer.take(part.body, self._clock.now())
                    whole = part.last
                if whole or answer.done:
                    break
        finally:
            usage = answer.usage(charged.opened_s, whole)
            self._gate.taps.tell(charged.id, usage)
            self._learn_soon()
        if usage is None:
            return TapResult.NOTHING
        return TapResult.READ if whole else TapResult.CUT

    def _count(self, result: TapResult) -> None:
        self._gate.metrics.count("tapped_answers", result)
