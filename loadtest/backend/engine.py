"""What every engine model speaks: work in, events out, time as an argument.

PURE. Times are monotonic seconds given by the caller; an engine never looks at a clock.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class EndReason(StrEnum):
    """Why a request left the engine."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class EngineFullError(Exception):
    """The waiting queue is at its limit; nothing was accepted."""


class WorkTooLargeError(ValueError):
    """The work could never run on this profile, however long it waits."""


@dataclass(frozen=True, slots=True)
class Work:
    """One sequence, or one inference of `rows` rows on a fixed-shape model.

    `cap_tokens` bounds the output, None leaves it to the model; 0 means prefill only. `exact` makes
    the output run to the cap instead of ending by itself.
    """

    prompt_tokens: int = 0
    cap_tokens: int | None = None
    exact: bool = False
    rows: int = 1


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Sequence `id` produced its first token at `at_s`."""

    id: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The life of one request. `first_token_s` is the end of the prefill or of the batch;
    `started_s` and `first_token_s` are None when it was cancelled before getting there."""

    id: int
    reason: EndReason
    arrived_s: float
    started_s: float | None
    first_token_s: float | None
    ended_s: float
    prompt_tokens: int
    output_tokens: int
    rows: int = 1
    preemptions: int = 0


Event = FirstToken | Finished


@dataclass(frozen=True, slots=True)
class Gauges:
    """What an engine holds at one moment, and how much it did since it began.

    `kv_ratio` is 0..1. `steps` counts forward steps, or batches on a fixed-shape model;
    `prompt_tokens` prompts computed (once each) and `generated_tokens` tokens put out so far.
    """

    running: int
    waiting: int
    kv_ratio: float
    steps: int
    preemptions: int
    prompt_tokens: int
    generated_tokens: int
    throttle: float


class Engine(Protocol):
    """A model server in virtual time. `now` never runs backwards: an earlier value counts as the
    latest one seen."""

    def submit(self, now: float, work: Work) -> int:
        """Accept `work` and return its id.

        Raises EngineFullError when too much waits, WorkTooLargeError when it could never run.
        """

    def cancel(self, now: float, request_id: int) -> bool:
        """Drop a request wherever it is; False when it had already ended. No event follows."""

    def advance(self, now: float) -> list[Event]:
        """Everything that happened up to `now` and was not handed out before, in order."""

    def next_event(self) -> float | None:
        """When `advance` is worth calling next; None while there is nothing to do."""

    def progress(self, request_id: int) -> int:
        """Output tokens produced so far; 0 for an id that is unknown or ended."""

    def throttle(self, now: float, factor: float, after_s: float = 0.0) -> None:
        """Lengthen every step that starts `after_s` from `now` or later by `factor`.

        Raises ValueError for a factor or delay out of bounds or too many changes pending.
        """

    def gauges(self) -> Gauges:
        """The state as of the last call that carried a time."""


class Throttle:
    """The thermal factor over time: each change holds until the next one."""

    MAX_PENDING = 64
    MAX_FACTOR = 100.0

    def __init__(self) -> None:
        self._changes: list[tuple[float, float]] = []
        self._factor = 1.0

    def schedule(self, at_s: float, factor: float) -> None:
        """From `at_s` on multiply by `factor`. Raises ValueError beyond the bounds."""
        if not 0.01 <= factor <= self.MAX_FACTOR:
            raise ValueError(f"thermal factor must be between 0.01 and {self.MAX_FACTOR:g}")
        if len(self._changes) >= self.MAX_PENDING:
            raise ValueError(f"at most {self.MAX_PENDING} thermal changes may be pending")
        insort(self._changes, (at_s, factor), key=lambda change: change[0])

    def at(self, now: float) -> float:
        """The factor in force at `now`; to be asked in the order of time."""
        while self._changes and self._changes[0][0] <= now:
            self._factor = self._changes.pop(0)[1]
        return self._factor
