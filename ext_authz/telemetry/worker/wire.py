"""What the two processes say to each other: pickled values on a pair of sockets that only they
have, each with its length before it.

What is unpickled was pickled by this very code, in a process that was started for it.
"""

from __future__ import annotations

import asyncio
import io
import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ext_authz.settings import Pool
from ext_authz.snapshot import Report

_LENGTH = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class Wanted:
    """To the worker: run the sources that `sources` describe (as `TelemetrySettings` has them)
    for the endpoints of `pools`, and no others."""

    sources: tuple[object, ...] = ()
    pools: Mapping[str, Pool] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Said:
    """From the worker: what one source told since the last time.

    `report` is the newest of `reports`, `error` the newest of `failures`; `failing` if that came
    last. Counts of samples dropped are those of all of them.
    """

    name: str
    reports: int = 0
    failures: int = 0
    report: Report | None = None
    error: str | None = None
    failing: bool = False


Batch = tuple[Said, ...]
"""What the worker sends: an empty one says that it lives."""


def encoded(message: Wanted | Batch) -> bytes:
    """One message as it travels."""
    buffer = io.BytesIO()
    buffer.write(bytes(_LENGTH.size))
    pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = _REDUCERS
    pickler.dump(message)
    body = buffer.getbuffer()
    _LENGTH.pack_into(body, 0, len(body) - _LENGTH.size)
    return bytes(body)


async def receive(reader: asyncio.StreamReader) -> Any:
    """The next message. Raises EOFError (as `IncompleteReadError`) or ConnectionError when the
    other side is gone."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return pickle.loads(await reader.readexactly(length))  # noqa: S301  see the module


def _proxy(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


# Read-only mappings are all over our frozen values, and pickle knows none.
_REDUCERS: dict[type, Any] = {MappingProxyType: lambda one: (_proxy, (dict(one),))}
