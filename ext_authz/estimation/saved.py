"""What a state file may hold where something else was expected.

PURE.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

_Result = TypeVar("_Result")


def at_once(pieces: Generator[None, None, _Result]) -> _Result:
    """What a generator gives that works piece by piece."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            result: _Result = end.value
            return result


def fields(saved: object) -> dict[str, Any]:
    """`saved` as named fields, whose values may be anything. Raises TypeError if it is none."""
    if not isinstance(saved, dict):
        raise TypeError("not a mapping")
    return saved
