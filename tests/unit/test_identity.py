"""Whose request it is: which header, which scheme, which key."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_authz.serving.identity import Identity


def digest(key: str) -> bytes:
    return sha256(key.encode()).digest()


KEYS = {digest("k-alpha"): "alpha", digest("k-beta"): "beta", digest("schlüssel"): "gamma"}
IDENTITY = Identity(KEYS, ("authorization", "x-api-key", "api-key"))


def found(identity: Identity, headers: dict[str, str]) -> tuple[str | None, bool]:
    """The tenant, and whether two keys were sent."""
    caller = identity.of(headers)
    return caller.tenant, caller.conflict


@pytest.mark.parametrize(
    ("headers", "tenant"),
    [
        ({"authorization": "Bearer k-alpha"}, "alpha"),
        ({"authorization": "bearer k-alpha"}, "alpha"),
        ({"authorization": "BEARER   k-alpha"}, "alpha"),
        ({"x-api-key": "k-alpha"}, "alpha"),
        ({"api-key": "k-alpha"}, "alpha"),
        ({"x-api-key": "schlüssel"}, "gamma"),
        ({"authorization": "Basic azphbHBoYQ==", "x-api-key": "k-beta"}, "beta"),
        ({"authorization": "Bearer", "x-api-key": "k-beta"}, "beta"),
        ({"authorization": "Basic azphbHBoYQ=="}, None),
        ({"authorization": "Bearer K-ALPHA"}, None),
        ({"authorization": "k-alpha"}, None),
        ({"authorization": "Bearer k-alpha,Bearer k-alpha"}, None),
        ({"authorization": "Bearer k-alpha k-beta"}, None),
        ({"x-api-key": "Bearer k-alpha"}, None),
        ({"x-api-key": ""}, None),
        ({"x-api-key": "   "}, None),
        ({"x-api-key": " k-alpha"}, None),
        ({"x-api-key": "k-alpha\t"}, None),
        ({"x-api-key": "k-alpha\u00a0"}, None),
        ({"authorization": "Bearer \u3000k-alpha"}, None),
        ({"authorization": "Bearer k-alpha "}, None),
        ({"authorization": " Bearer k-alpha"}, None),
        ({"cookie": "k-alpha"}, None),
        ({}, None),
    ],
)
def test_which_header_carries_the_key(headers: dict[str, str], tenant: str | None) -> None:
    """The scheme's letter case does not matter, the key's does, and only configured headers do."""
    assert found(IDENTITY, headers) == (tenant, False)


def test_of_two_keys_the_first_configured_header_decides() -> None:
    """A conflict is told, and always resolved in the configured order, not the client's."""
    pair = {"x-api-key": "k-alpha", "authorization": "Bearer k-beta"}
    turned = dict(reversed(pair.items()))
    assert found(IDENTITY, pair) == found(IDENTITY, turned) == ("beta", True)
    other = Identity(KEYS, ("x-api-key", "authorization"))
    assert found(other, pair) == ("alpha", True)


def test_the_same_key_twice_is_no_conflict() -> None:
    """Clients that fill both headers with one key are fine."""
    pair = {"x-api-key": "k-alpha", "authorization": "Bearer k-alpha"}
    assert found(IDENTITY, pair) == ("alpha", False)


def test_an_unknown_key_is_not_rescued_by_a_known_one() -> None:
    """The deciding header decides, even if it decides for nobody."""
    pair = {"authorization": "Bearer junk", "x-api-key": "k-alpha"}
    assert found(IDENTITY, pair) == (None, True)


def test_a_header_that_is_not_configured_is_not_read() -> None:
    """A key in a header nobody named is no key."""
    assert found(Identity(KEYS, ("authorization",)), {"x-api-key": "k-alpha"}) == (None, False)


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=())))
def test_odd_characters_are_unknown_and_raise_nothing(key: str) -> None:
    """Any text, lone surrogates and undecodable bytes included, is looked up without a fault."""
    for header in ("x-api-key", "authorization"):
        known = key.lstrip(" \t") in {"k-alpha", "k-beta", "schlüssel"}
        assert (IDENTITY.of({header: f"Bearer {key}"}).tenant is None) or known


@pytest.mark.parametrize("key", ["\ud800", "k-alpha\udcff", "\x00", "\x7f", "a\nb"])
def test_odd_keys(key: str) -> None:
    """What no configuration can hold belongs to nobody."""
    assert found(IDENTITY, {"x-api-key": key}) == (None, False)


@pytest.mark.parametrize(
    ("headers", "returning"),
    [
        ({}, False),
        ({"x-stainless-retry-count": "0"}, False),
        ({"x-stainless-retry-count": "1"}, True),
        ({"x-stainless-retry-count": "junk"}, True),
        ({"grpc-previous-rpc-attempts": "1"}, True),
    ],
)
def test_who_says_that_it_has_asked_before(headers: dict[str, str], returning: bool) -> None:
    """SDKs and gRPC count their repetitions; the digest of the key tells keys apart."""
    caller = IDENTITY.of({"x-api-key": "k-alpha", **headers})
    assert (caller.returning, caller.key) == (returning, digest("k-alpha"))
