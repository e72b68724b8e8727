"""YAML as a tree with lines: keys as written, duplicates told, hostile input bounded."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ext_authz.config.locate import field_text
from ext_authz.config.yaml_tree import MAX_BYTES, Kind, Scalar, read_yaml
from ext_authz.errors import Problem


def plain(node: Any) -> Any:
    """A tree with its scalars as bare text."""
    if isinstance(node, Scalar):
        return node.text
    if isinstance(node, list):
        return [plain(child) for child in node]
    return {key: plain(child) for key, child in node.items()}


def told(text: str | bytes) -> list[Problem]:
    """The problems of a text."""
    return read_yaml(text if isinstance(text, bytes) else text.encode(), "f")[1]


def test_keys_and_values_keep_their_text() -> None:
    """Nothing is converted: octal, grouped digits, dates and booleans are as written."""
    tree, problems = read_yaml(b"no: 0123\n1_000: 2024-01-02\n'x': \"yes\"\n", "f")
    assert tree is not None
    assert not problems
    assert plain(tree.data) == {"no": "0123", "1_000": "2024-01-02", "x": "yes"}
    kinds = [(value.kind, value.quoted) for value in tree.data.values()]
    assert kinds == [(Kind.NUMBER, False), (Kind.DATE, False), (Kind.TEXT, True)]


def test_scalar_hides_its_text() -> None:
    """A value may be a secret, so its repr does not show it."""
    assert "secret" not in repr(Scalar("secret", Kind.TEXT, quoted=False))


def test_merge_keys() -> None:
    """Merged keys are filled in, earlier sources win, own keys win over all, without complaint."""
    text = (
        "one: &one {a: 1, b: 1}\ntwo: &two {<<: *one, b: 2, c: 2}\n"
        "x: {b: own, <<: *one}\ny: {<<: [*one, *two]}\nz: {<<: *two}\n"
    )
    tree, problems = read_yaml(text.encode(), "f")
    assert tree is not None
    assert not problems
    data = plain(tree.data)
    assert data["x"] == {"b": "own", "a": "1"}
    assert data["y"] == {"a": "1", "b": "1", "c": "2"}
    assert data["z"] == {"a": "1", "b": "2", "c": "2"}
    assert tree.line_of(("x", "a")) == 1
    assert tree.line_of(("x", "b")) == 3


@pytest.mark.parametrize(
    ("text", "line", "field", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "a", "is written twice, on lines 1 and 3"),
        ("a:\n  - x: 1\n    x: 1\n", 3, "a[0].x", "is written twice, on lines 2 and 3"),
        ("a: {'0': 1, 0: 2}\n", 1, "a.0", "is written twice, on lines 1 and 1"),
        ("a: &x {b: 1, b: 2}\nc: *x\n", 1, "a.b", "is written twice, on lines 1 and 1"),
        ("a: {<<: {b: 1}, <<: {c: 1}}\n", 1, "a", "merges twice"),
        ("a: {<<: 5}\n", 1, "a", "merges something that is not a mapping"),
        ("a: {<<: [5, {b: 1}]}\n", 1, "a", "merges something that is not a mapping"),
        ("? {x: 1}\n: 2\n", 1, "(file)", "has a key that is not text"),
        ("a: !!python/name:os.system x\n", 1, "a", "has a YAML tag"),
        ("a: !mine {}\n", 1, "a", "has a YAML tag"),
        ("a: !!set {x}\n", 1, "a", "has a YAML tag"),
    ],
)
def test_doubtful_yaml_is_told(text: str, line: int, field: str, message: str) -> None:
    """Each is told exactly once, at its line and field, and always with a remedy."""
    (problem,) = told(text)
    assert (problem.line, problem.field, problem.message) == (line, field, message)
    assert problem.remedy


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "is empty"),
        ("a:\n\tb: 1\n", 2, "is indented with a tab"),
        ("a: [1, 2\nb: 3\n", 2, "is not valid YAML"),
        ("a: 1\n b: 2\n", 2, "is not valid YAML"),
        ("a: 'x\n", 2, "is not valid YAML"),
        ("a: *none\n", 1, "is not valid YAML"),
        ("a: &x 1\nb: &x 2\n", 2, "is not valid YAML"),
        ("a: 1\n---\nb: 2\n", 2, "holds a second document"),
        (b"a: 1\nb: \xff\n", 2, "is not UTF-8 text"),
        (b"a: 1\nb: \x00\n", 2, "holds a control character"),
        ("a: " + "[" * 40, 1, "nests deeper than 32 levels"),
        ("a: " + "[" * 100_000, 1, "is not valid YAML"),
        ("- " * 100_000, 1, "nests deeper than 32 levels"),
        ("a: &x [*x]\n", 1, "nests deeper than 32 levels"),
        ("a: &x\n  <<: *x\n", 1, "merges without end"),
        ("a: &x\n  b: {<<: [*x, *x]}\n", 2, "merges without end"),
        (b"a" * (MAX_BYTES + 1), 1, "is larger than 1048576 bytes"),
        ("a: [" + "1," * 250_000 + "]", 1, "holds more than 200000 values"),
    ],
    ids=range(18),
)
def test_unreadable_yaml_is_refused(text: str | bytes, line: int, message: str) -> None:
    """No tree, one problem, with the line and a remedy."""
    data = text if isinstance(text, bytes) else text.encode()
    tree, problems = read_yaml(data, "f")
    assert tree is None
    assert len(problems) == 1
    assert problems[0].line == line
    assert message in problems[0].message
    assert problems[0].remedy


@pytest.mark.parametrize("merge", [False, True], ids=["lists", "merges"])
def test_alias_bombs_are_bounded(merge: bool) -> None:
    """Ten aliases of ten aliases ... are refused long before they unfold."""
    names = [f"n{index}" for index in range(13)]
    lines = ["n0: &n0 {x: 1}"]
    for before, name in itertools.pairwise(names):
        refs = ", ".join([f"*{before}"] * 10)
        lines.append(f"{name}: &{name} " + (f"{{<<: [{refs}]}}" if merge else f"[{refs}]"))
    tree, problems = read_yaml("\n".join(lines).encode(), "f")
    assert tree is None
    assert len(problems) == 1


def test_byte_order_mark_and_line_ends() -> None:
    """Files from other systems read the same, with the same lines."""
    tree, problems = read_yaml(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n", "f")
    assert tree is not None
    assert not problems
    assert plain(tree.data) == {"a": "1", "b": "2"}
    assert tree.line_of(("b",)) == 2


def test_field_text_hides_and_shortens() -> None:
    """Paths are written as a user would, without what may be a key and without endless parts."""
    assert field_text(("a", 0, "b")) == "a[0].b"
    assert field_text(("a", "/x.y", "b")) == 'a["/x.y"].b'
    assert field_text(("t", "api_key_sha256", "sk-1", "x")) == "t.api_key_sha256"
    assert field_text(("t", "api_key_sha256", 3)) == "t.api_key_sha256[3]"
    assert len(field_text(("x" * 5000,))) < 80
