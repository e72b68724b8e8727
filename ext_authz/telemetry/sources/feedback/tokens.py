"""The shared token by which a gate knows its agents."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from ext_authz.errors import TelemetryError

MAX_TOKEN_FILE_BYTES = 16 * 1024


def read_tokens(path: Path) -> tuple[bytes, ...]:
    """The tokens in a file, one a line. Blocks. Raises TelemetryError, which quotes none."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TOKEN_FILE_BYTES + 1)
    except OSError as error:
        raise TelemetryError(f"token file cannot be read: {error.strerror}") from error
    if len(content) > MAX_TOKEN_FILE_BYTES:
        raise TelemetryError(f"token file is longer than {MAX_TOKEN_FILE_BYTES} bytes")
    tokens = tuple(line.strip() for line in content.splitlines() if line.strip())
    if not all(token.isascii() and token.decode().isprintable() for token in tokens):
        raise TelemetryError("token file holds something other than printable ASCII")
    if not tokens:
        raise TelemetryError("token file holds no token")
    return tokens


def token_digest(token: bytes) -> bytes:
    """What is kept and compared of a token."""
    return hashlib.sha256(token).digest()


def shows(metadata: Iterable[tuple[str, str | bytes]] | None, digests: tuple[bytes, ...]) -> bool:
    """Whether a caller's metadata show a token of one of the digests. How long it takes does not
    depend on which."""
    shown = b""
    for key, value in metadata or ():
        if key == "authorization":
            text = value if isinstance(value, bytes) else value.encode()
            scheme, _, rest = text.partition(b" ")
            shown = rest.strip() if scheme.lower() == b"bearer" else b""
    digest = token_digest(shown)
    matches = [hmac.compare_digest(digest, one) for one in digests]
    return bool(shown) and any(matches)
