"""The real Envoy, started on free ports with what the renderer wrote."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp

from ext_authz.deploy.envoy import render_envoy
from ext_authz.settings import Settings
from tests.support.ports import free_port
from tests.support.processes import Process, answers_200

ENVOY = Path(sys.executable).parent / "envoy"
_LEAN = ["--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]


@dataclass(frozen=True, slots=True)
class Envoy:
    """A running Envoy: where clients and the admin reach it."""

    process: Process
    url: str
    admin_url: str

    async def stats(self, prefix: str) -> dict[str, int]:
        """Counters and gauges whose names begin with `prefix`."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.admin_url}/stats?filter=^{prefix}") as reply,
        ):
            lines = (await reply.text()).splitlines()
        pairs = (line.split(": ") for line in lines)
        return {name: int(value) for name, value in pairs if value.isdigit()}


def start_envoy(
    settings: Settings, tmp_path: Path, edit: Callable[[str], str] | None = None
) -> Envoy:
    """Start Envoy for `settings` on free ports and wait until it listens.

    `settings.edge.listen` is replaced, and `edit` may change the text; the caller stops `process`.
    """
    port, admin_port = free_port(), free_port()
    edge = replace(settings.edge, listen=f"127.0.0.1:{port}")
    config = tmp_path / f"envoy-{port}.yaml"
    text = render_envoy(replace(settings, edge=edge), admin_port)
    config.write_text(edit(text) if edit else text)
    process = Process([str(ENVOY), "-c", str(config), *_LEAN], tmp_path / f"envoy-{port}.log")
    envoy = Envoy(process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}")
    try:
        process.wait_ready(lambda: answers_200(f"{envoy.url}/healthz"))
    except BaseException:
        process.stop()
        raise
    return envoy


def validate(text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """What `envoy --mode validate` says about a bootstrap."""
    config = tmp_path / "validate.yaml"
    config.write_text(text)
    command = [str(ENVOY), "--mode", "validate", "-c", str(config), *_LEAN]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
