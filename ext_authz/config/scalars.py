"""Single values: from text as written to a number, a duration, a name, an address.

Each reader raises a custom pydantic error that carries a remedy and never the value itself: a
value may be a key that was pasted into the wrong place.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
import re
from urllib.parse import urlsplit

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from ext_authz.config.yaml_tree import Kind, Scalar

FAULT = "config"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,64}")
_HOST = re.compile(r"[a-z0-9._-]{1,253}")
_INFINITE = re.compile(r"[+-]?\.(inf|nan)|[+-]?(inf|infinity|nan)", re.IGNORECASE)
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_MAX_TEXT = 1024


def fault(problem: str, remedy: str) -> PydanticCustomError:
    """The error every reader raises."""
    return PydanticCustomError(FAULT, "{problem}", {"problem": problem, "remedy": remedy})


def _scalar(value: object, wanted: str) -> Scalar:
    if not isinstance(value, Scalar):
        raise fault(f"is not {wanted}", "write a single value")
    if value.kind is Kind.NULL and not value.quoted:
        raise fault("has no value", "give one, or delete the line to get the default")
    return value


def as_text(value: object) -> str:
    """Text; a mapping's key is text already. An unquoted number, boolean or date is refused."""
    if isinstance(value, str):
        text = value
    else:
        scalar = _scalar(value, "a text")
        if scalar.kind is not Kind.TEXT:
            raise fault(f"is an unquoted {scalar.kind}", "quote this, with double quotes")
        text = scalar.text
    if not 1 <= len(text) <= _MAX_TEXT:
        raise fault(f"is not 1 to {_MAX_TEXT} characters long", "write a text of that length")
    if not text.isprintable():
        raise fault("holds characters that do not print", "use printable characters only")
    return text


def as_name(value: object) -> str:
    """A name of ours: 1 to 64 of A-Z a-z 0-9 . _ -"""
    text = as_text(value)
    if not _NAME.fullmatch(text):
        raise fault(
            "is not a name",
            "use 1 to 64 letters, digits, `.`, `_` or `-`; in quotes if it looks like a number",
        )
    return text


def as_header(value: object) -> str:
    """An HTTP header name, in lower case."""
    text = as_text(value).lower()
    if not _HEADER.fullmatch(text):
        raise fault("is not a header name", "write one such as x-request-type")
    return text


def as_path(value: object) -> str:
    """An exact URL path, or a prefix that ends in `*`."""
    text = as_text(value)
    if not text.startswith("/") or "*" in text[:-1] or "?" in text or "#" in text:
        raise fault(
            "is not a path", "start with `/`, without query; only the last letter may be `*`"
        )
    return text


def as_key_text(value: object) -> str:
    """A value taken exactly as written, quoted or not."""
    return _scalar(value, "a text").text


def as_bool(value: object) -> bool:
    """`true` or `false`; the other words YAML knows for them are refused."""
    scalar = _scalar(value, "true or false")
    if scalar.quoted or scalar.text.lower() not in {"true", "false"}:
        raise fault("is not true or false", "write true or false, without quotes")
    return scalar.text.lower() == "true"


def choice(*allowed: str) -> BeforeValidator:
    """One of a few words. `off` among them need not be quoted, though some YAML takes it for a
    boolean: it can mean one thing only."""

    def read(value: object) -> str:
        if isinstance(value, Scalar) and value.kind is Kind.BOOL and value.text in allowed:
            return value.text
        text = as_text(value)
        if text in allowed:
            return text
        near = difflib.get_close_matches(text[:_MAX_TEXT], allowed, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise fault(f"is not one of {', '.join(allowed)}", f"{hint}write one of these")

    return BeforeValidator(read)


def _parse_number(value: object) -> float:
    scalar = _scalar(value, "a number")
    text = scalar.text
    if scalar.quoted:
        raise fault("is text, not a number", "remove the quotes")
    if _INFINITE.fullmatch(text):
        raise fault("is not a finite number", "write a finite number; delete the line for none")
    if scalar.kind is Kind.BOOL:
        raise fault("is a boolean, not a number", "write a number")
    if len(text) > 64 or not _NUMBER.fullmatch(text):
        raise fault("is not a number", "write decimal digits, such as 1000, 0.5 or 1e3")
    if re.match(r"[+-]?0\d", text):
        raise fault("starts with 0, which some read as octal", "remove the leading zeros")
    number = float(text) + 0.0  # + 0.0 turns -0.0 into 0.0
    if not math.isfinite(number):
        raise fault("is not a finite number", "write a finite number; delete the line for none")
    if number < 0:
        raise fault("is negative", "write a number that is not negative")
    return number


def _shown(number: float) -> str:
    return f"{number:.15g}"


def number(low: float, high: float, *, above: bool = False, remedy: str = "") -> BeforeValidator:
    """A finite number from `low` (or above it) to `high`."""

    def read(value: object) -> float:
        result = _parse_number(value)
        if result < low or result > high or (above and result == low):
            word = "above" if above else "at least"
            bounds = f"{word} {_shown(low)} and at most {_shown(high)}"
            raise fault(f"is not {bounds}", remedy or f"write a number {bounds}")
        return result

    return BeforeValidator(read)


def whole(low: int, high: int) -> BeforeValidator:
    """A whole number from `low` to `high`; 1e3 is 1000."""

    def read(value: object) -> int:
        result = _parse_number(value)
        if result != int(result):
            raise fault("is not a whole number", "write a number without a fraction")
        if not low <= result <= high:
            raise fault(f"is not from {low} to {high}", f"write a number from {low} to {high}")
        return int(result)

    return BeforeValidator(read)


def duration(low_s: float, high_s: float) -> BeforeValidator:
    """A time with its unit, in seconds: 100ms, 15s, 2m, 1h."""

    def read(value: object) -> float:
        scalar = _scalar(value, "a duration")
        match = _DURATION.fullmatch(scalar.text[:64])
        if match is None:
            if _NUMBER.fullmatch(scalar.text[:64]):
                raise fault("has no unit", "give a unit, such as 15s or 100ms")
            raise fault("is not a duration", "write a number and a unit, such as 15s or 100ms")
        result = float(match[1]) * _UNIT_S[match[2]]
        if not low_s <= result <= high_s:
            bounds = f"from {_shown(low_s)}s to {_shown(high_s)}s"
            raise fault(f"is not {bounds}", f"write a time {bounds}")
        return result

    return BeforeValidator(read)


def _host_port(host: str | None, port: int | None) -> str | None:
    if host is None or port is None or not 0 <= port <= 65535:
        return None
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return f"{host}:{port}" if _HOST.fullmatch(host) else None
    return f"[{host}]:{port}"


def as_listen(value: object) -> str:
    """`host:port` to listen on; port 0 lets the system choose."""
    text = as_text(value)
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    number_text = port if port.isascii() and port.isdigit() and len(port) <= 5 else "-1"
    address = None if ":" in bare and bare == host else _host_port(bare.lower(), int(number_text))
    if address is None:
        raise fault("is not host:port", "write one such as 0.0.0.0:8080 or [::1]:8080")
    return address


def _split(text: str, default_ports: bool) -> tuple[str, str, str] | None:
    """Scheme, host:port and path of an http(s) URL without secrets, or None."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in {"http", "https"} or parts.query or parts.fragment or " " in text:
        return None
    if "@" in parts.netloc or "\\" in text or port == 0:
        return None
    if port is None and default_ports:
        port = 443 if parts.scheme == "https" else 80
    address = _host_port(parts.hostname, port)
    return None if address is None else (parts.scheme, address, parts.path)


def as_endpoint_url(value: object) -> str:
    """The URL of a model server, normalised to scheme://host:port."""
    split = _split(as_text(value), default_ports=True)
    if split is None or split[2] not in {"", "/"}:
        raise fault(
            "is not the URL of a server",
            "write scheme, host and port only, such as http://10.0.0.7:8000",
        )
    return f"{split[0]}://{split[1]}"


def as_url(value: object) -> str:
    """An http(s) URL without user name, query or fragment."""
    text = as_text(value)
    if _split(text, default_ports=True) is None:
        raise fault("is not an http(s) URL", "write one such as http://127.0.0.1:9090")
    return text
