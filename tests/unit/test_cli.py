"""The command line, run as a user would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ext_authz.cli import main
from ext_authz.process import is_compiled
from tests.support.ports import free_port
from tests.support.stack import digest, make_config

DATA = Path(__file__).parents[1] / "data" / "config"
COMMANDS = ("serve", "check", "render", "hash-key", "explain")


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ext_authz", *arguments]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=60, check=False
    )


def config(tmp_path: Path) -> Path:
    path = tmp_path / "gate.yaml"
    path.write_text(yaml.safe_dump(make_config(["127.0.0.1:1"]), sort_keys=False))
    return path


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """It says which build it is."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    kind = "compiled" if is_compiled() else "plain Python"
    assert re.fullmatch(rf"ext-authz [\d.]+ \({kind}\)\n", capsys.readouterr().out)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command explains itself on stdout and exits 0."""
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    assert ended.value.code == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert "usage: ext-authz" in told.out
    if not command:
        assert all(name in told.out for name in COMMANDS)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["no-such-command"],
        ["check"],
        ["serve"],
        ["render", "apache", "--config", "x"],
        ["serve", "--config", "x", "--log-level", "loud"],
    ],
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage exits 2 and shows the right one on stderr."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert (told.out, "usage:" in told.err) == ("", True)


def test_hash_key_from_standard_input() -> None:
    """The digest of the first line, without what surrounds the key, is all that is printed."""
    for written in ("sk-acme-0001\n", "sk-acme-0001", "sk-acme-0001\r\n", " sk-acme-0001 \nmore"):
        told = run("hash-key", stdin=written)
        assert (told.returncode, told.stdout, told.stderr) == (0, digest("sk-acme-0001") + "\n", "")


@pytest.mark.parametrize("written", ["", "\n", "  \n"])
def test_hash_key_of_nothing(written: str) -> None:
    """Without a key there is no digest that somebody could put into a configuration."""
    told = run("hash-key", stdin=written)
    assert (told.returncode, told.stdout) == (2, "")
    assert "no key" in told.stderr


@pytest.mark.parametrize("written", [b"sk acme\n", b"schl\xc3\xbcssel\n", b"\xff\xfe\n", b"a\0b\n"])
def test_hash_key_of_what_is_no_key(written: bytes) -> None:
    """What no header could carry as it is gets no digest, no stack trace, and is not repeated."""
    command = [sys.executable, "-m", "ext_authz", "hash-key"]
    told = subprocess.run(command, input=written, capture_output=True, timeout=60, check=False)
    assert (told.returncode, told.stdout) == (2, b"")
    assert told.stderr == b"ext-authz: not a key: it holds blanks or other than ASCII\n"


def test_check_of_a_good_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A good file is ok, in one line on stdout."""
    path = config(tmp_path)
    assert main(["check", str(path)]) == 0
    assert capsys.readouterr() == (f"{path}: ok\n", "")


def test_check_of_a_broken_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All problems go to stderr as file:line: field: message; remedy, and the answer is no."""
    path = tmp_path / "gate.yaml"
    path.write_text(
        "admission_control:\n  safety_margin_ms: -5\n  slo:\n    defualt_ms: 10\n  pools: []\n"
    )
    assert main(["check", str(path)]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    lines = told.err.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [f"{path}:2", f"{path}:4"]
    assert "admission_control.safety_margin_ms" in lines[0]
    assert "admission_control.slo.defualt_ms" in lines[1]
    assert all("; " in line for line in lines)


@pytest.mark.parametrize("command", [["check"], ["serve", "--config"]])
def test_a_file_that_is_not_there(command: list[str], tmp_path: Path) -> None:
    """A missing file is a refused configuration, not a stack trace."""
    told = run(*command, str(tmp_path / "none.yaml"))
    assert told.returncode == 1
    assert "none.yaml:1" in told.stderr
    assert "Traceback" not in told.stderr


def test_the_published_skeleton_is_a_good_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Without pools and tenants there is something to warn about, and nothing to refuse."""
    assert main(["check", str(DATA / "skeleton.yaml")]) == 0
    told = capsys.readouterr()
    assert "ok" in told.out
    assert all(line.startswith("warning: ") for line in told.err.splitlines())


def test_serve_on_a_port_that_is_taken(tmp_path: Path) -> None:
    """A port that cannot be had is the machine's fault: exit 3 and its name, no stack trace."""
    path = tmp_path / "gate.yaml"
    # An address of a network for documentation, which no machine has.
    server = {"grpc_listen": f"192.0.2.1:{free_port()}"}
    path.write_text(yaml.safe_dump(make_config(["127.0.0.1:1"], server=server)))
    told = run("serve", "--config", str(path))
    assert told.returncode == 3
    assert "Traceback" not in told.stderr
    assert "192.0.2.1" in told.stderr


def test_render(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rendered Envoy configuration is YAML on stdout and nothing else."""
    assert main(["render", "envoy", "--config", str(config(tmp_path))]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert "static_resources" in yaml.safe_load(told.out)


def test_explain_without_a_server() -> None:
    """No server to ask is a fault of the machine, not an answer."""
    told = run("explain", "some-request", "--admin", f"127.0.0.1:{free_port()}")
    assert (told.returncode, told.stdout) == (3, "")
    assert "no answer" in told.stderr


@pytest.mark.parametrize("name", ["a b", "a/../../metrics", "%2e%2e", "ü", "a\nb", "?x", ""])
def test_explain_of_odd_names(name: str) -> None:
    """Whatever is pasted as an id is quoted, and never a stack trace."""
    told = run("explain", name, "--admin", f"127.0.0.1:{free_port()}")
    assert told.returncode == 3
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize("admin", ["", "nonsense", "127.0.0.1:notaport", "[::1", "a b:1"])
def test_explain_at_an_odd_address(admin: str) -> None:
    """An address that is none is said to be none."""
    told = run("explain", "x", "--admin", admin)
    assert told.returncode in {2, 3}
    assert "Traceback" not in told.stderr
