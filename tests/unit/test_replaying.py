"""`ext-authz replay` as a command, and what the gate records for it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ext_authz.cli import main
from ext_authz.recorded import head_line
from ext_authz.replaying import read
from ext_authz.serving.entries import AccessLogEntry
from ext_authz.settings import JournalSettings
from tests.support.recordings import refused, request, written
from tests.support.service import KEY, Service, chat, http_check
from tests.support.stack import CHAT

CONFIG = """\
admission_control:
  slo: {default_ms: 1000}
  pools: [{name: p, max_concurrency: 2, endpoints: ["http://10.0.0.1:8000"]}]
  tenants: [{name: a}, {name: b}]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "new.yaml"
    path.write_text(CONFIG)
    return path


def test_a_replay_is_printed(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a table, and as JSON with the same counts."""
    requests = [request(1.0 + n / 100) for n in range(4)]
    journal = written(tmp_path / "j", *requests, refused(1.2, "b"))
    assert main(["replay", str(journal), "--config", str(config)]) == 0
    assert "(all)                            5        4 >      2" in capsys.readouterr().out
    assert main(["replay", str(journal), "--config", str(config), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["tenants"]["a"]["now"]["admitted"] == 2
    assert told["all"]["now"]["refused_for"] == {"at_capacity": 3}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (head_line(0.0, 0.0, 1.0), "no requests; record some"),
        ("\n", "no requests; record some"),
        ("{}\n{}\n", "j:1: comes before the line that a journal begins with; give its whole file"),
        (head_line(0.0, 0.0, 1.0) + '{"t": 1}\n', "j:2: did: is not a text"),
        ("\udcff", "not text in UTF-8; give a file of ours"),
    ],
)
def test_a_journal_that_cannot_be_read(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    """Exit 1, and the file and line."""
    journal = tmp_path / "j"
    journal.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert main(["replay", str(journal), "--config", str(config)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"ext-authz: {tmp_path}/j")
    assert told in error


def test_faults_of_the_machine_and_of_the_configuration(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No such file: 3. A configuration that does not load: 1, with its line."""
    assert main(["replay", str(tmp_path / "none"), "--config", str(config)]) == 3
    config.write_text("admission_control: {mode: maybe}\n")
    journal = written(tmp_path / "j", request(1.0))
    assert main(["replay", str(journal), "--config", str(config)]) == 1
    assert "new.yaml:1: admission_control.mode" in capsys.readouterr().err


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    """And the exit codes."""
    with pytest.raises(SystemExit) as left:
        main(["replay", "--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert "ext-authz replay journal.jsonl.1 journal.jsonl --config new.yaml" in text
    assert "exit codes" in text


async def test_the_gate_records_what_it_decides_and_neither_keys_nor_prompts(
    tmp_path: Path,
) -> None:
    """From a Check and its access-log entry to a line that can be replayed."""
    service = Service(slots=1)
    gate = service.gate
    path = tmp_path / "j"
    gate.reconfigure(replace(gate.settings, journal=JournalSettings(str(path))), 100.0)
    secret = "the crown jewels are under the stairs"
    body = json.dumps({**CHAT, "messages": [{"role": "user", "content": secret}]}).encode()
    headers = {"authorization": f"Bearer {KEY}", "x-request-id": "q-1"}
    await service.check(http_check(headers, body))
    service.clock.at_s += 0.1
    await service.check(chat(request_id="q-2"))
    await service.check(chat(key="sk-stranger", request_id="q-3"))
    gate.ended(AccessLogEntry("r-1", 200, True, False, 0.25, None, False, False, 10), 101.0)
    text = "".join(gate.recorder.take())
    path.write_text(head_line(1.0e9, 0.0, 1.0) + text)
    ran, refused_ = read([path]).requests
    assert (ran.tenant, ran.verdict, ran.seconds, ran.status) == ("acme", "admit", 0.25, 200)
    assert (refused_.verdict, refused_.reason) == ("reject", "at_capacity")
    assert ran.cost is not None
    for hidden in (KEY, "sk-stranger", "jewels"):
        assert hidden not in text
