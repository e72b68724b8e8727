"""What a file says of waiting and of where those go that cannot, and what it means."""

from __future__ import annotations

from pathlib import Path

import pytest

from ext_authz.config import Loaded, load
from ext_authz.errors import ConfigError
from ext_authz.overload import Degrade, Demotion, HoldRules, Relief

DATA = Path(__file__).parent.parent / "data" / "config"
P = "{name: p, models: [m], endpoints: ['http://10.0.0.1:8000']}"
Q = "{name: q, models: [m, n], endpoints: ['http://10.0.0.2:8000']}"
ANY = "{name: any, endpoints: ['http://10.0.0.3:8000']}"


def written(tmp_path: Path, hold: str, *pools: str, more: str = "") -> Loaded:
    """A configuration of these rules and pools."""
    path = tmp_path / "gate.yaml"
    lines = [f"hold: {hold}", f"pools: [{', '.join(pools or (P, Q))}]", *([more] if more else [])]
    path.write_text("admission_control:\n" + "".join(f"  {line}\n" for line in lines))
    return load(path)


def test_every_word_reaches_the_settings() -> None:
    """Of a file in which each differs from its default."""
    admission = load(DATA / "full.yaml").settings.admission
    assert admission.hold == HoldRules(1.0, Relief.REJECT, Relief.OVERFLOW, 50, 0.5)
    # The economy pool serves any model.
    targets = {name: pool.overflow_to for name, pool in admission.pools.items()}
    assert targets == {"primary": "economy", "economy": None}
    degrades = {name: pool.degrade for name, pool in admission.pools.items()}
    assert degrades == {"primary": None, "economy": Degrade(256, 0.9)}


def test_nothing_said_holds_for_a_moment(tmp_path: Path) -> None:
    """And goes down the chain of demotion; nothing is asked of servers."""
    admission = written(tmp_path, "{}").settings.admission
    assert admission.hold == HoldRules(0.2, Relief.DEMOTE, Relief.DEMOTE, 1000, 0.8)
    assert admission.pools["p"].degrade is None
    assert admission.pools["p"].overflow_to is None


def test_a_degrade_needs_its_bound_only(tmp_path: Path) -> None:
    """Then it is for what was demoted."""
    pool = P.replace("models", "degrade: {max_tokens: 1e3}, models")
    assert written(tmp_path, "{}", pool).settings.admission.pools["p"].degrade == Degrade(1000)


@pytest.mark.parametrize(
    ("pools", "target", "expected"),
    [
        ((P, Q), "q", {"p": "q", "q": None}),
        ((P, Q, ANY), "any", {"p": "any", "q": "any", "any": None}),
        ((P, Q, ANY), "q", {"p": "q", "q": None, "any": None}),
    ],
)
def test_an_overflow_goes_where_every_model_is_served(
    tmp_path: Path, pools: tuple[str, ...], target: str, expected: dict[str, str | None]
) -> None:
    """A pool of any model overflows into none that serves some."""
    hold = f"{{when_full: overflow, overflow_pool: {target}}}"
    made = written(tmp_path, hold, *pools).settings.admission.pools
    assert {name: pool.overflow_to for name, pool in made.items()} == expected


@pytest.mark.parametrize(
    ("hold", "pools", "told"),
    [
        ("{when_full: overflow}", (P, Q), "is missing, though something overflows; name a pool"),
        ("{when_late: overflow}", (P, Q), "is missing, though something overflows; name a pool"),
        (
            "{when_late: overflow, overflow_pool: r}",
            (P, Q),
            "no pool is named r; name one of the pools",
        ),
        ("{overflow_pool: r}", (P, Q), "no pool is named r; name one of the pools"),
        (
            "{when_full: overflow, overflow_pool: p}",
            (P, Q),
            "p serves all models of no other pool; add their models to it, or name another pool",
        ),
        (
            "{when_full: overflow, overflow_pool: p}",
            (P,),
            "p serves all models of no other pool; add their models to it, or name another pool",
        ),
    ],
)
def test_an_overflow_that_leads_nowhere(
    tmp_path: Path, hold: str, pools: tuple[str, ...], told: str
) -> None:
    """Each is the only problem, at its line and field."""
    with pytest.raises(ConfigError) as caught:
        written(tmp_path, hold, *pools)
    (problem,) = caught.value.problems
    assert problem.field == "admission_control.hold.overflow_pool"
    assert (problem.line, f"{problem.message}; {problem.remedy}") == (2, told)


def test_an_overflow_pool_that_nothing_uses(tmp_path: Path) -> None:
    """A warning: the file still means something."""
    found = [p for p in written(tmp_path, "{overflow_pool: q}").warnings if "hold" in p.field]
    assert [(p.field, p.message) for p in found] == [
        ("admission_control.hold.overflow_pool", "is of no use: nothing overflows")
    ]


def test_who_may_be_demoted_is_said_of_tenants_and_types(tmp_path: Path) -> None:
    """Each by itself; the stricter counts when a request is decided."""
    tenants = "tenants: [{name: a, demote: preferred}, {name: b}]"
    types = "scheduling: {types: {slow: {demote: forbidden}}}"
    admission = written(tmp_path, "{}", more=f"{tenants}\n  {types}").settings.admission
    assert {t.name: t.demotion for t in admission.tenants.values()} == {
        "a": Demotion.PREFERRED,
        "b": Demotion.ALLOWED,
    }
    assert admission.types["slow"].demotion is Demotion.FORBIDDEN
