"""What a file says of modes and enforcement, and what it means."""

from __future__ import annotations

from pathlib import Path

import pytest

from ext_authz.config import Loaded, load
from ext_authz.errors import ConfigError
from ext_authz.overload import (
    Enforcement,
    Enforcing,
    HybridRules,
    Mode,
    ReactiveRules,
    Rule,
)
from ext_authz.settings import JournalSettings

DATA = Path(__file__).parent.parent / "data" / "config"
POOL = "pools: [{name: p, endpoints: ['http://10.0.0.1:8000']%s}]"


def written(tmp_path: Path, *lines: str) -> Loaded:
    """A configuration of these lines."""
    path = tmp_path / "gate.yaml"
    path.write_text("admission_control:\n" + "".join(f"  {line}\n" for line in lines))
    return load(path)


def test_nothing_said_is_predictive_and_enforced() -> None:
    """As the published skeleton is."""
    admission = load(DATA / "skeleton.yaml").settings.admission
    assert admission.enforcing == Enforcing()
    assert admission.enforcing.strict
    assert (admission.reactive, admission.hybrid) == (ReactiveRules(), HybridRules())


def test_every_word_reaches_the_settings() -> None:
    """Of a file in which each differs from its default."""
    admission = load(DATA / "full.yaml").settings.admission
    assert admission.reactive == ReactiveRules(0.0, False)
    assert admission.hybrid == HybridRules(0.25, 1.0)
    modes = {name: pool.mode for name, pool in admission.pools.items()}
    assert modes == {"primary": Mode.HYBRID, "economy": Mode.REACTIVE}
    assert admission.enforcing == Enforcing(
        Enforcement.SHADOW,
        tenants={"no": Enforcement.ENFORCE},
        pools={"economy": Enforcement.OFF},
        rules={Rule.SHARE: Enforcement.OFF, Rule.LATENCY: Enforcement.ENFORCE},
    )


def test_what_is_recorded_is_beside_the_configuration(tmp_path: Path) -> None:
    """Its bounds come along, and nothing is recorded unless a file is named."""
    journal = load(DATA / "full.yaml").settings.journal
    assert journal == JournalSettings(str(DATA / "journal.jsonl"), 16 << 20, 0.5)
    assert written(tmp_path, "enabled: true").settings.journal == JournalSettings()
    (problem,) = (
        p for p in written(tmp_path, "journal: {sample: 0.5}").warnings if "journal" in p.field
    )
    assert "is of no use without a file" in problem.message


def test_a_file_is_for_one_thing(tmp_path: Path) -> None:
    """Learned state and journal would write over each other."""
    lines = ("journal: {file: x}", "learning: {state_file: x}")
    with pytest.raises(ConfigError, match=r"journal\.file: is learning"):
        written(tmp_path, *lines)


@pytest.mark.parametrize("word", ["off", "'off'"])
def test_off_need_not_be_quoted(tmp_path: Path, word: str) -> None:
    """To YAML 1.1 it is a boolean; here it can mean one thing only."""
    loaded = written(tmp_path, f"policies: {{share: {word}}}")
    assert loaded.settings.admission.enforcing.rules == {Rule.SHARE: Enforcement.OFF}


def test_a_pool_without_bounds_is_warned_about(tmp_path: Path) -> None:
    """Off for all its rules: nothing holds back anybody."""
    (problem,) = (
        p
        for p in written(tmp_path, POOL % ", enforcement: 'off'").warnings
        if "bounds" in p.message
    )
    assert problem.field == "admission_control.pools[0]"
    shadow = written(tmp_path, POOL % ", enforcement: shadow").warnings
    assert not [p for p in shadow if "bounds" in p.message]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("hybrid: {trust_error: 0.3}", "hybrid"),
        ("reactive: {most_waiting: 3}", "reactive"),
    ],
)
def test_bounds_that_nothing_uses_are_warned_about(tmp_path: Path, line: str, told: str) -> None:
    """Of predictive pools only; a pool of its own mode uses them."""
    assert f"admission_control.{told}" in [p.field for p in written(tmp_path, line).warnings]
    used = written(tmp_path, line, POOL % f", mode: {told}").warnings
    assert f"admission_control.{told}" not in [p.field for p in used]
