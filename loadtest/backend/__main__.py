"""Runs one backend until SIGTERM or SIGINT: `python -m loadtest.backend --profile demo-primary`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from aiohttp import web

from loadtest.backend.profiles import PROFILES, changed
from loadtest.backend.server import make_app
from loadtest.backend.service import Service

DRAIN_S = 0.5


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """The command line. Exits with a message on a bad one."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.backend", description=__doc__)
    parser.add_argument("--profile", choices=sorted(PROFILES), required=True)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="another number in the profile, as knee.sequences=12; may be repeated",
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--seed", type=int, default=1, help="of the output lengths")
    parser.add_argument(
        "--model",
        action="append",
        metavar="NAME",
        help="served name; repeat for aliases, the first labels the metrics (default: the profile)",
    )
    parser.add_argument("--port-file", type=Path, help="write the port here once listening")
    parsed = parser.parse_args(arguments)
    if not 0 <= parsed.port <= 65_535:
        parser.error("--port must be between 0 and 65535")
    try:
        parsed.profile = changed(PROFILES[parsed.profile], dict(map(_number, parsed.set)))
    except ValueError as error:
        parser.error(f"--set: {error}")
    return parsed


def _number(given: str) -> tuple[str, float]:
    name, _, number = given.partition("=")
    return name, float(number)


async def serve(arguments: argparse.Namespace) -> None:
    """Listen, say where, and serve until told to stop. Raises OSError when the port is taken."""
    names = tuple(arguments.model or [arguments.profile.name])
    service = Service(arguments.profile, arguments.seed, names)
    # without handler_cancellation a client that leaves would keep its sequences running
    runner = web.AppRunner(
        make_app(service), handler_cancellation=True, access_log=None, shutdown_timeout=DRAIN_S
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await runner.setup()
    try:
        await web.TCPSite(runner, arguments.host, arguments.port, backlog=1024).start()
        port = int(runner.addresses[0][1])
        if arguments.port_file is not None:
            _write_whole(arguments.port_file, f"{port}\n")
        print(f"listening on http://{arguments.host}:{port}", flush=True)
        await stop.wait()
    finally:
        await runner.cleanup()


def _write_whole(path: Path, text: str) -> None:
    """Write so that a reader never sees half of it."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)


def main(arguments: list[str]) -> int:
    """Run; the exit status is 1 when the port could not be had."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    parsed = parse_arguments(arguments)
    try:
        asyncio.run(serve(parsed))
    except OSError as error:
        print(f"cannot listen: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
