"""Reading files so that one load sees one moment, and its fingerprint is of what it saw."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

READ_LIMIT_BYTES = (1 << 20) + 1  # one more than any file may have, so that too much shows


def read_regular(path: Path) -> bytes:
    """At most `READ_LIMIT_BYTES` of a regular file.

    Raises OSError, also for a pipe or a device: those could block for ever.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return stream.read(READ_LIMIT_BYTES)


class Files:
    """What was read, each file once. `known` holds contents that were read a moment ago."""

    def __init__(self, known: dict[Path, bytes] | None = None) -> None:
        self._known = known or {}
        self._contents: dict[Path, bytes | None] = {}

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every file asked for, also those that could not be read."""
        return tuple(self._contents)

    def read(self, path: Path) -> bytes:
        """The content of `path`. Raises OSError."""
        content = self._contents.get(path)
        if content is not None:
            return content
        self._contents[path] = None
        content = self._known[path] if path in self._known else read_regular(path)
        self._contents[path] = content
        return content

    def fingerprint(self) -> str:
        """Hexadecimal SHA-256 of all contents in the order asked for; names do not count."""
        return fingerprint_of(self._contents.values())


def fingerprint_of(contents: Iterable[bytes | None]) -> str:
    """Hexadecimal SHA-256 of several contents; None is a file that cannot be read."""
    total = hashlib.sha256()
    for content in contents:
        total.update(b"-" if content is None else hashlib.sha256(content).digest())
    return total.hexdigest()
