"""One small file of learned state: JSON, versioned, written whole or not at all.

It is written beside itself, forced to disk and renamed, so that a reader sees the old one or the
new one: after a crash at any moment, and while two processes write during a handover.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ext_authz.errors import StateError

VERSION = 1
# The first key of the file. What begins otherwise is somebody else's, and never written over.
KIND = "ext_authz_learned"
_BEGINNING = f'{{"{KIND}":'.encode()
# A busy pool takes some 55 kB.
MAX_BYTES = 32 << 20
# Older, and traffic, models and machines are probably others.
MAX_AGE_S = 7 * 24 * 3600.0
# What a process that was killed left behind. Nobody writes for so long.
ABANDONED_S = 3600.0
# Encoding holds the interpreter, writing lets go of it; so a piece is what may delay a decision.
_PIECES_DEPTH, _PIECE_CHARACTERS = 6, 4096


def read_state(path: Path, wall_s: float) -> tuple[dict[str, object], float] | None:
    """What was learned, and how many seconds ago it was saved; None if there is no file.

    `wall_s` is Unix time. Raises StateError, which says why, for a file that must be ignored, and
    OSError for one that cannot be read.
    """
    try:
        with _opened(path) as descriptor:
            data = _bytes_of(descriptor)
    except FileNotFoundError:
        return None
    if not data:
        raise StateError("is empty")
    if not data.startswith(_BEGINNING):
        raise StateError("is not a file of learned state")
    saved = _parsed(data)
    if saved.get(KIND) != VERSION:
        raise StateError(f"is of version {str(saved.get(KIND))[:16]}, not {VERSION}")
    saved_s, learned = saved.get("saved_s"), saved.get("learned")
    if not isinstance(saved_s, (int, float)) or not isinstance(learned, dict):
        raise StateError("is damaged")
    age_s = wall_s - saved_s
    # From the future, by a clock that was wrong then or is now, its age is as good as unknown.
    if not -MAX_AGE_S <= age_s <= MAX_AGE_S:
        raise StateError(
            f"is dated {age_s / 86_400:.1f} days ago, more than {MAX_AGE_S / 86_400:g}"
        )
    return learned, max(0.0, age_s)


def write_state(path: Path, learned: dict[str, object], wall_s: float) -> int:
    """Write what was `learned` up to `wall_s` (Unix time): the file's size in bytes.

    Raises OSError if it cannot be written, and StateError if it must not: the file there is none
    of ours, or the new one could not be read again. The old one stays then.
    """
    # A link stays one, and points to the new file.
    path = Path(os.path.realpath(path))
    _refuse_to_replace(path)
    descriptor, name = tempfile.mkstemp(".tmp", _prefix(path), path.parent)  # mode 0600
    try:
        try:
            size = _write(descriptor, {KIND: VERSION, "saved_s": wall_s, "learned": learned})
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    _sync_directory(path.parent)
    return size


def clean_up(path: Path, wall_s: float) -> None:
    """Remove what processes that were killed while they wrote left beside the file."""
    path = Path(os.path.realpath(path))
    with suppress(OSError):
        for left in path.parent.iterdir():
            if left.name.startswith(_prefix(path)) and left.name.endswith(".tmp"):
                with suppress(OSError):
                    if wall_s - left.stat().st_mtime > ABANDONED_S:
                        left.unlink()


def _prefix(path: Path) -> str:
    return f".{path.name}."


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    # A pipe without a writer must not hold up the start.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise StateError("is not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def _bytes_of(descriptor: int) -> bytes:
    data = bytearray()
    while part := os.read(descriptor, 1 << 20):
        data += part
        if len(data) > MAX_BYTES:
            raise StateError(f"is larger than {MAX_BYTES} bytes")
    return bytes(data)


def _parsed(data: bytes) -> dict[str, object]:
    try:
        saved = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StateError("is damaged") from error
    return saved if isinstance(saved, dict) else {}


def _refuse_to_replace(path: Path) -> None:
    try:
        with _opened(path) as descriptor:
            beginning = os.read(descriptor, len(_BEGINNING))
    except FileNotFoundError:
        return
    if beginning and beginning != _BEGINNING:
        raise StateError("is not a file of learned state; move it away, or name another")


def _write(descriptor: int, document: dict[str, object]) -> int:
    size, waiting = 0, ""
    for piece in _pieces(document, _PIECES_DEPTH):
        waiting += piece
        if len(waiting) >= _PIECE_CHARACTERS:
            size = _append(descriptor, waiting, size)
            waiting = ""
    return _append(descriptor, waiting + "\n", size)


def _append(descriptor: int, text: str, size: int) -> int:
    data = memoryview(text.encode())
    size += len(data)
    if size > MAX_BYTES:
        raise StateError(f"would be larger than {MAX_BYTES} bytes")
    while data:
        data = data[os.write(descriptor, data) :]
    return size


def _pieces(value: object, depth: int) -> Iterator[str]:
    """The JSON of `value`, its parts down to `depth` one by one."""
    if depth and isinstance(value, dict):
        separator = "{"
        for key, part in value.items():
            yield f"{separator}{json.dumps(str(key))}:"
            yield from _pieces(part, depth - 1)
            separator = ","
        yield "}" if value else "{}"
    elif depth and isinstance(value, list):
        separator = "["
        for part in value:
            yield separator
            yield from _pieces(part, depth - 1)
            separator = ","
        yield "]" if value else "[]"
    else:
        yield json.dumps(value, separators=(",", ":"))


def _sync_directory(folder: Path) -> None:
    """Some file systems cannot; the rename is whole all the same."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
