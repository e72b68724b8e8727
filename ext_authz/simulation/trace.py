"""A recorded trace: one request a row, as a CSV with a header.

Columns: `arrived_s`, `prompt_bytes`, `output_tokens`, `e2e_s`; and where known `ttft_s`,
`output_cap_tokens`, `endpoint`, `tenant`; others are left unread. A first line `# slots=8` tells
how many requests an endpoint runs at once. Other recordings are read by the other names of their
columns, see `ALIASES`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import nan
from pathlib import Path

from ext_authz.errors import ExtAuthzError

MOST_BYTES = 64 << 20
MOST_ROWS = 500_000
MOST_ENDPOINTS = 1000
MOST_SLOTS = 1_000_000

# Names under which other recorders write a column; the benchmark client whose recording of a vLLM
# server is in the tests writes these.
ALIASES = {"t": "arrived_s", "chars": "prompt_bytes", "out": "output_tokens",
           "ttft": "ttft_s", "e2e": "e2e_s", "max_tokens": "output_cap_tokens"}  # fmt: skip
# Numbers beyond these are mistakes: a time of nothing, and what no clock or counter shows.
LEAST_S, MOST = 1e-6, 1e12
NEEDED = ("arrived_s", "prompt_bytes", "output_tokens", "e2e_s")


class TraceError(ExtAuthzError):
    """A trace that cannot be replayed: says which line and column, and what to do."""


@dataclass(frozen=True, slots=True)
class Row:
    """One request. `cap_tokens` is the explicit bound on its output, `ttft_s` the time to its
    first token; None if unknown."""

    arrived_s: float
    prompt_bytes: float
    output_tokens: float
    e2e_s: float
    ttft_s: float | None = None
    cap_tokens: int | None = None
    endpoint: str = ""
    tenant: str = ""

    @property
    def capped(self) -> bool:
        """Whether its output ended because it had to."""
        return self.cap_tokens is not None and self.output_tokens >= self.cap_tokens


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of their arrival; `slots` None if the file does not tell."""

    rows: tuple[Row, ...]
    slots: int | None


def load_trace(path: Path) -> Trace:
    """Read a trace file. Raises TraceError, OSError."""
    if path.stat().st_size > MOST_BYTES:
        raise TraceError(f"{path}: over {MOST_BYTES >> 20} MiB; cut it into parts")
    try:
        return read_trace(path.read_text(encoding="utf-8").splitlines(), str(path))
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not text in UTF-8; write it as CSV") from error


def read_trace(lines: Iterable[str], name: str) -> Trace:
    """Read the lines of a trace; `name` is where problems are said to be. Raises TraceError."""
    numbered = enumerate(lines, start=1)
    slots, header = None, ""
    at = 0
    for at, line in numbered:
        if not line.startswith("#"):
            header = line
            break
        slots = _slots(line, f"{name}:{at}") or slots
    where = f"{name}:{max(at, 1)}"
    columns = [ALIASES.get(column.strip(), column.strip()) for column in _cells(header, where)]
    for column in NEEDED:
        if column not in columns:
            raise TraceError(f"{where}: no column {column}; add it to the header")
    for column in columns:
        if columns.count(column) > 1:
            raise TraceError(f"{where}: two columns {column[:40]}; leave one out")
    rows = tuple(sorted(_rows(numbered, columns, name), key=lambda row: row.arrived_s))
    if not rows:
        raise TraceError(f"{where}: no requests below the header; record some")
    return Trace(rows, slots)


def _rows(lines: Iterator[tuple[int, str]], columns: list[str], name: str) -> Iterator[Row]:
    endpoints: set[str] = set()
    count = 0
    for at, line in lines:
        where = f"{name}:{at}"
        if not line.strip():
            continue
        count += 1
        if count > MOST_ROWS:
            raise TraceError(f"{where}: more than {MOST_ROWS} requests; cut the file into parts")
        cells = _cells(line, where)
        if len(cells) != len(columns):
            raise TraceError(
                f"{where}: {len(cells)} cells under {len(columns)} columns; quote or cut them"
            )
        row = _row(dict(zip(columns, cells, strict=True)), where)
        endpoints.add(row.endpoint)
        if len(endpoints) > MOST_ENDPOINTS:
            raise TraceError(
                f"{where}: endpoint: more than {MOST_ENDPOINTS}; leave some endpoints out"
            )
        yield row


def _row(cell: dict[str, str], where: str) -> Row:
    cap = _known(cell, "output_cap_tokens", where, 1.0)
    return Row(
        arrived_s=_number(cell, "arrived_s", where, -1e12),
        prompt_bytes=_number(cell, "prompt_bytes", where, 0.0),
        output_tokens=_number(cell, "output_tokens", where, 0.0),
        e2e_s=_number(cell, "e2e_s", where, LEAST_S),
        ttft_s=_known(cell, "ttft_s", where, LEAST_S),
        cap_tokens=None if cap is None else int(cap),
        endpoint=cell.get("endpoint", ""),
        tenant=cell.get("tenant", ""),
    )


def _cells(line: str, where: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error as error:
        raise TraceError(f"{where}: {error}; write it as CSV") from error


def _known(cell: dict[str, str], column: str, where: str, least: float) -> float | None:
    return _number(cell, column, where, least) if cell.get(column, "").strip() else None


def _number(cell: dict[str, str], column: str, where: str, least: float) -> float:
    try:
        value = float(cell[column])
    except ValueError:
        value = nan
    if not least <= value <= MOST:
        raise TraceError(
            f"{where}: {column}: {cell[column][:40]!r} is no number from {least:g} to {MOST:g};"
            " mend the cell"
        )
    return value


def _slots(line: str, where: str) -> int | None:
    name, _, text = line.lstrip("# ").partition("=")
    if name.strip() != "slots":
        return None
    text = text.strip()
    if not (re.fullmatch("[0-9]{1,7}", text) and 1 <= int(text) <= MOST_SLOTS):
        raise TraceError(f"{where}: slots: {text[:40]!r} is no count; write # slots=8")
    return int(text)
