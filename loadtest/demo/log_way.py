"""The way of Envoy's access log to the gate, through a process that can be killed."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from loadtest.processes import Process, free_port


class LogWay:
    """Forwards `port` to the gate's port `target`, until it is cut."""

    def __init__(self, target: int, work: Path, stack: ExitStack) -> None:
        self.port = free_port()
        self._command = [sys.executable, "-m", "loadtest.demo.forward", f"{self.port}={target}"]
        self._log = work / "log-way.log"
        self._process = Process(self._command, self._log)
        stack.callback(self._stop)

    def cut(self) -> None:
        """End it without a word."""
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def mend(self) -> None:
        """Let the log through again."""
        self._process = Process(self._command, self._log)

    def lead(self, config: dict[str, Any]) -> dict[str, Any]:
        """Envoy's configuration `config`, with the access log led this way."""
        for cluster in config["static_resources"]["clusters"]:
            if cluster["name"] == "ext_authz_access_log":
                (group,) = cluster["load_assignment"]["endpoints"]
                (endpoint,) = group["lb_endpoints"]
                # A new dict: the rendered file has one for both clusters of the gate.
                address = {"address": "127.0.0.1", "port_value": self.port}
                endpoint["endpoint"] = {"address": {"socket_address": address}}
        return config

    def _stop(self) -> None:
        self._process.stop()
