"""How admitted requests end, told as Envoy's access log tells it."""

from __future__ import annotations

import queue
import re
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

import grpc

from ext_authz.serving.wire import compile_messages
from tests.benchmarks.names import DATA, DECISION_ID, LOGS_PATH

# How long an admitted request runs, and Envoy's flush interval as `render` writes it.
RUNS_S = 0.1
FLUSH_S = 0.02
_ID = re.compile(rb"[0-9a-f]{12}-[0-9a-f]+")
_ENDPOINT = re.compile(rb"127\.0\.0\.[0-9]:[0-9]+")
NOWHERE = b"127.0.0.1:1"

End = tuple[bytes, bytes]
"""The id of a decision, and the endpoint that it named: what was served elsewhere teaches nothing,
and would cost nothing."""


def end_of(answer: bytes) -> End | None:
    """What is to end of an answer that admits, None of another."""
    found, endpoint = _ID.search(answer), _ENDPOINT.search(answer)
    if found is None:
        return None
    return found[0], NOWHERE if endpoint is None else endpoint[0]


class EntryWriter:
    """Messages of captured entries, each for a decision of its own."""

    def __init__(self) -> None:
        self._log = compile_messages().access_logs
        self._captured = (DATA / "access_log_entry.bin").read_bytes()
        self._templates: dict[tuple[int, bytes], tuple[bytes, bytes]] = {}

    def message(self, ends: Iterable[End]) -> bytes:
        """One StreamAccessLogsMessage in which these ended."""
        entries = []
        for decision_id, endpoint in ends:
            before, after = self._template(len(decision_id), endpoint)
            entries += (before, decision_id, after)
        body = b"".join(entries)
        return b"\x12" + _varint(len(body)) + body

    def _template(self, length: int, endpoint: bytes) -> tuple[bytes, bytes]:
        """The captured entry before and after an id of this length, served by `endpoint`."""
        if (length, endpoint) not in self._templates:
            log: Any = self._log()
            entry = log.http_logs.log_entry.add()
            entry.ParseFromString(self._captured)
            metadata = entry.common_properties.metadata.filter_metadata
            fields = metadata["envoy.filters.http.ext_authz"].fields
            assert fields["decision_id"].string_value == DECISION_ID
            fields["decision_id"].string_value = "?" * length
            host, _, port = endpoint.decode().rpartition(":")
            upstream = entry.common_properties.upstream_remote_address.socket_address
            upstream.address, upstream.port_value = host, int(port)
            encoded = entry.SerializeToString()
            before, _, after = encoded.partition(b"?" * length)
            head = b"\x0a" + _varint(len(encoded)) + before
            self._templates[length, endpoint] = (head, after)
        return self._templates[length, endpoint]


class Outcomes:
    """Settles what was admitted, in a message every `FLUSH_S`."""

    def __init__(self, port: int) -> None:
        self.verdicts: Counter[str] = Counter()
        self._writer = EntryWriter()
        self._running: deque[tuple[float, End]] = deque()
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._next_flush_s = 0.0
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._call = self._channel.stream_unary(LOGS_PATH).future(iter(self._messages.get, None))

    def answered(self, answer: bytes, now: float) -> None:
        """Count an answer; what it admitted will end."""
        admitted = end_of(answer)
        if admitted is None:
            self.verdicts["refused" if answer else "failed"] += 1
            return
        self.verdicts["demoted" if b"demote" in answer else "admitted"] += 1
        self._running.append((now + RUNS_S, admitted))

    def flush(self, now: float) -> None:
        """Send what has ended, if it is time."""
        if now < self._next_flush_s:
            return
        self._next_flush_s = now + FLUSH_S
        ended = []
        while self._running and self._running[0][0] <= now:
            ended.append(self._running.popleft()[1])
        if ended:
            self._messages.put(self._writer.message(ended))

    def finish(self) -> None:
        """End everything that still runs, and the stream."""
        self.flush(float("inf"))
        self._messages.put(None)
        self._call.result(timeout=10)
        self._channel.close()


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)
