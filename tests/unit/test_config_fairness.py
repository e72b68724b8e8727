"""How pools are shared, as it is configured."""

from __future__ import annotations

from pathlib import Path

import pytest

from ext_authz.config import load
from ext_authz.errors import ConfigError
from ext_authz.overload import ShareRules


def loaded(tmp_path: Path, fairness: str) -> ShareRules:
    """The rules that are read."""
    path = tmp_path / "gate.yaml"
    path.write_text(f"admission_control:\n  scheduling:\n    fairness: {{{fairness}}}\n")
    return load(path).settings.admission.shares


def test_defaults_are_those_of_the_rules(tmp_path: Path) -> None:
    """What is not written is as the pure core has it."""
    assert loaded(tmp_path, "") == ShareRules()


def test_every_key_reaches_the_rules() -> None:
    """Of the file with every key away from its default."""
    data = Path(__file__).parents[1] / "data" / "config"
    rules = load(data / "full.yaml").settings.admission.shares
    assert rules == ShareRules(3.0, 0.2, 0.5, 300.0, False, 2.0, 0.05)


@pytest.mark.parametrize(
    ("fairness", "told"),
    [
        ("low_class_floor: 0.5", "low_class_floor: is not at least 0 and at most 0.3"),
        ("output_token_price: 1e6", "output_token_price: is not at least 0 and at most 100"),
        ("low_floor: 0.1", "low_floor: "),
        ("heavy_tenant_share: 0", "heavy_tenant_share: is not above 0 and at most 1"),
        ("heavy_tenant_window: 600", "heavy_tenant_window: has no unit"),
    ],
)
def test_bad_values_are_told_with_their_line(tmp_path: Path, fairness: str, told: str) -> None:
    """As everywhere: file, line, field and what to do."""
    with pytest.raises(ConfigError) as failure:
        loaded(tmp_path, fairness)
    assert "gate.yaml:3: " in str(failure.value)
    assert told in str(failure.value)
