"""A real NATS server on loopback, that can be killed and started again."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from tests.support.ports import free_port
from tests.support.processes import Process

BINARY = Path(sys.executable).with_name("nats-server")


class NatsServer:
    """One server at a fixed port; its streams live in memory and end with it."""

    def __init__(self, folder: Path, *options: str, jetstream: bool = True) -> None:
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._folder = folder
        self._options = options
        if jetstream:
            self._options += ("-js", "-sd", str(folder / "js"))
        self._process: Process | None = None

    def start(self) -> None:
        command = [str(BINARY), "-a", "127.0.0.1", "-p", str(self.port), *self._options]
        self._process = Process(command, self._folder / "nats.log")
        self._process.wait_ready(self._answers)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    async def client(self, **options: Any) -> Any:
        """A connected client, for the test to close."""
        from nats.aio.client import Client

        client = Client()
        await client.connect(self.url, allow_reconnect=False, connect_timeout=5, **options)
        return client

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                return connection.recv(5) == b"INFO "
        except OSError:
            return False

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)
        if number == signal.SIGKILL:
            self._process.wait()
