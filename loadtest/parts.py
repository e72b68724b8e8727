"""The real parts of every load test on free loopback ports: backends, the gate, Envoy."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from loadtest.processes import HARNESS, Process, answers_200, free_port

BIN = Path(sys.executable).parent


def start_backend(
    arguments: Sequence[str], log: Path, stack: ExitStack, port: int | None = None
) -> tuple[str, Process]:
    """A backend with these arguments; where it will listen. Not waited for."""
    port = free_port() if port is None else port
    command = [sys.executable, "-m", "loadtest.backend", "--port", str(port), *arguments]
    return f"http://127.0.0.1:{port}", stack.enter_context(Process(command, log))


def start_gate(config: Path, admin_url: str, work: Path, stack: ExitStack) -> Process:
    """The gate with this configuration; returns when it is ready."""
    command = [str(BIN / "ext-authz"), "serve", "--config", str(config)]
    process = stack.enter_context(Process(command, work / "gate.log"))
    process.wait_ready(partial(answers_200, f"{admin_url}/readyz"))
    return process


def rendered(config: Path, admin_port: int) -> dict[str, Any]:
    """Envoy's configuration as `ext-authz render envoy` prints it for this one of the gate."""
    from ext_authz.config.compile import load
    from ext_authz.deploy.envoy import render_envoy

    made: dict[str, Any] = yaml.safe_load(render_envoy(load(config).settings, admin_port))
    return made


def start_envoy(config: dict[str, Any], url: str, work: Path, stack: ExitStack) -> Process:
    """Envoy with one worker; returns when it answers at `url`."""
    path = work / "envoy.yaml"
    path.write_text(yaml.safe_dump(config))
    command = [str(BIN / "envoy"), "-c", str(path), "--log-level", "warning"]
    command += ["--disable-hot-restart", "--concurrency", "1"]
    process = stack.enter_context(Process(command, work / "envoy.log"))
    process.wait_ready(partial(answers_200, f"{url}/healthz"))
    return process


def fetch(url: str) -> Any:
    """The JSON at a loopback URL."""
    request = urllib.request.Request(url, headers=HARNESS)  # noqa: S310  loopback
    with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310  loopback
        return json.load(answer)


def control(backend_url: str, **faults: object) -> None:
    """Switch a fault of a backend on or off."""
    request = urllib.request.Request(  # noqa: S310  loopback
        f"{backend_url}/control",
        data=json.dumps(faults).encode(),
        headers={"content-type": "application/json", **HARNESS},
        method="POST",
    )
    urllib.request.urlopen(request, timeout=5).close()  # noqa: S310  loopback


def unanswered_checks(envoy_admin_url: str) -> int:
    """Checks that Envoy sent and gave up on."""
    url = f"{envoy_admin_url}/stats?filter=^http.edge.ext_authz.gate.error$"
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310  loopback
        _, _, value = answer.read().decode().partition(":")
    return int(value or 0)
