"""Reload on change of content, and of nothing else.

Modification times and inodes lie: a ConfigMap update swaps a symlink above the file, and may leave
time and size as they were. So the files are read and compared as they are, once a poll.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ext_authz.clock import Clock, SystemClock
from ext_authz.config.compile import Loaded, load_from
from ext_authz.config.files import Files, fingerprint_of, read_regular
from ext_authz.errors import ConfigError

MISSING_AFTER_S = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _News:
    """What one look brought: a configuration, or why there is none."""

    loaded: Loaded | None = None
    error: ConfigError | OSError | None = None


class ConfigWatcher:
    """Keeps the last good configuration of a path current.

    `on_change` gets every new content that loads, once; it may raise ConfigError to refuse it.
    `on_error` gets every new content that does not, once, and OSError when a file has been
    missing for `MISSING_AFTER_S`; what runs goes on running. `initial` is what already runs: it
    is not announced again.
    """

    def __init__(
        self,
        path: Path,
        on_change: Callable[[Loaded], None],
        on_error: Callable[[ConfigError | OSError], None],
        poll_s: float = 1.0,
        *,
        initial: Loaded | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._path = path
        self._on_change = on_change
        self._on_error = on_error
        self._poll_s = poll_s
        self._clock = clock or SystemClock()
        self._missing_since_s: float | None = None
        self._missing_told = False
        self._files: tuple[Path, ...] = initial.files if initial else (path,)
        self._seen = initial.settings.fingerprint if initial else None
        self._fingerprint = self._seen
        self._loaded_at_s = self._clock.now() if initial else None

    @property
    def fingerprint(self) -> str | None:
        """Hexadecimal SHA-256 of the files of the running configuration; None before the first."""
        return self._fingerprint

    @property
    def loaded_at_s(self) -> float | None:
        """Monotonic seconds at which the running configuration was taken over."""
        return self._loaded_at_s

    def poll_once(self, now: float) -> None:
        """Look at the files once, and call back if there is news. `now` is monotonic seconds."""
        self._tell(self._look(now), now)

    async def run(self) -> None:
        """Look every `poll_s` until cancelled. Reads in a thread, calls back on the loop."""
        while True:
            now = self._clock.now()
            try:
                self._tell(await asyncio.to_thread(self._look, now), now)
            except Exception:  # a faulty callback must not end all later reloads in silence
                _log.exception("taking over a changed configuration failed")
            await asyncio.sleep(self._poll_s)

    def _look(self, now: float) -> _News | None:
        known: dict[Path, bytes] = {}
        gone: OSError | None = None
        for path in self._files:
            try:
                known[path] = read_regular(path)
            except OSError as error:
                gone = gone or error
        if gone is not None:
            return self._missing(gone, known, now)
        self._missing_since_s = None
        self._missing_told = False
        return self._load(known)

    def _missing(self, gone: OSError, known: dict[Path, bytes], now: float) -> _News | None:
        """Give a file that is being replaced time to come back, then say so once."""
        if self._missing_since_s is None:
            self._missing_since_s = now
        if now - self._missing_since_s < MISSING_AFTER_S:
            return None
        if self._path in known:  # only a key file is gone: loading names the line that wants it
            return self._load(known)
        if self._missing_told:
            return None
        self._missing_told = True
        return _News(error=gone)

    def _load(self, known: dict[Path, bytes]) -> _News | None:
        # cheap way out: the same files with the same contents as at the last look
        if fingerprint_of(known.get(path) for path in self._files) == self._seen:
            return None
        files = Files(known)
        error: ConfigError | None = None
        loaded: Loaded | None = None
        try:
            loaded = load_from(self._path, files)
        except ConfigError as raised:
            error = raised
        fingerprint = files.fingerprint()
        self._files = files.paths
        if fingerprint == self._seen:
            return None
        self._seen = fingerprint
        if loaded is not None and fingerprint == self._fingerprint:
            return None  # back to what runs
        return _News(loaded, error)

    def _tell(self, news: _News | None, now: float) -> None:
        if news is None:
            return
        if news.loaded is None:
            if news.error is not None:
                self._on_error(news.error)
            return
        try:
            self._on_change(news.loaded)
        except ConfigError as refused:
            self._on_error(refused)
            return
        self._fingerprint = news.loaded.settings.fingerprint
        self._loaded_at_s = now
