"""What a state file may hold where something else was expected.

PURE.
"""

from __future__ import annotations

from typing import Any


def fields(saved: object) -> dict[str, Any]:
    """`saved` as named fields, whose values may be anything. Raises TypeError if it is none."""
    if not isinstance(saved, dict):
        raise TypeError("not a mapping")
    return saved
