"""A recorded trace: one request a row, as a CSV with a header.

Columns: `arrived_s`, `prompt_bytes`, `output_tokens`, `e2e_s`; and where known `ttft_s`,
`output_cap_tokens`, `endpoint`. A first line `# slots=8` tells how many requests an endpoint runs
at once. Other recordings are read by the other names of their columns, see `ALIASES`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from ext_authz.errors import ExtAuthzError

MOST_BYTES = 64 << 20
MOST_ROWS = 500_000

# Names under which other recorders write a column; the benchmark client whose recording of a vLLM
# server is in the tests writes these.
ALIASES = {"t": "arrived_s", "chars": "prompt_bytes", "out": "output_tokens",
           "ttft": "ttft_s", "e2e": "e2e_s", "max_tokens": "output_cap_tokens"}  # fmt: skip
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
    cap_tokens: float | None = None
    endpoint: str = ""


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
    columns = [ALIASES.get(column.strip(), column.strip()) for column in header.split(",")]
    missing = [column for column in NEEDED if column not in columns]
    if missing:
        raise TraceError(f"{name}:{max(at, 1)}: no column {missing[0]}; add it to the header")
    rows = tuple(sorted(_rows(numbered, columns, name), key=lambda row: row.arrived_s))
    if not rows:
        raise TraceError(f"{name}:{at}: no requests; record some")
    return Trace(rows, slots)


def _rows(lines: Iterator[tuple[int, str]], columns: list[str], name: str) -> Iterator[Row]:
    for count, (at, line) in enumerate(lines):
        if count >= MOST_ROWS:
            raise TraceError(f"{name}:{at}: more than {MOST_ROWS} requests; cut it into parts")
        if not line.strip():
            continue
        cells = next(csv.reader([line]))
        if len(cells) != len(columns):
            raise TraceError(
                f"{name}:{at}: {len(cells)} cells under {len(columns)} columns; quote or cut them"
            )
        cell = dict(zip(columns, cells, strict=True))
        where = f"{name}:{at}"
        yield Row(
            arrived_s=_number(cell, "arrived_s", where, -1e12),
            prompt_bytes=_number(cell, "prompt_bytes", where, 0.0),
            output_tokens=_number(cell, "output_tokens", where, 0.0),
            e2e_s=_number(cell, "e2e_s", where, 1e-6),
            ttft_s=_known(cell, "ttft_s", where),
            cap_tokens=_known(cell, "output_cap_tokens", where),
            endpoint=cell.get("endpoint", ""),
        )


def _known(cell: dict[str, str], column: str, where: str) -> float | None:
    return _number(cell, column, where, 1e-6) if cell.get(column, "").strip() else None


def _number(cell: dict[str, str], column: str, where: str, least: float) -> float:
    try:
        value = float(cell[column])
    except ValueError:
        value = float("nan")
    if not isfinite(value) or value < least:
        raise TraceError(
            f"{where}: {column}: {cell[column][:40]!r} is no number from {least:g}; mend the cell"
        )
    return value


def _slots(line: str, where: str) -> int | None:
    name, _, text = line.lstrip("# ").partition("=")
    if name.strip() != "slots":
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise TraceError(f"{where}: slots: {text.strip()[:40]!r} is no count; write # slots=8")
    return int(text)
