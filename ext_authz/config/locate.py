"""Where something is in the file: paths to lines, and how a path is written for people."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

Loc: TypeAlias = "tuple[str | int, ...]"

# what stands below these may be a key that someone pasted into the wrong place
SECRET_KEYS = frozenset({"api_key", "api_key_sha256", "api_key_files", "api_keys", "key", "keys"})
_LONGEST_PART = 64
_SIMPLE = re.compile(r"[A-Za-z0-9_-]+")


def field_text(path: Loc) -> str:
    """`a.b[0]["/c"].d`. Parts that might be secret or are unreasonably long are left out."""
    text = ""
    secret = False
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif secret:
            break
        else:
            shown = part if len(part) <= _LONGEST_PART else part[:8] + "..."
            shown = "".join(letter if letter.isprintable() else "?" for letter in shown)
            if not _SIMPLE.fullmatch(shown):
                text += f'["{shown}"]'
            else:
                text += f".{shown}" if text else shown
            secret = part in SECRET_KEYS
    return text


class Tree:
    """A document's plain data, with the line of every path in it.

    `prune` takes parts out, so that what is well formed can be checked further although its
    neighbour is not; places are still told as they stand in the file.
    """

    def __init__(self, data: Any, lines: dict[Loc, int]) -> None:
        self.data = data
        self._lines = lines
        self._origins: dict[Loc, list[int]] = {}
        self._keys: dict[int, list[str]] = {}

    def path_of(self, loc: Loc) -> Loc:
        """The written path of a place in `data`.

        A number into a mapping means its n-th key (tenants may be a list or a mapping), and what
        lies below a single value is that value (an endpoint may be just a URL).
        """
        path: Loc = ()
        node = self.data
        for part in loc:
            if isinstance(node, dict):
                key = self._nth_key(node, part)
                path = (*path, key)
                node = node.get(key)
            elif isinstance(node, list):
                index = part if isinstance(part, int) else -1
                path = (*path, self._origins[path][index] if path in self._origins else part)
                node = node[index] if 0 <= index < len(node) else None
            elif node is None:
                path = (*path, part)
            else:
                break
        return path

    def line_of(self, path: Loc) -> int:
        """The line of a written path, or of the nearest thing around it."""
        for end in range(len(path), -1, -1):
            if (line := self._lines.get(path[:end])) is not None:
                return line
        return 1

    def prune(self, locs: list[Loc]) -> None:
        """Take the things at `locs` (places in `data`) out of `data`."""
        self._keys.clear()
        targets = {self._key_path(loc) for loc in locs}
        # deepest and last first, so that what is still to go keeps its place
        for target in sorted(targets, key=lambda t: (len(t), _order(t)), reverse=True):
            self._remove(target)
        self._keys.clear()

    def _key_path(self, loc: Loc) -> Loc:
        """`loc` with numbers into mappings replaced by keys, cut where `data` ends."""
        node = self.data
        path: Loc = ()
        for part in loc:
            if isinstance(node, dict):
                key = self._nth_key(node, part)
                if key not in node:
                    break
                path, node = (*path, key), node[key]
            elif isinstance(node, list) and isinstance(part, int) and 0 <= part < len(node):
                path, node = (*path, part), node[part]
            else:
                break
        return path

    def _nth_key(self, node: dict[str, Any], part: str | int) -> str | int:
        """`part`, or the key it counts to. Listed once: there may be thousands of tenants."""
        if isinstance(part, str) or not 0 <= part < len(node):
            return part
        keys = self._keys.get(id(node))
        if keys is None:
            keys = self._keys[id(node)] = list(node)
        return keys[part]

    def _remove(self, target: Loc) -> None:
        if not target:
            self.data = {}
            return
        node = self.data
        for part in target[:-1]:
            node = node[part]
        if isinstance(node, list):
            where = self.path_of(target[:-1])
            self._origins.setdefault(where, list(range(len(node)))).pop(int(target[-1]))
        del node[target[-1]]


def _order(path: Loc) -> tuple[tuple[int, str], ...]:
    return tuple((part, "") if isinstance(part, int) else (-1, part) for part in path)
