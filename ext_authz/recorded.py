"""Recorded traffic: what the journal's file says of each request, as text and back.

PURE. One line of JSON for a request, once it is over or was refused, and now and then one of what
the endpoints carried that was not ours. Nothing a client wrote is in it but the names of its model
and path, no key and no prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ext_authz.errors import ExtAuthzError
from ext_authz.model import Reason, Verdict, WorkEstimate

VERSION = 1
MOST_TEXT = 200
# Numbers beyond this are mistakes.
MOST = 1e12


Beside = tuple[float, float]


class RecordError(ExtAuthzError):
    """A line that is none of ours: says which file, line and field, and what to do."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `at_s` is Unix time. `cost` None: it was refused before its body was read.
    `deadline_s` is the client's own, None if it had none below the promise `slo_s`. `seconds` None:
    it did not run, or nobody told how it ended; `made_tokens` is what it put out, where counted.
    `met` is what was beside it on its endpoint when it came and `lived` the mean of that while it
    ran: (requests, prompt tokens of our own).
    """

    at_s: float
    tenant: str
    type: str
    path: str
    model: str | None
    cost: WorkEstimate | None
    slo_s: float | None
    deadline_s: float | None
    stream: bool
    verdict: Verdict
    would_be: Verdict
    reason: Reason
    pool: str | None
    seconds: float | None = None
    status: int = 0
    made_tokens: int | None = None
    met: Beside | None = None
    lived: Beside | None = None

    @property
    def ran(self) -> bool:
        """Whether it was let in, whatever the verdict on record."""
        return self.verdict is not Verdict.REJECT and self.pool is not None


@dataclass(frozen=True, slots=True)
class Carried:
    """What one endpoint carried at `at_s` (Unix time) beside our own: `foreign` requests; tokens
    its KV cache holds, and by how much throttled clocks lengthen execution."""

    at_s: float
    endpoint: str
    foreign: float
    kv_capacity_tokens: float | None
    thermal_factor: float


@dataclass(frozen=True, slots=True)
class Recording:
    """All that was recorded, each in the order of time. Of the requests `sample_ratio` are here;
    `torn` lines at the end of a file were cut off in the middle."""

    requests: tuple[Request, ...]
    carried: tuple[Carried, ...]
    sample_ratio: float = 1.0
    torn: int = 0


def head_line(wall_s: float, now: float, sample_ratio: float) -> str:
    """What every stretch of a file begins with: the Unix time at `now` (monotonic seconds, of
    which all lines below are)."""
    return _line({"journal": VERSION, "wall": wall_s, "now": now, "sample": sample_ratio})


def request_line(request: Request) -> str:
    """One request; its `at_s` is monotonic here."""
    cost = request.cost
    said = {
        "t": round(request.at_s, 6),
        "who": request.tenant,
        "type": request.type,
        "path": request.path[:MOST_TEXT],
        "model": request.model and request.model[:MOST_TEXT],
        "cost": cost and [cost.prompt_tokens, cost.output_tokens, cost.most_output_tokens],
        "slo": request.slo_s,
        "deadline": request.deadline_s,
        "stream": request.stream or None,
        "did": request.verdict,
        "would": None if request.would_be is request.verdict else request.would_be,
        "why": request.reason,
        "pool": request.pool,
        "took": None if request.seconds is None else round(request.seconds, 6),
        "status": request.status or None,
        "made": request.made_tokens,
        "met": request.met,
        "lived": request.lived,
    }
    return _line({name: value for name, value in said.items() if value is not None})


def carried_line(now: float, endpoints: Mapping[str, tuple[float, float | None, float]]) -> str:
    """Of each endpoint (foreign requests, tokens of its KV cache, thermal factor)."""
    return _line({"t": round(now, 3), "carried": endpoints})


# Made once: with separators of its own `json.dumps` makes one for each call.
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True)


def _line(value: object) -> str:
    return _ENCODER.encode(value) + "\n"


@dataclass(slots=True)
class Reader:
    """Takes lines of one or several files in order. Raises RecordError for what is no line of
    ours; the last of a file may be torn."""

    requests: list[Request] = field(default_factory=list)
    carried: list[Carried] = field(default_factory=list)
    sample_ratio: float = 1.0
    torn: int = 0
    _bad: RecordError | None = None
    # Unix time less monotonic time, of the stretch being read.
    _offset_s: float | None = None

    def take(self, line: str, where: str) -> None:
        """One line, which `where` (file:line) names."""
        value = _object(line)
        begins = value is not None and "journal" in value
        if self._bad is not None:
            # A process that ended in the middle of a line, and the next that began after it.
            if not begins:
                raise self._bad
            self.torn, self._bad = self.torn + 1, None
        if value is None:
            self._bad = RecordError(f"{where}: is no JSON object; delete the line")
            return
        cell = _Cell(value, where)
        if begins:
            self._head(cell)
        elif self._offset_s is None:
            raise RecordError(
                f"{where}: comes before the line that a journal begins with; give its whole file"
            )
        elif "carried" in value:
            self._carried(cell)
        else:
            self.requests.append(_request(cell, self._offset_s))

    def end_file(self) -> None:
        """A file is over: its last line may be torn."""
        if self._bad is not None:
            self.torn, self._bad = self.torn + 1, None

    def recording(self) -> Recording:
        """All that was taken, in order."""
        requests = sorted(self.requests, key=lambda request: request.at_s)
        carried = sorted(self.carried, key=lambda each: each.at_s)
        return Recording(tuple(requests), tuple(carried), self.sample_ratio, self.torn)

    def _head(self, cell: _Cell) -> None:
        version = cell.number("journal")
        if version != VERSION:
            raise RecordError(
                f"{cell.where}: journal: version {version:g}, not {VERSION};"
                " replay it with the release that wrote it"
            )
        self._offset_s = cell.number("wall") - cell.number("now", -MOST)
        sample = cell.number("sample")
        if not 0.0 < sample <= 1.0:
            raise RecordError(f"{cell.where}: sample: is not above 0 and at most 1; mend the line")
        # Stretches may differ; what is scarcer says how much stands for how much.
        self.sample_ratio = min(self.sample_ratio, sample)

    def _carried(self, cell: _Cell) -> None:
        at_s = cell.number("t", -MOST) + (self._offset_s or 0.0)
        endpoints = cell.value["carried"]
        if not isinstance(endpoints, dict):
            raise cell.wrong("carried", "an object by endpoint")
        for name, numbers in endpoints.items():
            if not (isinstance(numbers, list) and len(numbers) == 3):
                raise cell.wrong("carried", "three numbers for each endpoint")
            each = _Cell(dict(zip(("foreign", "kv", "hot"), numbers, strict=True)), cell.where)
            foreign, kv = each.number("foreign"), each.known("kv")
            self.carried.append(Carried(at_s, name, foreign, kv, each.number("hot")))


def _object(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True)
class _Cell:
    """One line's object, read field by field."""

    value: dict[str, Any]
    where: str

    def wrong(self, name: str, wanted: str) -> RecordError:
        return RecordError(f"{self.where}: {name}: is not {wanted}; mend or delete the line")

    def number(self, name: str, least: float = 0.0) -> float:
        value: Any = self.value.get(name)
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        # Not a number lies nowhere.
        if not (plain and least <= value <= MOST):
            raise self.wrong(name, f"a number from {least:g} to {MOST:g}")
        return float(value)

    def known(self, name: str) -> float | None:
        return None if self.value.get(name) is None else self.number(name)

    def text(self, name: str) -> str:
        value = self.value.get(name)
        if not isinstance(value, str) or len(value) > MOST_TEXT:
            raise self.wrong(name, f"a text of at most {MOST_TEXT} characters")
        return value

    def maybe(self, name: str) -> str | None:
        return None if self.value.get(name) is None else self.text(name)

    def verdict(self, name: str) -> Verdict:
        try:
            return Verdict(self.text(name))
        except ValueError as error:
            raise self.wrong(name, f"one of {', '.join(Verdict)}") from error

    def reason(self, name: str) -> Reason:
        try:
            return Reason(self.text(name))
        except ValueError as error:
            raise self.wrong(name, "a reason that this release knows") from error

    def cost(self) -> WorkEstimate | None:
        value = self.value.get("cost")
        if value is None:
            return None
        if not (isinstance(value, list) and len(value) == 3):
            raise self.wrong("cost", "three counts of tokens")
        each = _Cell({str(place): number for place, number in enumerate(value)}, self.where)
        return WorkEstimate(*(int(each.number(str(place))) for place in range(3)))

    def beside(self, name: str) -> Beside | None:
        value = self.value.get(name)
        if value is None:
            return None
        if not (isinstance(value, list) and len(value) == 2):
            raise self.wrong(name, "a count of requests and one of tokens")
        each = _Cell({name: value[0], "tokens": value[1]}, self.where)
        return each.number(name), each.number("tokens")


def _request(cell: _Cell, offset_s: float) -> Request:
    verdict = cell.verdict("did")
    made = cell.known("made")
    return Request(
        at_s=cell.number("t", -MOST) + offset_s,
        tenant=cell.text("who"),
        type=cell.text("type"),
        path=cell.text("path"),
        model=cell.maybe("model"),
        cost=cell.cost(),
        slo_s=cell.known("slo"),
        deadline_s=cell.known("deadline"),
        stream=cell.value.get("stream") is True,
        verdict=verdict,
        would_be=verdict if cell.value.get("would") is None else cell.verdict("would"),
        reason=cell.reason("why"),
        pool=cell.maybe("pool"),
        seconds=cell.known("took"),
        status=int(cell.known("status") or 0),
        made_tokens=None if made is None else int(made),
        met=cell.beside("met"),
        lived=cell.beside("lived"),
    )
