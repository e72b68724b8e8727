"""YAML text to a plain tree that still knows its lines, and takes every key as written.

PyYAML's own constructors turn `no` into False, `0123` into 83 and let the last of two equal keys
win; this walks the composed nodes instead, so a scalar stays text plus the kind a plain loader
would have seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

import yaml

from ext_authz.config.locate import Tree, field_text
from ext_authz.errors import Problem

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 200_000

_Loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_TAG = "tag:yaml.org,2002:"


class Kind(StrEnum):
    """What a plain YAML loader would have made of a scalar."""

    TEXT = "text"
    NUMBER = "number"
    BOOL = "boolean"
    DATE = "date"
    NULL = "empty value"


_KINDS = {
    "str": Kind.TEXT,
    "merge": Kind.TEXT,
    "value": Kind.TEXT,
    "int": Kind.NUMBER,
    "float": Kind.NUMBER,
    "bool": Kind.BOOL,
    "timestamp": Kind.DATE,
    "null": Kind.NULL,
}


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value as written. Its text may be a secret, so `repr` leaves it out."""

    text: str = field(repr=False)
    kind: Kind
    quoted: bool


Node: TypeAlias = "Scalar | list[Node] | dict[str, Node]"
YamlPath: TypeAlias = "tuple[str | int, ...]"


class _RefusedError(Exception):
    """Reading cannot go on: one problem says why."""

    def __init__(self, line: int, message: str, remedy: str) -> None:
        super().__init__(message)
        self.line, self.message, self.remedy = line, message, remedy


def read_yaml(data: bytes, file: str) -> tuple[Tree | None, list[Problem]]:
    """The tree of `data`, and what is wrong with it as YAML.

    No tree means that nothing beyond the problems can be said. With a tree, the problems are
    duplicate keys and the like, of which the first was kept so that checking can go on.
    """
    try:
        text = _decode(data)
        _measure(text)
        root = _compose(text)
        walk = _Walk(file)
        tree = Tree(walk.visit(root, (), 0), walk.lines)
    except _RefusedError as refused:
        return None, [Problem(file, refused.line, "(file)", refused.message, refused.remedy)]
    return tree, walk.problems


def _decode(data: bytes) -> str:
    if len(data) > MAX_BYTES:
        raise _RefusedError(
            1, f"is larger than {MAX_BYTES} bytes", "split keys off into api_key_files"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _RefusedError(line, "is not UTF-8 text", "save the file as UTF-8") from None
    if bad := _CONTROL.search(text):
        line = text.count("\n", 0, bad.start()) + 1
        raise _RefusedError(line, "holds a control character", "delete it")
    return text


def _syntax(text: str, error: yaml.YAMLError) -> _RefusedError:
    mark = getattr(error, "problem_mark", None)
    row = 0 if mark is None else mark.line
    lines = text.split("\n")
    shown = lines[row] if row < len(lines) else ""
    if "\t" in shown[: len(shown) - len(shown.lstrip())]:
        return _RefusedError(row + 1, "is indented with a tab", "indent with spaces")
    # libyaml's phrases are constants; the pure Python ones quote the file, which may hold secrets
    detail = getattr(error, "problem", None) if yaml.__with_libyaml__ else None
    return _RefusedError(
        row + 1,
        f"is not valid YAML: {detail or 'syntax error'}",
        "correct the indentation, quotes or brackets on this line or just above it",
    )


def _measure(text: str) -> None:
    """Refuse by events what would make composing deep, huge or ambiguous."""
    depth = documents = events = 0
    try:
        for event in yaml.parse(text, Loader=_Loader):
            events += 1
            line = 1 if event.start_mark is None else event.start_mark.line + 1
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise _RefusedError(line, "holds a second document", "keep one, without `---`")
            elif isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > MAX_DEPTH:
                    raise _RefusedError(line, f"nests deeper than {MAX_DEPTH} levels", "flatten it")
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if events > MAX_NODES:
                raise _RefusedError(line, f"holds more than {MAX_NODES} values", "make it smaller")
    except yaml.YAMLError as error:
        raise _syntax(text, error) from None


def _compose(text: str) -> yaml.Node:
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise _syntax(text, error) from None
    if root is None:
        raise _RefusedError(1, "is empty", "start it with `admission_control:`")
    return root


class _Walk:
    """One pass over composed nodes; what it visits is counted, since aliases multiply."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._visited = 0
        self._reported: set[tuple[int, int]] = set()
        self.lines: dict[YamlPath, int] = {}
        self.problems: list[Problem] = []

    def visit(self, node: yaml.Node, path: YamlPath, depth: int) -> Node:
        """The tree of `node`, its lines noted under `path`."""
        line = node.start_mark.line + 1
        self._visited += 1
        if self._visited > MAX_NODES:
            raise _RefusedError(
                line, f"aliases unfold to more than {MAX_NODES} values", "use fewer"
            )
        if depth > MAX_DEPTH:
            raise _RefusedError(line, f"nests deeper than {MAX_DEPTH} levels", "flatten it")
        self.lines.setdefault(path, line)
        if isinstance(node, yaml.MappingNode):
            self._check_tag(node, path, "map")
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            self._check_tag(node, path, "seq")
            return [
                self.visit(child, (*path, index), depth + 1)
                for index, child in enumerate(node.value)
            ]
        kind = _KINDS.get(str(node.tag).removeprefix(_TAG))
        if kind is None:
            self._problem(node, path, "has a YAML tag", "delete the word that starts with `!`")
        # the style of a plain scalar is None, and in libyaml's binding an empty text
        quoted = isinstance(node, yaml.ScalarNode) and bool(node.style)
        return Scalar(str(node.value), kind or Kind.TEXT, quoted)

    def _mapping(self, node: yaml.MappingNode, path: YamlPath, depth: int) -> dict[str, Node]:
        result: dict[str, Node] = {}
        for key, (key_node, value) in self._entries(node, path, depth).items():
            self.lines.setdefault((*path, key), key_node.start_mark.line + 1)
            result[key] = self.visit(value, (*path, key), depth + 1)
        return result

    def _entries(
        self, node: yaml.MappingNode, path: YamlPath, depth: int
    ) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Own keys first, then what merges add: an own key beats a merged one silently."""
        own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        merge: yaml.Node | None = None
        for key_node, value in node.value:
            self._visited += 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(key_node, path, "has a key that is not text", "use a plain key")
            elif key_node.tag == _TAG + "merge":
                if merge is not None:
                    self._problem(key_node, path, "merges twice", "write `<<: [*one, *other]`")
                merge = merge or value
            elif (key := str(key_node.value)) in own:
                first = own[key][0].start_mark.line + 1
                self._problem(
                    key_node,
                    (*path, key),
                    f"is written twice, on lines {first} and {key_node.start_mark.line + 1}",
                    "delete one of them",
                )
            else:
                own[key] = (key_node, value)
        if merge is not None:
            for base in self._bases(merge, path):
                if depth >= MAX_DEPTH or self._visited > MAX_NODES:
                    line = merge.start_mark.line + 1
                    raise _RefusedError(line, "merges without end", "merge fewer mappings")
                for key, entry in self._entries(base, path, depth + 1).items():
                    own.setdefault(key, entry)
        return own

    def _bases(self, merge: yaml.Node, path: YamlPath) -> list[yaml.MappingNode]:
        nodes = merge.value if isinstance(merge, yaml.SequenceNode) else [merge]
        bases = [node for node in nodes if isinstance(node, yaml.MappingNode)]
        if len(bases) != len(nodes):
            self._problem(
                merge, path, "merges something that is not a mapping", "write `<<: *anchor`"
            )
        return bases

    def _check_tag(self, node: yaml.Node, path: YamlPath, expected: str) -> None:
        if node.tag != _TAG + expected:
            self._problem(node, path, "has a YAML tag", "delete the word that starts with `!`")

    def _problem(self, node: yaml.Node, path: YamlPath, message: str, remedy: str) -> None:
        mark = node.start_mark
        if (mark.line, mark.column) not in self._reported:  # an alias shows the same node again
            self._reported.add((mark.line, mark.column))
            where = field_text(path) or "(file)"
            self.problems.append(Problem(self._file, mark.line + 1, where, message, remedy))
