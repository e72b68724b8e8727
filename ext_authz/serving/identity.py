"""Whose request it is: from the headers that may carry an API key to a tenant's name.

Keys are compared by SHA-256 digest, one dict look-up, and never kept or logged. The scheme word
`Bearer` is case-insensitive, the key is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from ext_authz.admission.view import NOBODY, Caller

# How clients say that they have sent a request before: the SDKs of OpenAI and Anthropic count from
# 0, gRPC names it in repetitions only.
_SDK_RETRIES, _GRPC_ATTEMPTS = "x-stainless-retry-count", "grpc-previous-rpc-attempts"


class Identity:
    """Looks keys up in the configured headers, in their configured order."""

    def __init__(self, keys: Mapping[bytes, str], headers: tuple[str, ...]) -> None:
        self._keys = keys
        self._headers = headers

    def of(self, headers: Mapping[str, str]) -> Caller:
        """Who sent a request with these (lower-case) headers."""
        first: str | None = None
        conflict = False
        for name in self._headers:
            sent = headers.get(name)
            key = None if sent is None else _key(name, sent)
            if key is None:
                continue
            if first is None:
                first = key
            elif key != first:
                conflict = True
        if first is None:
            return NOBODY
        # "surrogatepass" encodes whatever a str can hold, so no header can raise here.
        digest = sha256(first.encode("utf-8", "surrogatepass")).digest()
        returning = headers.get(_SDK_RETRIES, "0") != "0" or _GRPC_ATTEMPTS in headers
        return Caller(self._keys.get(digest), digest, returning, conflict)


def _key(name: str, sent: str) -> str | None:
    """The key in a header's value, exactly as sent; None if there is none.

    Nothing is trimmed, as Envoy's bucket of a key is found by the same text: with every spelling
    of a key that is accepted here and not folded there, its owner would get a bucket more.
    """
    if name == "authorization":
        scheme, _, sent = sent.partition(" ")
        if scheme.lower() != "bearer":
            return None
        # As the edge does.
        sent = sent.lstrip(" \t")
    return sent or None
