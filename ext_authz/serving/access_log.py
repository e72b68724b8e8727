"""StreamAccessLogs: how admitted requests end.

Entries are feedback, never the ledger: they come late, doubled or not at all, and leases end
what they do not. A backlog is worked off in bounded batches with a turn of the event loop
between them, so that it cannot stall concurrent Checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from ext_authz.clock import Clock
from ext_authz.errors import CodecError
from ext_authz.serving.codec import Codec
from ext_authz.serving.gate import Gate

# About 0.3 ms of work.
BATCH = 32


class AccessLogSink:
    """Takes in streams of access-log messages."""

    def __init__(self, gate: Gate, codec: Codec, clock: Clock) -> None:
        self._gate = gate
        self._codec = codec
        self._clock = clock

    async def consume(self, messages: AsyncIterator[bytes]) -> bytes:
        """Take in one stream until it ends; the (empty) response."""
        async for message in messages:
            try:
                entries = self._codec.decode_access_log(message)
            except CodecError:
                self._gate.metrics.count("access_log_entries", "malformed")
                continue
            for done, entry in enumerate(entries, start=1):
                self._gate.ended(entry, self._clock.now())
                if done % BATCH == 0:
                    await asyncio.sleep(0)
        return self._codec.empty_access_log_response()
