"""What is recorded of requests as they are decided and end, and the file it goes to."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ext_authz.admission.controller import Controller
from ext_authz.admission.ledger import Ledger
from ext_authz.journal_file import JournalFile, append
from ext_authz.metrics import Metrics
from ext_authz.model import Outcome, Verdict
from ext_authz.overload import HoldRules
from ext_authz.recorded import head_line
from ext_authz.recording import LOOKED_AFTER, MOST_LINES, MOST_OPEN, Recorder
from ext_authz.replaying import read
from ext_authz.settings import JournalSettings
from tests.support.controlling import single, started
from tests.support.world import sample

ON = JournalSettings("journal.jsonl")


def recorder(settings: JournalSettings = ON) -> Recorder:
    return Recorder(settings, Random(1))


def end(of: Recorder, controller: Controller, outcome: Outcome) -> None:
    """The request is over, if it is open."""
    charged = controller.settle(outcome, 0.1 + outcome.duration_s)
    if charged is not None:
        of.ended(charged, outcome)


def lines_of(of: Recorder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in of.take()]


def test_nothing_is_recorded_unless_asked_for() -> None:
    """No file, no line."""
    off = recorder(JournalSettings())
    controller, asks = started(single(1))
    ask = asks("a")
    off.decided(ask, controller.arrive(ask, 0.1), 1.0, 0.1)
    off.look_after(controller.ledger, controller.pools.endpoints.values(), 10.0)
    assert off.take() == []


def test_one_line_for_each_request_when_it_is_over_or_refused() -> None:
    """With what it would cost, what was decided and how it ended."""
    of = recorder()
    controller, asks = started(single(1))
    first, second = asks("a"), replace(asks("b"), slo_s=0.5)
    of.decided(first, controller.arrive(first, 0.1), 1.0, 0.1)
    assert lines_of(of) == []
    of.decided(second, controller.arrive(second, 0.2), 1.0, 0.2)
    end(of, controller, Outcome("r0", 200, 0.4, None))
    end(of, controller, Outcome("r0", 200, 0.4, None))
    refused, ran = lines_of(of)
    assert refused == {
        "t": 0.2, "who": "b", "type": "default", "path": "/v1/chat/completions", "model": "m",
        "cost": [50, 50, 0], "slo": 0.5, "deadline": 0.5, "did": "reject", "why": "at_capacity",
    }  # fmt: skip
    assert (ran["t"], ran["did"], ran["pool"], ran["took"], ran["status"]) == (
        0.1, "admit", "p", 0.4, 200
    )  # fmt: skip
    assert (ran["met"], ran["lived"]) == ([0.0, 0.0], [0.0, 0.0])
    assert "deadline" not in ran


@pytest.mark.parametrize("how", ["client_left", "timed_out", "upstream_reset"])
def test_what_was_cut_short_tells_no_time(how: str) -> None:
    """It would have run for longer."""
    of = recorder()
    controller, asks = started(single(1))
    ask = asks("a")
    of.decided(ask, controller.arrive(ask, 0.1), 1.0, 0.1)
    end(of, controller, Outcome("r0", 0, 0.4, None, **{how: True}))  # type: ignore[arg-type]
    (line,) = lines_of(of)
    assert "took" not in line


def test_what_was_held_is_a_line_of_when_it_came() -> None:
    """And none while it waits."""
    of = recorder()
    config = single(1, hold=HoldRules(limit_s=1.0))
    controller, asks = started(config, fresh="")
    controller.observe(sample("p-0:80", 0.0, execution_s=0.1))
    controller.arrive(asks("a"), 0.1)
    held = asks("b")
    of.decided(held, controller.arrive(held, 0.1), 1.0, 0.1)
    assert lines_of(of) == []
    controller.settle(Outcome("r0", 200, 0.1, None), 0.3)
    ((_, decision),) = controller.dispatched(0.3)
    of.decided(held, decision, 1.0, 0.3)
    end(of, controller, Outcome("r1", 200, 0.1, None))
    (line,) = lines_of(of)
    assert (line["t"], line["did"]) == (0.1, "admit")


def test_a_refusal_before_the_body_was_read_has_no_cost_and_no_query() -> None:
    """Queries may hold keys."""
    of = recorder()
    controller, asks = started(single(1))
    ask = asks("a")
    decision = replace(controller.arrive(ask, 0.1), verdict=Verdict.REJECT)
    of.refused_unread(ask.tenant, decision, "/v1/x?api_key=secret", 0.1)
    (line,) = lines_of(of)
    assert line["path"] == "/v1/x"
    assert "cost" not in line


def test_what_ends_without_a_word_is_written_down_at_last() -> None:
    """A few at a time, those that are open still stay."""
    of = recorder()
    controller, asks = started(single(LOOKED_AFTER + 10))
    for _ in range(LOOKED_AFTER + 10):
        ask = asks("a")
        of.decided(ask, controller.arrive(ask, 0.1), 1.0, 0.1)
    of.look_after(controller.ledger, (), 1.0)
    assert lines_of(of) == []
    of.look_after(Ledger(), (), 1.0)
    assert len(lines_of(of)) == LOOKED_AFTER
    of.look_after(Ledger(), (), 1.0)
    assert len(lines_of(of)) == 10


def test_what_endpoints_carry_is_told_now_and_then() -> None:
    """Of those that have told of themselves."""
    of = recorder()
    controller, _ = started(single(4), fresh="")
    endpoints = controller.pools.endpoints.values()
    of.look_after(controller.ledger, endpoints, 100.0)
    assert lines_of(of) == []
    controller.observe(replace(sample("p-0:80", 100.0, running=3.0, kv=(0.1, 5e4))))
    of.look_after(controller.ledger, endpoints, 104.9)
    assert lines_of(of) == []
    of.look_after(controller.ledger, endpoints, 105.0)
    (line,) = lines_of(of)
    assert line == {"t": 105.0, "carried": {"p-0:80": [3.0, 5e4, 1.0]}}


def test_a_part_of_all_is_recorded_where_asked() -> None:
    """Chosen by chance, and wholly or not at all."""
    of = recorder(replace(ON, sample_ratio=0.25))
    controller, asks = started(single(1))
    for _ in range(2000):
        ask = asks("a")
        of.decided(ask, controller.arrive(ask, 0.1), 1.0, 0.1)
        end(of, controller, Outcome(ask.id, 200, 0.4, None))
    assert len(lines_of(of)) == pytest.approx(500, abs=80)


def test_lines_and_open_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What finds no room is counted."""
    assert (MOST_LINES, MOST_OPEN) == (16_384, 65_536)
    monkeypatch.setattr("ext_authz.recording.MOST_LINES", 2)
    monkeypatch.setattr("ext_authz.recording.MOST_OPEN", 1)
    of = recorder()
    controller, asks = started(single(2))
    for _ in range(5):
        ask = asks("a")
        of.decided(ask, controller.arrive(ask, 0.1), 1.0, 0.1)
    assert len(of.take()) == 2
    assert of.lost == 2


# -- the file -------------------------------------------------------------------------------

LINE = '{"t":1,"who":"a","type":"d","path":"/","did":"reject","why":"at_capacity"}\n'


def settings_at(path: Path, max_bytes: int = 1 << 20) -> JournalSettings:
    return JournalSettings(str(path), max_bytes)


def test_a_full_file_is_put_aside_and_both_can_be_read(tmp_path: Path) -> None:
    """Two at most, each with the line that it begins with; readable by its owner only."""
    path = tmp_path / "j"
    settings = settings_at(path, 400)
    head = head_line(1000.0, 0.0, 1.0)
    for number in range(20):
        append(settings, [LINE], head, anew=number == 0)
    assert {each.name for each in tmp_path.iterdir()} == {"j", "j.1"}
    for each in tmp_path.iterdir():
        assert each.stat().st_size <= 400
        assert each.stat().st_mode & 0o777 == 0o600
    told = read([tmp_path / "j.1", path])
    assert 4 <= len(told.requests) <= 8
    assert told.torn == 0


def test_what_a_crash_tore_off_spoils_no_other_line(tmp_path: Path) -> None:
    """The next process begins on a line of its own."""
    path = tmp_path / "j"
    head = head_line(1000.0, 0.0, 1.0)
    append(settings_at(path), [LINE, LINE[:20]], head, anew=True)
    append(settings_at(path), [LINE], head, anew=True)
    append(settings_at(path), [LINE], head, anew=False)
    told = read([path])
    assert (len(told.requests), told.torn) == (3, 1)


class Clock:
    """Stands still."""

    def now(self) -> float:
        return 5.0

    def wall(self) -> float:
        return 1005.0


def journal(settings: JournalSettings, batches: Iterator[list[str]]) -> tuple[JournalFile, Metrics]:
    metrics = Metrics()
    return JournalFile(lambda: settings, lambda: next(batches), Clock(), metrics), metrics


async def test_lines_are_written_beside_the_loop_and_at_the_end(tmp_path: Path) -> None:
    """Each batch once, with one head for the stretch."""
    path = tmp_path / "j"
    file, metrics = journal(settings_at(path), iter([[LINE], [], [LINE, LINE]]))
    for now in (6.0, 7.0):
        file.tick(now)
        if file._writing is not None:
            await asyncio.wait([file._writing])
    await file.close()
    assert path.read_text().count('"journal"') == 1
    assert len(read([path]).requests) == 3
    assert metrics.value("journal_lines", "written") == 3


async def test_trouble_with_the_disk_is_told_once_and_goes_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Lines are lost meanwhile, and counted."""
    caplog.set_level(logging.WARNING)
    path = tmp_path / "none" / "j"
    file, metrics = journal(settings_at(path), iter([[LINE], [LINE], [LINE]]))
    await file.close()
    await file.close()
    assert metrics.value("journal_lines", "failed") == 2
    status = file.status()
    assert status is not None
    assert status["trouble"] == "No such file or directory"
    path.parent.mkdir()
    await file.close()
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert len(read([path]).requests) == 1


def test_without_a_file_there_is_no_status() -> None:
    """Nothing is recorded."""
    file, _ = journal(JournalSettings(), iter(()))
    file.tick(100.0)
    assert file.status() is None
