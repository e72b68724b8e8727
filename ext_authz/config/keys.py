"""API keys: only their SHA-256 digests are ever kept."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

_HEX_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
MAX_KEY_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A mounted secret once read: (line, digest) of each key, and (line, message, remedy)s."""

    digests: tuple[tuple[int, bytes], ...]
    faults: tuple[tuple[int, str, str], ...]


def digest(key: str) -> str:
    """The lower-case hexadecimal SHA-256 of a key's UTF-8 bytes."""
    return hashlib.sha256(key.encode()).hexdigest()


def is_key(text: str) -> bool:
    """Whether a header can carry `text` as a key unchanged: printable ASCII without blanks."""
    return bool(text) and all(0x21 <= ord(letter) <= 0x7E for letter in text)


def parse_digest(text: str) -> bytes | None:
    """The 32 bytes of a hexadecimal digest, or None if `text` is none (perhaps a raw key)."""
    return bytes.fromhex(text) if _HEX_DIGEST.fullmatch(text) else None


def read_key_file(data: bytes) -> KeyFile:
    """The digests of a file with one key a line; blank lines and `#` comments are skipped."""
    if len(data) > MAX_KEY_FILE_BYTES:
        remedy = "split it into several files"
        return KeyFile((), ((1, f"is larger than {MAX_KEY_FILE_BYTES} bytes", remedy),))
    digests: list[tuple[int, bytes]] = []
    faults: list[tuple[int, str, str]] = []
    # split on newlines only: splitlines() would also cut at U+2028 and the like
    for line, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        key = raw.strip()
        if not key or key.startswith(b"#"):
            continue
        if not is_key(key.decode("latin-1")):
            faults.append(
                (line, "is not a key: it holds blanks or other than ASCII", "one key a line")
            )
            continue
        digests.append((line, bytes.fromhex(digest(key.decode("ascii")))))
    if not digests and not faults:
        faults.append((1, "holds no key", "write one key a line"))
    return KeyFile(tuple(digests), tuple(faults))
