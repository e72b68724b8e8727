"""Keeps what was learned over a restart: reads it at the start, saves it now and then and in the
end. Trouble with the file is told once, counted, and never more than that."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

from ext_authz.clock import Clock
from ext_authz.errors import StateError
from ext_authz.metrics import Labels, Metrics
from ext_authz.settings import LearningSettings
from ext_authz.state.state_file import clean_up, read_state, write_state

log = logging.getLogger(__name__)

SAVED, FAILED = "saved", "failed"
# Between two pieces of what is gathered: time for the Checks that have come meanwhile.
PAUSE_S = 0.002


class Keeper:
    """`settings` says where and how often, asked anew each time; `learned` gives what is to be
    saved as plain values, piece by piece, and `recall` takes it and says what of it was left and
    why."""

    def __init__(
        self,
        settings: Callable[[], LearningSettings],
        learned: Callable[[], Generator[None, None, dict[str, object]]],
        recall: Callable[[object], tuple[str, ...]],
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._learned = learned
        self._recall = recall
        self._clock = clock
        self._metrics = metrics
        # When what is in the file was learned; None while there is none.
        self._saved_s: float | None = None
        self._due_s = clock.now()
        self._saving: asyncio.Task[None] | None = None
        self._recalled: tuple[str, ...] | None = None
        self._trouble: str | None = None
        metrics.read_with("learned_state_age_seconds", self._age)

    def start(self) -> None:
        """Take up what is in the file, before anything is decided."""
        settings, now = self._settings(), self._clock.now()
        self._due_s = now + settings.save_every_s
        if settings.state_file is None:
            return
        path = Path(settings.state_file)
        clean_up(path, self._clock.wall())
        try:
            found = read_state(path, self._clock.wall())
        except (StateError, OSError) as error:
            self._recalled = (_why(error),)
            log.warning("learned state %s is ignored: it %s", path, _why(error))
            return
        if found is None:
            log.info("learned state %s: there is none yet", path)
            return
        learned, age_s = found
        self._saved_s = now - age_s
        self._recalled = self._recall(learned)
        if self._recalled:
            left = "; ".join(self._recalled)
            log.warning("learned state %s of %.0f s ago, without: %s", path, age_s, left)
        else:
            log.info("learned state %s of %.0f s ago is taken up", path, age_s)

    def tick(self, now: float) -> None:
        """Save if it is time to; the file is written beside the loop."""
        if now < self._due_s or self._saving is not None:
            return
        settings = self._settings()
        self._due_s = now + settings.save_every_s
        if settings.state_file is not None:
            self._saving = asyncio.create_task(self._save(Path(settings.state_file)))
            self._saving.add_done_callback(self._saved)

    async def close(self) -> None:
        """Save for the last time."""
        if self._saving is not None:
            await asyncio.wait([self._saving])
        path = self._settings().state_file
        if path is not None:
            await self._save(Path(path))

    def status(self) -> dict[str, Any] | None:
        """How it is, for the status page; None if nothing is kept. `left` is what the file had at
        the start that was not taken up, None if there was no file."""
        path = self._settings().state_file
        if path is None:
            return None
        return {
            "file": path,
            "age_s": next((age_s for _, age_s in self._age()), None),
            "left": None if self._recalled is None else list(self._recalled),
            "trouble": self._trouble,
        }

    async def _save(self, path: Path) -> None:
        """What is learned while the file is written is for the next time."""
        now, wall_s = self._clock.now(), self._clock.wall()
        try:
            # The encoding takes milliseconds a pool, the disk as long as it likes.
            learned = await _slowly(self._learned())
            size = await asyncio.to_thread(write_state, path, learned, wall_s)
        except Exception as error:  # whatever it is, the gate goes on
            self._metrics.count("learned_state_saves", FAILED)
            if self._trouble is None:
                log.error("learned state cannot be saved: %s %s", path, _why(error))
            self._trouble = _why(error)
            return
        self._metrics.count("learned_state_saves", SAVED)
        self._saved_s = now
        if self._trouble is not None:
            log.warning("learned state is saved again, %d bytes in %s", size, path)
            self._trouble = None

    def _saved(self, _: asyncio.Task[None]) -> None:
        self._saving = None

    def _age(self) -> Iterator[tuple[Labels, float]]:
        if self._saved_s is not None:
            yield (), self._clock.now() - self._saved_s


async def _slowly(pieces: Generator[None, None, dict[str, object]]) -> dict[str, object]:
    """What a generator gives, with a pause after each of its pieces."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            result: dict[str, object] = end.value
            return result
        await asyncio.sleep(PAUSE_S)


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot be used: {error.strerror or error}"
    return str(error) if isinstance(error, StateError) else f"met a fault of ours: {error!r}"
