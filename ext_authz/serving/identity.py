"""Whose request it is: from the headers that may carry an API key to a tenant's name.

Keys are compared by SHA-256 digest, one dict look-up, and never kept or logged. The scheme word
`Bearer` is case-insensitive, the key is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256

from ext_authz.model import value


@value
class Identified:
    """`tenant` None: no key, or one nobody has. `conflict`: two headers carried different keys,
    of which the first in the configured order decided."""

    tenant: str | None
    conflict: bool = False


class Identity:
    """Looks keys up in the configured headers, in their configured order."""

    def __init__(self, keys: Mapping[bytes, str], headers: tuple[str, ...]) -> None:
        self._keys = keys
        self._headers = headers

    def of(self, headers: Mapping[str, str]) -> Identified:
        """The tenant of a request with these (lower-case) headers."""
        found = list(self._presented(headers))
        if not found:
            return Identified(None)
        # "surrogatepass" encodes whatever a str can hold, so no header can raise here; what is
        # not Unicode gets bytes that no key has.
        tenant = self._keys.get(sha256(found[0].encode("utf-8", "surrogatepass")).digest())
        return Identified(tenant, conflict=any(key != found[0] for key in found[1:]))

    def _presented(self, headers: Mapping[str, str]) -> Iterator[str]:
        for name in self._headers:
            value = headers.get(name)
            if value is None:
                continue
            if name == "authorization":
                scheme, _, value = value.strip().partition(" ")
                if scheme.lower() != "bearer":
                    continue
            if key := value.strip():
                yield key
