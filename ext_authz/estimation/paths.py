"""One spelling for every path, so that a rule or a shape is found whatever way it was written.

PURE. What is folded: the query is split off, percent-escapes are decoded once, doubled and trailing
slashes go, dot segments are resolved. Letter case is kept (model names depend on it); the registry
of shapes ignores it. What another server might read differently (dot segments, backslashes, control
characters, an over-long path) is reported as ambiguous and never priced as a recognised shape.
`..;` and an escape that survives the one decoding are left alone: no shape matches them.
"""

from __future__ import annotations

from urllib.parse import unquote

from ext_authz.model import value

MAX_PATH_CHARS = 2048


@value
class CleanPath:
    """A path in its one spelling. `ambiguous` when servers may disagree about what it names."""

    path: str
    ambiguous: bool


def clean(raw: str) -> CleanPath:
    """The one spelling of `raw`, a request target with or without its query. Never raises."""
    path = raw.partition("?")[0].partition("#")[0]
    ambiguous = len(path) > MAX_PATH_CHARS
    path = path[:MAX_PATH_CHARS]
    if "%" in path:
        path = unquote(path, errors="replace")
    if not path.isprintable() or "\\" in path:
        path = "".join(c if c.isprintable() and c != "\\" else "?" for c in path)
        ambiguous = True
    if "/." in path:
        return CleanPath(_resolve(path), ambiguous=True)
    if not path.startswith("/"):
        path = "/" + path
        ambiguous = True
    while "//" in path:
        path = path.replace("//", "/")
    return CleanPath(path.rstrip("/") or "/", ambiguous)


def _resolve(path: str) -> str:
    """`path` without empty and dot segments; nothing climbs above the root."""
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment not in {"", "."}:
            kept.append(segment)
    return "/" + "/".join(kept)
