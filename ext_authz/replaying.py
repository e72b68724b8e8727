"""`ext-authz replay`: what another configuration would have done to recorded traffic."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ext_authz.recorded import Reader, RecordError, Recording

# Requests and bytes that one replay takes.
MOST_REQUESTS, MOST_BYTES = 1_000_000, 1 << 30

EXAMPLES = """\
example:
  ext-authz replay journal.jsonl.1 journal.jsonl --config new.yaml

The journal is written where `journal: {file: journal.jsonl}` says so; give its files oldest first.
Each count is shown as then > now. See docs/replay.md for what a replay can know and what it cannot.

exit codes: 0 done, 1 a journal or configuration that cannot be read, 2 wrong usage, 3 a fault
"""


def add_replay_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `replay` to the command line."""
    replay = commands.add_parser(
        "replay",
        help="what another configuration would have done to recorded traffic",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    replay.add_argument("journal", type=Path, nargs="+", metavar="JOURNAL")
    replay.add_argument("--config", type=Path, required=True, metavar="NEW")
    replay.add_argument("--seed", type=int, default=1, metavar="N", help="of all chance (1)")
    replay.add_argument(
        "--model", action="store_true", help="have times follow load, as learned from the journal"
    )
    replay.add_argument("--json", action="store_true", help="as JSON, for scripts")
    replay.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ext_authz.config.compile import load
    from ext_authz.simulation.comparison import as_dict, table
    from ext_authz.simulation.rerun import Rerun

    settings = load(arguments.config).settings.admission
    try:
        recording = read(arguments.journal)
    except RecordError as error:
        print(f"ext-authz: {error}", file=sys.stderr)
        return 1
    tally = Rerun(settings, recording, arguments.seed, arguments.model).play()
    if arguments.json:
        print(json.dumps(as_dict(tally, recording, settings), indent=1))
    else:
        print(table(tally, recording, settings))
    return 0


def read(paths: Sequence[Path]) -> Recording:
    """All that these files hold. Raises RecordError, OSError."""
    reader = Reader()
    if sum(path.stat().st_size for path in paths) > MOST_BYTES:
        raise RecordError(f"{paths[0]}: over {MOST_BYTES >> 20} MiB in all; give fewer files")
    for path in paths:
        with path.open(encoding="utf-8") as lines:
            try:
                for number, line in enumerate(lines, start=1):
                    reader.take(line, f"{path}:{number}")
                    if len(reader.requests) > MOST_REQUESTS:
                        raise RecordError(
                            f"{path}:{number}: more than {MOST_REQUESTS} requests; give fewer files"
                        )
            except UnicodeDecodeError as error:
                raise RecordError(f"{path}: not text in UTF-8; give a file of ours") from error
        reader.end_file()
    recording = reader.recording()
    if not recording.requests:
        raise RecordError(f"{paths[0]}: no requests; record some")
    return recording
