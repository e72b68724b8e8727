"""A continuous-batching engine in virtual time, as vLLM schedules: decodes first, then prompts.

PURE and deterministic under its seed. A step costs the same to simulate however many sequences
run in it: every decoding sequence gains one token per step, so its end is a step number known the
moment it begins, kept in a heap, and its length so far is a subtraction.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import OrderedDict
from dataclasses import dataclass

from loadtest.backend.engine import (
    EndReason,
    EngineFullError,
    Event,
    Finished,
    FirstToken,
    Gauges,
    Throttle,
    Work,
    WorkTooLargeError,
)
from loadtest.backend.profiles import LlmProfile, PrefillWork


@dataclass(slots=True)
class _Sequence:
    """One request inside. `produced` counts tokens up to `decoding_since` (a step number; None
    while it is not decoding); `computed` of `target` context tokens are in the cache so far."""

    id: int
    prompt_tokens: int
    output_tokens: int
    reason: EndReason
    arrived_s: float
    target: int
    computed: int = 0
    produced: int = 0
    decoding_since: int | None = None
    started_s: float | None = None
    first_token_s: float | None = None
    preemptions: int = 0


class ContinuousEngine:
    """See `engine.Engine`. First come, first served: while the head of the queue does not fit,
    nobody passes it. When growing outputs fill the cache the youngest sequence is put back at the
    head of the queue and computes its context again."""

    # the share of the cache left free at admission, so that a newcomer is not evicted at once
    WATERMARK_RATIO = 0.01

    def __init__(self, profile: LlmProfile, seed: int) -> None:
        self._profile = profile
        self._random = random.Random(seed)
        self._throttle = Throttle()
        self._now = 0.0
        self._next_id = 1
        self._events: list[Event] = []
        self._live: dict[int, _Sequence] = {}
        self._waiting: OrderedDict[int, _Sequence] = OrderedDict()
        self._running: OrderedDict[int, _Sequence] = OrderedDict()  # in order of admission
        self._prefilling: dict[int, _Sequence] = {}
        self._decoding = 0
        self._ends: list[tuple[int, int, int]] = []  # (last step, id, decoding since)
        self._steps = 0
        self._step_end: float | None = None
        self._chunks: list[tuple[_Sequence, int]] = []  # who computes up to where in this step
        self._kv_tokens = 0
        self._preemptions = 0
        self._prompt_tokens = 0
        self._generated_tokens = 0

    # -- what callers use

    def submit(self, now: float, work: Work) -> int:
        """See `Engine.submit`."""
        self._run(now)
        room = self._profile.max_model_tokens - work.prompt_tokens
        if work.prompt_tokens < 1 or room < max(1, work.cap_tokens or 0):
            raise WorkTooLargeError(
                f"the context length is {self._profile.max_model_tokens} tokens; the request asks "
                f"for {work.prompt_tokens} of prompt and {work.cap_tokens or 1} of output"
            )
        if len(self._waiting) >= self._profile.max_waiting:
            raise EngineFullError(f"{len(self._waiting)} requests are waiting")
        output, reason = self._draw(work, room)
        sequence = _Sequence(
            self._next_id, work.prompt_tokens, output, reason, self._now, target=work.prompt_tokens
        )
        self._next_id += 1
        self._live[sequence.id] = self._waiting[sequence.id] = sequence
        if self._step_end is None:
            self._start_step()
        return sequence.id

    def cancel(self, now: float, request_id: int) -> bool:
        """See `Engine.cancel`. Its cache is free at once; the step under way is not shortened."""
        self._run(now)
        sequence = self._live.pop(request_id, None)
        if sequence is None:
            return False
        if self._waiting.pop(request_id, None) is None:
            self._leave(sequence)
        return True

    def advance(self, now: float) -> list[Event]:
        """See `Engine.advance`."""
        self._run(now)
        events, self._events = self._events, []
        return events

    def next_event(self) -> float | None:
        """See `Engine.next_event`: the end of the step under way."""
        return self._step_end

    def progress(self, request_id: int) -> int:
        """See `Engine.progress`."""
        sequence = self._live.get(request_id)
        return 0 if sequence is None else self._produced(sequence)

    def throttle(self, now: float, factor: float, after_s: float = 0.0) -> None:
        """See `Engine.throttle`."""
        self._run(now)
        if not 0.0 <= after_s <= 86_400.0:
            raise ValueError("a thermal change must lie within the next day")
        self._throttle.schedule(self._now + after_s, factor)

    def gauges(self) -> Gauges:
        """See `Engine.gauges`."""
        return Gauges(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_ratio=self._kv_tokens / self._profile.kv_tokens,
            steps=self._steps,
            preemptions=self._preemptions,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
            throttle=self._throttle.at(self._now),
        )

    # -- one step after another

    def _run(self, now: float) -> None:
        """Play every step that ends by `now`; each begins where the last ended, not when asked."""
        now = max(now, self._now)
        while self._step_end is not None and self._step_end <= now:
            self._now = self._step_end
            self._end_step()
            self._start_step()
        self._now = now

    def _start_step(self) -> None:
        self._make_room()
        self._chunks = []
        budget = self._profile.step_tokens - self._decoding
        for sequence in self._prefilling.values():
            budget = self._plan_chunk(sequence, budget)
        while budget > 0 and self._may_admit():
            sequence = self._waiting.popitem(last=False)[1]
            self._admit(sequence)
            budget = self._plan_chunk(sequence, budget)
        if not self._running:
            self._step_end = None
            return
        prefill = PrefillWork(
            sum(end - sequence.computed for sequence, end in self._chunks),
            sum(end**2 - sequence.computed**2 for sequence, end in self._chunks),
        )
        reserved = sum(sequence.target + 1 for sequence in self._prefilling.values())
        duration = self._profile.step_s(
            len(self._running), self._decoding, self._kv_tokens - reserved, prefill
        )
        self._step_end = self._now + duration * self._throttle.at(self._now)

    def _end_step(self) -> None:
        self._steps += 1
        self._kv_tokens += self._decoding
        self._generated_tokens += self._decoding
        while self._ends and self._ends[0][0] <= self._steps:
            _, request_id, since = heapq.heappop(self._ends)
            sequence = self._live.get(request_id)
            # entries of cancelled or evicted sequences are stale and are met here
            if sequence is not None and sequence.decoding_since == since:
                self._finish(sequence)
        for sequence, end in self._chunks:
            if self._prefilling.get(sequence.id) is sequence:
                sequence.computed = end
                if end == sequence.target:
                    self._end_prefill(sequence)

    def _end_prefill(self, sequence: _Sequence) -> None:
        """The step that completes a prompt also yields its next token."""
        if sequence.first_token_s is None:
            sequence.first_token_s = self._now
            self._prompt_tokens += sequence.prompt_tokens
            self._events.append(FirstToken(sequence.id, self._now))
        if sequence.output_tokens == 0:
            self._finish(sequence)
            return
        sequence.produced += 1
        self._generated_tokens += 1
        if sequence.produced == sequence.output_tokens:
            self._finish(sequence)
            return
        del self._prefilling[sequence.id]
        sequence.decoding_since = self._steps
        self._decoding += 1
        last = self._steps + sequence.output_tokens - sequence.produced
        heapq.heappush(self._ends, (last, sequence.id, self._steps))

    def _finish(self, sequence: _Sequence) -> None:
        del self._live[sequence.id]
        self._leave(sequence)
        self._events.append(
            Finished(
                id=sequence.id,
                reason=sequence.reason,
                arrived_s=sequence.arrived_s,
                started_s=sequence.started_s,
                first_token_s=sequence.first_token_s,
                ended_s=self._now,
                prompt_tokens=sequence.prompt_tokens,
                output_tokens=sequence.output_tokens,
                preemptions=sequence.preemptions,
            )
        )

    # -- cache and queue

    def _may_admit(self) -> bool:
        if not self._waiting or len(self._running) >= self._profile.max_sequences:
            return False
        if not self._running:
            return True  # any one sequence fits in an empty cache
        head = next(iter(self._waiting.values()))
        spare = math.floor(self._profile.kv_tokens * self.WATERMARK_RATIO)
        needed = self._kv_tokens + self._decoding + head.target + 1
        return needed + spare <= self._profile.kv_tokens

    def _admit(self, sequence: _Sequence) -> None:
        """Into the batch, with the cache for its whole context and its next token."""
        if sequence.started_s is None:
            sequence.started_s = self._now
        self._running[sequence.id] = self._prefilling[sequence.id] = sequence
        self._kv_tokens += sequence.target + 1

    def _plan_chunk(self, sequence: _Sequence, budget: int) -> int:
        end = min(sequence.target, sequence.computed + budget)
        if end > sequence.computed:
            self._chunks.append((sequence, end))
        return budget - (end - sequence.computed)

    def _make_room(self) -> None:
        """Evict the youngest until every decoding sequence can grow by one token."""
        while self._kv_tokens + self._decoding > self._profile.kv_tokens and len(self._running) > 1:
            sequence = next(reversed(self._running.values()))
            produced = self._produced(sequence)
            self._leave(sequence)
            sequence.produced = produced
            sequence.target = sequence.prompt_tokens + produced
            sequence.computed = 0
            sequence.decoding_since = None
            sequence.preemptions += 1
            self._preemptions += 1
            self._waiting[sequence.id] = sequence
            self._waiting.move_to_end(sequence.id, last=False)

    def _leave(self, sequence: _Sequence) -> None:
        """Out of the batch, its cache freed."""
        del self._running[sequence.id]
        if self._prefilling.pop(sequence.id, None) is not None:
            self._kv_tokens -= sequence.target + 1
        else:
            self._kv_tokens -= sequence.prompt_tokens + self._produced(sequence)
            self._decoding -= 1

    def _produced(self, sequence: _Sequence) -> int:
        if sequence.decoding_since is None:
            return sequence.produced
        return sequence.produced + self._steps - sequence.decoding_since

    def _draw(self, work: Work, room: int) -> tuple[int, EndReason]:
        """Output length and why it will end. Always draws once, so that one request's cap does not
        change the lengths of those after it."""
        lengths = self._profile.lengths
        centre = math.log(lengths.mean_tokens) - lengths.sigma**2 / 2.0
        natural = max(1, round(self._random.lognormvariate(centre, lengths.sigma)))
        cap = room if work.cap_tokens is None else work.cap_tokens
        if work.exact or natural > cap:
            return cap, EndReason.LENGTH
        return natural, EndReason.STOP
