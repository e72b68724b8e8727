"""The command: one line when it listens, a clean end on a signal."""

from __future__ import annotations

import ast
import http.client
import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from loadtest.backend.__main__ import parse_arguments

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_ends_on_a_signal(
    number: signal.Signals, tmp_path: Path
) -> None:
    """The line, the port file and the socket agree; the exit status is 0 and stderr is empty."""
    port_file = tmp_path / "port"
    command = [sys.executable, "-m", "loadtest.backend", "--profile", "fraud", "--model", "f"]
    command += ["--port", "0", "--seed", "1", "--port-file", str(port_file)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline().strip()
            port = int(port_file.read_text())
            assert line == f"listening on http://127.0.0.1:{port}"
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/log", timeout=5) as answer:
                assert json.load(answer)["profile"] == "fraud"
            process.send_signal(number)
            _, errors = process.communicate(timeout=10)
        finally:
            process.kill()
    assert process.returncode == 0
    assert errors == ""


def test_a_signal_cuts_off_what_is_in_flight() -> None:
    """A stream of many seconds does not hold up the end, and leaves no stack trace behind."""
    command = [sys.executable, "-m", "loadtest.backend", "--profile", "demo-primary"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline().rsplit(":", 1)[1])
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
            client.request("POST", "/v1/completions", json.dumps(body))
            assert client.getresponse().status == 200
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=10)
            client.close()
        finally:
            process.kill()
    assert process.returncode == 0
    assert errors == ""


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--profile", "none"],
        ["--profile", "knee", "--port", "70000"],
        ["--profile", "knee", "--set", "knees.sequences=3"],
        ["--profile", "knee", "--set", "knee.sequences=many"],
        ["--profile", "knee", "--set", "knee.sequences"],
    ],
    ids=str,
)
def test_a_bad_command_line_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A usage message and status 2, no stack trace."""
    with pytest.raises(SystemExit) as caught:
        parse_arguments(arguments)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_numbers_of_a_profile_can_be_set() -> None:
    """What is served is the profile as it was changed, under its own name."""
    given = ["--profile", "knee", "--set", "knee.sequences=12", "--set", "kv_tokens=9000"]
    profile = parse_arguments(given).profile
    assert (profile.name, profile.knee.sequences, profile.kv_tokens) == ("knee", 12, 9000)


def test_the_backend_knows_nothing_of_admission() -> None:
    """No module of the backend imports the service that it tests; the pure ones no clock."""
    modules = sorted((ROOT / "loadtest" / "backend").glob("*.py"))
    assert len(modules) > 10
    pure = {"asks", "batching", "control", "engine", "fixed", "page", "profiles", "totals"}
    for module in modules:
        names = set()
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.split(".")[0])
        assert "ext_authz" not in names, module.name
        if module.stem in pure:
            assert not names & {"asyncio", "aiohttp", "time", "datetime"}, module.name
