"""Sends a backlog: `python -m tests.benchmarks.backlog_sender PORT AT_S FILE...`, one stream for
each file of messages, all at once at `AT_S` (monotonic seconds). Prints when the server had
taken in all of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc

from tests.benchmarks.names import LOGS_PATH


def pack(messages: list[bytes]) -> bytes:
    """What `messages` of a file reads."""
    return b"".join(len(message).to_bytes(4, "big") + message for message in messages)


def messages(packed: bytes, at_s: float) -> Iterator[bytes]:
    """The messages of a file, from `at_s` on."""
    time.sleep(max(0.0, at_s - time.monotonic()))
    at = 0
    while at < len(packed):
        end = at + 4 + int.from_bytes(packed[at : at + 4], "big")
        yield packed[at + 4 : end]
        at = end


def main(port: str, at_s: str, *files: str) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        grpc.channel_ready_future(channel).result(timeout=10)
        stream = channel.stream_unary(LOGS_PATH)
        packed = [Path(file).read_bytes() for file in files]
        if time.monotonic() > float(at_s):
            raise RuntimeError("started too late")
        calls = [stream.future(messages(data, float(at_s))) for data in packed]
        for call in calls:
            call.result(timeout=60)
    print(time.monotonic())


if __name__ == "__main__":
    main(*sys.argv[1:])
