"""The journal's file: lines appended, and begun anew when it is full, the one before kept beside
it. Trouble with the disk is told once and counted, and never more than that."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ext_authz.clock import Clock
from ext_authz.metrics import Metrics
from ext_authz.recorded import head_line
from ext_authz.settings import JournalSettings

log = logging.getLogger(__name__)

# How often lines are written.
EVERY_S = 0.5
WRITTEN, FAILED = "written", "failed"


class JournalFile:
    """Writes what `take` gives to the file that `settings` names, asked anew each time."""

    def __init__(
        self,
        settings: Callable[[], JournalSettings],
        take: Callable[[], list[str]],
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._take = take
        self._clock = clock
        self._metrics = metrics
        self._due_s = clock.now()
        self._begun: JournalSettings | None = None
        self._writing: asyncio.Task[None] | None = None
        self._trouble: str | None = None

    def tick(self, now: float) -> None:
        """Write what waits if it is time to, beside the loop."""
        if now < self._due_s or self._writing is not None or self._settings().file is None:
            return
        self._due_s = now + EVERY_S
        self._writing = asyncio.create_task(self._write())
        self._writing.add_done_callback(self._written)

    async def close(self) -> None:
        """Write for the last time."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if self._settings().file is not None:
            await self._write()

    def status(self) -> dict[str, Any] | None:
        """How it is, for the status page; None if nothing is recorded."""
        file = self._settings().file
        return None if file is None else {"file": file, "trouble": self._trouble}

    async def _write(self) -> None:
        lines, settings = self._take(), self._settings()
        if not lines:
            return
        head = head_line(self._clock.wall(), self._clock.now(), settings.sample_ratio)
        anew = settings != self._begun
        try:
            await asyncio.to_thread(append, settings, lines, head, anew)
        except OSError as error:
            why = error.strerror or str(error)
            self._metrics.count_times("journal_lines", len(lines), FAILED)
            if self._trouble is None:
                log.error("journal cannot be written: %s %s", settings.file, why)
            self._trouble, self._begun = why, None
            return
        self._begun = settings
        self._metrics.count_times("journal_lines", len(lines), WRITTEN)
        if self._trouble is not None:
            log.warning("journal is written again: %s", settings.file)
            self._trouble = None

    def _written(self, _: asyncio.Task[None]) -> None:
        self._writing = None


def append(settings: JournalSettings, lines: list[str], head: str, anew: bool) -> None:
    """Append `lines`, below a `head` in a file that is new or where a stretch begins `anew`. A file
    that would grow beyond its bytes is put aside as `.1` first. Raises OSError."""
    path = Path(settings.file or "")
    data = "".join(lines).encode()
    size = path.stat().st_size if path.exists() else 0
    if size and size + len(head) + len(data) > settings.max_bytes:
        path.replace(path.with_name(path.name + ".1"))
        size = 0
    if anew or not size:
        # What was torn off by a crash or a full disk stays a line of its own.
        data = (b"\n" if size and not _ends_a_line(path) else b"") + head.encode() + data
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
        file.write(data)


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"
