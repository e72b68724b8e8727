"""What clients saw: the lines that the k6 script prints, one for each try."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

# Refusals: over a limit, or nothing that can serve. A client may come back.
REFUSALS = (429, 503)


@dataclass(frozen=True, slots=True)
class Try:
    """One try. `number` counts a tenant's arrivals, `tries` the tries of one arrival, both from 1.
    `at_s` counts from the beginning of the load, `late_s` from when it was due. `code` 0 is that of
    a client that left. `told_s` is the hint of a refusal."""

    tenant: str
    number: int
    tries: int
    at_s: float
    took_s: float
    code: int
    late_s: float = 0.0
    admission: str = ""
    reason: str = ""
    told_s: float | None = None
    ttft_s: float | None = None
    prompt_tokens: int = 0

    @property
    def served(self) -> bool:
        """Whether it got what it asked for, however late."""
        return 200 <= self.code < 300

    @property
    def refused(self) -> bool:
        """Whether it was told to stay away; all others were let in."""
        return self.code in REFUSALS

    @property
    def ended_s(self) -> float:
        """When its client had the answer."""
        return self.at_s + self.took_s


@dataclass(frozen=True, slots=True)
class Sent:
    """All tries of a run by the time they were sent. `began_unix_s` is where `at_s` counts from."""

    began_unix_s: float
    tries: tuple[Try, ...]


def read(lines: Iterable[str]) -> Sent:
    """From the console of k6. Raises ValueError if it never began."""
    began_unix_s, tries = None, []
    for line in lines:
        one = json.loads(line)
        if "began_unix_ms" in one:
            began_unix_s = one["began_unix_ms"] / 1000.0
        else:
            tries.append(_try(one))
    if began_unix_s is None:
        raise ValueError("the load generator never began")
    return Sent(began_unix_s, tuple(sorted(tries, key=lambda t: t.at_s)))


def _try(one: dict[str, Any]) -> Try:
    return Try(
        tenant=one["tenant"],
        number=one["number"],
        tries=one["tries"],
        at_s=one["at_ms"] / 1000.0,
        took_s=one["took_ms"] / 1000.0,
        code=one["code"],
        late_s=one["late_ms"] / 1000.0,
        admission=one["admission"],
        reason=one["reason"],
        told_s=_seconds(one.get("told_ms")),
        ttft_s=_seconds(one.get("ttft_ms")),
        prompt_tokens=one["prompt_tokens"],
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000.0
