"""Authorization/Check: bytes in, bytes out. The seam every gRPC host calls.

Whatever comes in, something well-formed goes out: a fault of ours becomes `error_response`, so
that Envoy's failure mode decides, and never a stack trace, a hang or an accidental allow.
"""

from __future__ import annotations

import logging
from math import inf

from ext_authz.clock import Clock
from ext_authz.errors import CodecError
from ext_authz.model import Api, Decision, HttpCall, Reason, RetryHint, Verdict
from ext_authz.serving.codec import Codec
from ext_authz.serving.gate import Gate
from ext_authz.serving.waiters import Waiters

log = logging.getLogger(__name__)

# Less time than this and Envoy will have given up before an answer can reach it: deciding (and
# booking) would charge for a request that is already gone.
TOO_LATE_S = 0.002

_MALFORMED = Decision(Verdict.REJECT, Reason.MALFORMED_CHECK, Verdict.REJECT)
_SECOND = RetryHint(after_s=1.0, jitter_s=0.0)
_OVERLOADED = Decision(Verdict.REJECT, Reason.OVERLOADED, Verdict.REJECT, retry=_SECOND)
_INTERNAL = Decision(Verdict.REJECT, Reason.INTERNAL, Verdict.REJECT, retry=_SECOND)


class CheckService:
    """`check` for one process."""

    def __init__(self, gate: Gate, codec: Codec, clock: Clock) -> None:
        self._gate = gate
        self._codec = codec
        self._clock = clock
        self._waiters = Waiters(gate, clock)

    async def check(self, request: bytes, remaining_s: float | None) -> bytes:
        """A serialised CheckResponse for a serialised CheckRequest.

        `remaining_s` is how long the caller will still wait, None if for ever.
        """
        started_s = self._clock.now()
        call: HttpCall | None = None
        answer: bytes | None = None
        api = Api.OTHER
        if remaining_s is not None and remaining_s < TOO_LATE_S:
            decision = _OVERLOADED
        else:
            try:
                call = self._codec.decode_check(request)
                patience_s = inf if remaining_s is None else remaining_s
                decision, api = self._gate.decide(call, started_s, patience_s)
                if decision.held is not None:
                    decision = await self._waiters.decided(decision.held.ticket)
                answer = self._codec.encode(decision, call, api)
            except CodecError:
                decision = _MALFORMED
            except Exception as fault:  # the seam: nothing may escape to the client
                # The type and place only: a message could quote the request.
                log.error("check failed: %s", type(fault).__name__, exc_info=False)
                decision = _INTERNAL
        if answer is None:
            answer = self._codec.encode(decision, None, api)
        request_id = "" if call is None else call.headers.get("x-request-id", "")[:64]
        self._gate.journal.append(self._clock.wall(), request_id, decision)
        self._gate.metrics.decided(decision, self._clock.now() - started_s)
        return answer

    def unsent(self, answer: bytes) -> None:
        """The caller had left before `answer` could be sent: what it lets in never begins."""
        decision_id = self._codec.decision_of(answer)
        if decision_id:
            self._gate.left(decision_id, self._clock.now())
