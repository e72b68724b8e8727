"""The command line: serve, check, render, hash-key, explain, evaluate, replay, telemetry.

Exit codes: 0 done, 1 the answer is no (a refused configuration, nothing found), 2 wrong usage,
3 a fault of ours or of the machine.
"""

from __future__ import annotations

import argparse
import getpass
import http.client
import json
import logging
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ext_authz.agent import add_agent_command
from ext_authz.errors import ConfigError, ExtAuthzError
from ext_authz.process import build, log_to_stderr
from ext_authz.replaying import add_replay_command

log = logging.getLogger(__name__)

HOSTS = ("grpc", "pyvoy")
ADMIN = "127.0.0.1:9002"

EXAMPLES = """\
examples:
  ext-authz check gate.yaml                    report every problem, with file, line and remedy
  ext-authz hash-key                           the SHA-256 digest of a key, for tenants
  ext-authz render envoy --config gate.yaml    a complete Envoy configuration
  ext-authz serve --config gate.yaml           the server
  ext-authz explain REQUEST-ID                 why a request was answered as it was
  ext-authz evaluate trace.csv                 how well recorded traffic would be predicted
  ext-authz replay journal --config new.yaml   what another configuration would have decided
  ext-authz telemetry --once --json            every number with its age and source
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    arguments = _parser().parse_args(argv)
    log_to_stderr(getattr(arguments, "log_level", "WARNING").upper())
    try:
        code: int = arguments.run(arguments)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    except (ExtAuthzError, OSError) as error:
        print(f"ext-authz: {error}", file=sys.stderr)
        return 3
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ext-authz",
        description="Admits, demotes or refuses inference requests from live GPU state, for Envoy.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="say which build this is")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="run the server")
    serve.add_argument("--config", type=Path, required=True, metavar="FILE")
    serve.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    serve.add_argument("--host", choices=HOSTS, help="what takes the calls in (server.host)")
    serve.set_defaults(run=_serve)

    check = commands.add_parser("check", help="report every problem of a configuration")
    check.add_argument("file", type=Path, metavar="FILE")
    check.set_defaults(run=_check)

    render = commands.add_parser("render", help="print the configuration of a proxy")
    render.add_argument("target", choices=["envoy"])
    render.add_argument("--config", type=Path, required=True, metavar="FILE")
    render.set_defaults(run=_render)

    hash_key = commands.add_parser(
        "hash-key", help="print the digest of an API key, read from standard input or a prompt"
    )
    hash_key.set_defaults(run=_hash_key)

    explain = commands.add_parser("explain", help="why a recent request was answered as it was")
    explain.add_argument("request_id", metavar="REQUEST-ID", help="x-request-id of the request")
    explain.add_argument("--admin", default=ADMIN, metavar="HOST:PORT")
    explain.set_defaults(run=_explain)

    add_agent_command(commands)
    _add_evaluate(commands)
    add_replay_command(commands)

    telemetry = commands.add_parser(
        "telemetry", help="what a running gate knows of pools, endpoints and devices"
    )
    telemetry.add_argument("--once", action="store_true", help="print once instead of watching")
    telemetry.add_argument("--json", action="store_true", help="as JSON, for scripts")
    telemetry.add_argument("--admin", default=ADMIN, metavar="HOST:PORT")
    telemetry.set_defaults(run=_telemetry)
    return parser


class _Version(argparse.Action):
    """Looks only when it is asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"ext-authz {build()}")
        parser.exit()


def _add_evaluate(commands: Any) -> None:
    from ext_authz.simulation.evaluate import ROWS

    ways = "".join(f"  {way:18}{what}\n" for way, what in ROWS.items())
    evaluate = commands.add_parser(
        "evaluate",
        help="replay a recorded trace and say how well each way to predict does",
        epilog=f"rows:\n{ways}columns: absolute relative error, its sign, truth within the p95",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    evaluate.add_argument("trace", type=Path, metavar="TRACE", help="CSV, see docs/prediction.md")
    evaluate.add_argument("--slots", type=int, metavar="N", help="requests the server runs at once")
    evaluate.add_argument(
        "--warm-up", type=int, default=200, metavar="N", help="requests not scored (200)"
    )
    evaluate.add_argument(
        "--ends-only", action="store_true", help="tell no first tokens, as a gate without a tap"
    )
    evaluate.add_argument("--json", action="store_true", help="as JSON, for scripts")
    evaluate.set_defaults(run=_evaluate)


def _evaluate(arguments: argparse.Namespace) -> int:
    from ext_authz.simulation.evaluate import as_dict, evaluate, table
    from ext_authz.simulation.trace import TraceError, load_trace

    try:
        trace = load_trace(arguments.trace)
    except TraceError as error:
        print(f"ext-authz: {error}", file=sys.stderr)
        return 1
    slots = trace.slots if arguments.slots is None else arguments.slots
    if slots is None or slots < 1:
        print("ext-authz: no slots told; give --slots N, at least 1", file=sys.stderr)
        return 2
    if not 0 <= arguments.warm_up < len(trace.rows):
        count = len(trace.rows)
        print(f"ext-authz: --warm-up must leave some of {count} requests", file=sys.stderr)
        return 2
    results = evaluate(trace, slots, arguments.warm_up, arguments.ends_only)
    print(json.dumps(as_dict(results), indent=1) if arguments.json else table(results))
    return 0


def _serve(arguments: argparse.Namespace) -> int:
    from ext_authz.config.compile import load

    loaded = load(arguments.config)
    for problem in loaded.warnings:
        log.warning("%s", problem)
    if (arguments.host or loaded.settings.server.host) == "pyvoy":
        from ext_authz.pyvoy.supervise import supervise

        return supervise(arguments.config, loaded, arguments.log_level)
    from ext_authz.app import serve

    serve(arguments.config, loaded)
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from ext_authz.config.compile import load

    loaded = load(arguments.file)
    for problem in loaded.warnings:
        print(f"warning: {problem}", file=sys.stderr)
    print(f"{arguments.file}: ok")
    return 0


def _render(arguments: argparse.Namespace) -> int:
    from ext_authz.config.compile import load
    from ext_authz.deploy.envoy import render_envoy

    sys.stdout.write(render_envoy(load(arguments.config).settings))
    return 0


def _hash_key(_: argparse.Namespace) -> int:
    from ext_authz.config.keys import MAX_KEY_FILE_BYTES, digest, is_key

    # Never an argument: those show in process lists and shell histories.
    if sys.stdin.isatty():
        key = getpass.getpass("API key: ")
    else:
        key = sys.stdin.buffer.readline(MAX_KEY_FILE_BYTES).decode("utf-8", "replace")
    # A line break of whatever system, or a blank that was pasted along, would be part of no
    # request's key, and its digest one that nobody can match.
    key = key.strip()
    if not key:
        print("ext-authz: no key on standard input", file=sys.stderr)
        return 2
    if not is_key(key):
        print("ext-authz: not a key: it holds blanks or other than ASCII", file=sys.stderr)
        return 2
    print(digest(key))
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    name = urllib.parse.quote(arguments.request_id, safe="")

    def ask() -> None:
        url = f"http://{arguments.admin}/debug/explain/{name}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            sys.stdout.write(answer.read().decode())

    return _asking(arguments.admin, ask)


def _telemetry(arguments: argparse.Namespace) -> int:
    from ext_authz.web.telemetry_table import show

    return _asking(arguments.admin, lambda: show(arguments.admin, arguments.once, arguments.json))


def _asking(admin: str, ask: Callable[[], None]) -> int:
    """Ask a running gate's admin server; the exit code, with a message if it is not 0."""
    try:
        ask()
    except KeyboardInterrupt:
        return 0
    except urllib.error.HTTPError as error:
        sys.stderr.write(error.read().decode())
        return 1
    except (urllib.error.URLError, TimeoutError) as error:
        print(f"ext-authz: no answer from {admin}: {error}", file=sys.stderr)
        return 3
    except (ValueError, http.client.InvalidURL):
        print(f"ext-authz: --admin is no HOST:PORT: {admin!r}", file=sys.stderr)
        return 2
    return 0
