"""A fixed-shape engine with dynamic batching in virtual time, as Triton schedules one model.

PURE and deterministic: nothing is drawn by chance.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass

from loadtest.backend.engine import (
    EndReason,
    EngineFullError,
    Event,
    Finished,
    Gauges,
    Throttle,
    Work,
    WorkTooLargeError,
)
from loadtest.backend.profiles import FixedProfile


@dataclass(slots=True)
class _Inference:
    id: int
    rows: int
    arrived_s: float
    started_s: float | None = None


class FixedShapeEngine:
    """See `engine.Engine`. A batch starts on an idle instance as soon as it is full or its oldest
    request has waited the profile's delay; requests are never split and never overtake."""

    def __init__(self, profile: FixedProfile) -> None:
        self._profile = profile
        self._throttle = Throttle()
        self._now = 0.0
        self._next_id = 1
        self._events: list[Event] = []
        self._waiting: OrderedDict[int, _Inference] = OrderedDict()
        self._executing: dict[int, _Inference] = {}
        self._waiting_rows = 0
        self._batches: list[tuple[float, int, list[_Inference]]] = []  # heap: (end, number, who)
        self._started = 0
        self._done = 0

    def submit(self, now: float, work: Work) -> int:
        """See `Engine.submit`."""
        self._run(now)
        if not 1 <= work.rows <= self._profile.max_batch:
            raise WorkTooLargeError(f"rows must be between 1 and {self._profile.max_batch}")
        if len(self._waiting) >= self._profile.max_waiting:
            raise EngineFullError(f"{len(self._waiting)} requests are waiting")
        inference = _Inference(self._next_id, work.rows, self._now)
        self._next_id += 1
        self._waiting[inference.id] = inference
        self._waiting_rows += work.rows
        self._start_due()
        return inference.id

    def cancel(self, now: float, request_id: int) -> bool:
        """See `Engine.cancel`. A batch under way runs to its end without telling of this one."""
        self._run(now)
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None:
            self._waiting_rows -= waiting.rows
            return True
        return self._executing.pop(request_id, None) is not None

    def advance(self, now: float) -> list[Event]:
        """See `Engine.advance`."""
        self._run(now)
        events, self._events = self._events, []
        return events

    def next_event(self) -> float | None:
        """See `Engine.next_event`: the next batch to end, or to start because of its age."""
        times = [self._batches[0][0]] if self._batches else []
        due = self._due_s()
        if due is not None:
            times.append(due)
        return min(times, default=None)

    def progress(self, request_id: int) -> int:  # noqa: ARG002 -- these models have no tokens
        """Always 0."""
        return 0

    def throttle(self, now: float, factor: float, after_s: float = 0.0) -> None:
        """See `Engine.throttle`."""
        self._run(now)
        if not 0.0 <= after_s <= 86_400.0:
            raise ValueError("a thermal change must lie within the next day")
        self._throttle.schedule(self._now + after_s, factor)

    def gauges(self) -> Gauges:
        """See `Engine.gauges`."""
        return Gauges(
            running=len(self._executing),
            waiting=len(self._waiting),
            kv_ratio=0.0,
            steps=self._done,
            preemptions=0,
            prompt_tokens=0,
            generated_tokens=0,
            throttle=self._throttle.at(self._now),
        )

    def _run(self, now: float) -> None:
        now = max(now, self._now)
        while (event := self.next_event()) is not None and event <= now:
            self._now = max(event, self._now)
            while self._batches and self._batches[0][0] <= self._now:
                self._end_batch()
            self._start_due()
        self._now = now

    def _due_s(self) -> float | None:
        """When the next batch may start on an idle instance; None without one or without work."""
        if not self._waiting or len(self._batches) >= self._profile.instances:
            return None
        if self._waiting_rows >= self._profile.max_batch:
            return self._now
        oldest = next(iter(self._waiting.values()))
        return oldest.arrived_s + self._profile.max_delay_ms / 1000.0

    def _start_due(self) -> None:
        while (due := self._due_s()) is not None and due <= self._now:
            members: list[_Inference] = []
            rows = 0
            while self._waiting:
                head = next(iter(self._waiting.values()))
                if rows + head.rows > self._profile.max_batch:
                    break
                del self._waiting[head.id]
                head.started_s = self._now
                rows += head.rows
                members.append(head)
                self._executing[head.id] = head
            self._waiting_rows -= rows
            self._started += 1
            end = self._now + self._profile.batch_s(rows) * self._throttle.at(self._now)
            heapq.heappush(self._batches, (end, self._started, members))

    def _end_batch(self) -> None:
        end, _, members = heapq.heappop(self._batches)
        self._done += 1
        for member in members:
            if self._executing.pop(member.id, None) is None:
                continue  # cancelled on the way
            self._events.append(
                Finished(
                    id=member.id,
                    reason=EndReason.STOP,
                    arrived_s=member.arrived_s,
                    started_s=member.started_s,
                    first_token_s=end,
                    ended_s=end,
                    prompt_tokens=0,
                    output_tokens=0,
                    rows=member.rows,
                )
            )
