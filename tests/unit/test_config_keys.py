"""API keys: hashed at load, compared as digests, never shown."""

from __future__ import annotations

import hashlib
import traceback
from pathlib import Path

import pytest

from ext_authz.config import load
from ext_authz.config.keys import digest, parse_digest, read_key_file
from ext_authz.errors import ConfigError

CANARY = "sk-canary-5f1e7c0b9d"
PIECES = [CANARY[start : start + 8] for start in range(10, len(CANARY) - 7)]


def written(tmp_path: Path, tenants: str, **files: bytes) -> Path:
    """A configuration with these tenants, and key files beside it."""
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    path = tmp_path / "config.yaml"
    path.write_text(f"admission_control:\n  tenants:\n{tenants}")
    return path


def test_digest_is_sha256_of_utf8() -> None:
    """The digest is the known SHA-256, and reads back as its bytes in either case."""
    known = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
    assert digest("foo") == known
    assert parse_digest(known) == parse_digest(known.upper()) == bytes.fromhex(known)


@pytest.mark.parametrize("text", ["", "foo", "2c" * 31, "2c" * 33, "2g" * 32, "2c" * 32 + "\n"])
def test_other_texts_are_no_digests(text: str) -> None:
    """Anything but 64 hexadecimal digits is taken for a raw key."""
    assert parse_digest(text) is None


def test_key_file_lines() -> None:
    """Blank lines, comments, a byte order mark and both line ends are tolerated."""
    data = b"\xef\xbb\xbfone\r\n\n# a comment\n  two\t\nthree"
    found = read_key_file(data)
    assert not found.faults
    assert found.digests == tuple(
        (line, hashlib.sha256(key).digest())
        for line, key in [(1, b"one"), (4, b"two"), (5, b"three")]
    )


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", 1),
        (b"# nothing\n\n", 1),
        (b"ok\nno key\n", 2),
        (b"ok\nk\xc3\xa9y\n", 2),
        (b"a\x00b", 1),
    ],
)
def test_bad_key_files(data: bytes, line: int) -> None:
    """An empty file and what cannot be a header value are faults with their line."""
    ((at, message, remedy),) = read_key_file(data).faults
    assert at == line
    assert message
    assert remedy


def test_digest_of_digits_only_needs_no_quotes(tmp_path: Path) -> None:
    """A digest that looks like a number is taken as written, leading zeros included."""
    text = "0" * 4 + "1" * 60
    path = written(tmp_path, f"    a: {{api_key_sha256: [{text}]}}\n")
    assert load(path).settings.keys == {bytes.fromhex(text): "a"}


def test_key_files_are_hashed_and_not_kept(tmp_path: Path) -> None:
    """Keys of a mounted file become digests of their tenant; the file is told as read."""
    path = written(tmp_path, "    a: {api_key_files: [k]}\n", k=f"{CANARY}\n".encode())
    loaded = load(path)
    assert loaded.settings.keys == {bytes.fromhex(digest(CANARY)): "a"}
    assert loaded.files == (path, tmp_path / "k")
    assert CANARY not in repr(loaded)


def test_same_key_in_file_and_digest(tmp_path: Path) -> None:
    """One key for two tenants is refused however it is given; twice for one tenant is not."""
    tenants = (
        f"    a: {{api_key_sha256: [{digest(CANARY)}], api_key_files: [k, k]}}\n"
        "    b: {api_key_files: [k]}\n"
    )
    path = written(tmp_path, tenants, k=CANARY.encode())
    with pytest.raises(ConfigError) as caught:
        load(path)
    (problem,) = caught.value.problems
    assert problem.line == 4
    assert problem.message == "tenants a and b have the same key"


def test_faults_of_key_files_name_the_file_and_line(tmp_path: Path) -> None:
    """What is wrong inside a key file is told there, after the problems of the configuration."""
    path = written(tmp_path, "    a: {weight: 0, api_key_files: [k]}\n", k=b"x\nnot a key\n")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert [(Path(p.file).name, p.line) for p in caught.value.problems] == [
        ("config.yaml", 3),
        ("k", 2),
    ]


def test_tenant_without_keys_is_a_warning(tmp_path: Path) -> None:
    """Nobody can be a tenant without a key, which may be meant."""
    (_, warning) = load(written(tmp_path, "    a: {}\n")).warnings
    assert (warning.line, warning.message) == (3, "tenant a has no key: nobody can be it")


@pytest.mark.parametrize(
    "tenants",
    [
        f"    - {{name: a, api_key_sha256: [{CANARY}]}}\n",
        f"    - {{name: a, api_key_sha256: {CANARY}}}\n",
        f"    - {{name: a, api_key_sha256: {{{CANARY}: 1, {CANARY}: 2}}}}\n",
        f"    - {{name: a, api_key_sha256: [[{CANARY}]]}}\n",
        f"    - {{name: a, api_key: {CANARY}}}\n",
        f"    - {{name: a, key: {{{CANARY}: {CANARY}}}}}\n",
        f"    - {{name: '{CANARY} {CANARY}'}}\n",
        f"    - {{name: a, weight: {CANARY}, demote: {CANARY}, limits: {CANARY}}}\n",
        f"    - {CANARY}\n",
        f"    - *{CANARY}\n",
        f"    - !{CANARY} x\n",
        f"    - 'x\n  {CANARY}: [\n",
        f"  - {CANARY}: :\n\t{CANARY}\n",
        "    - {name: a, api_key_files: [k]}\n",
    ],
)
def test_errors_never_show_a_key(tmp_path: Path, tenants: str) -> None:
    """Wherever a raw key was pasted, no eight letters of it stand in error or traceback."""
    path = written(tmp_path, tenants, k=f"{CANARY} {CANARY}\n".encode())
    with pytest.raises(ConfigError) as caught:
        load(path)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value.problems)
    assert caught.value.__context__ is None
    assert not [piece for piece in PIECES if piece in shown]
