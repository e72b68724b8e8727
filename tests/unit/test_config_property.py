"""Any well-formed configuration compiles, and no mutation of one raises but ConfigError."""

from __future__ import annotations

import copy
import string
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_authz.config.compile import Loaded, load_from
from ext_authz.config.files import Files
from ext_authz.errors import ConfigError, Problem

PATH = Path("config.yaml")

names = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=12)
weights = st.floats(1e-6, 1e6)
whole = st.integers(1, 1_000_000)
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
seconds = st.integers(100, 15_000)


def load_text(text: str) -> Loaded:
    """Load `text` without a file system."""
    return load_from(PATH, Files({PATH: text.encode("utf-8", "surrogatepass")}))


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """A well-formed configuration as plain data."""
    models = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    types = draw(st.lists(names, max_size=3, unique=True))
    pool_names = draw(st.lists(names, max_size=3, unique=True))
    pools: list[dict[str, Any]] = []
    for index, name in enumerate(pool_names):
        urls: list[Any] = [f"http://h{index}-{port}:{port}" for port in draw(st.sets(whole16))]
        pool: dict[str, Any] = {
            "name": name,
            "models": models,
            "endpoints": [*urls, {"url": f"https://h{index}"}],
        }
        if index:
            pool["demote_to"] = pool_names[index - 1]
        pools.append(pool)
    unique = draw(st.lists(digests, max_size=6, unique=True))
    tenants = [
        {
            "name": name,
            "weight": draw(weights),
            "types": draw(st.lists(st.sampled_from([*types, "default"]), min_size=1)),
            "models": draw(st.lists(st.sampled_from(models), min_size=1)),
            "api_key_sha256": unique[index::4],
            "limits": {"requests_per_second": draw(weights), "max_concurrent": draw(whole)},
        }
        for index, name in enumerate(draw(st.lists(names, max_size=4, unique=True)))
    ]
    interval_ms = draw(seconds)
    return {
        "metrics_source": {"scrape_interval": f"{interval_ms}ms"},
        "scheduling": {"types": {name: {"weight": draw(weights)} for name in types}},
        "slo": {"requests": {f"/{name}*": {"slo_ms": draw(weights)} for name in types}},
        "pools": pools,
        "tenants": draw(
            st.sampled_from(
                [tenants, {t["name"]: {k: v for k, v in t.items() if k != "name"} for t in tenants}]
            )
        ),
    }


whole16 = st.integers(1, 65535)


def dumped(config: Any) -> str:
    """As YAML text, which quotes what would change its type."""
    return yaml.safe_dump({"admission_control": config}, sort_keys=False)


@settings(max_examples=60, deadline=None)
@given(configs())
def test_well_formed_compiles(config: dict[str, Any]) -> None:
    """Everything that was written is in the settings, under the same names."""
    loaded = load_text(dumped(config))
    admission = loaded.settings.admission
    assert [*admission.pools] == [pool["name"] for pool in config["pools"]]
    for pool in config["pools"]:
        assert len(admission.pools[pool["name"]].endpoints) == len(pool["endpoints"])
        assert admission.pools[pool["name"]].demote_to == pool.get("demote_to")
    bodies = config["tenants"]
    listed = bodies if isinstance(bodies, list) else [{"name": n, **b} for n, b in bodies.items()]
    assert {name: tenant.weight for name, tenant in admission.tenants.items()} == {
        tenant["name"]: pytest.approx(tenant["weight"]) for tenant in listed
    }
    assert {key.hex(): owner for key, owner in loaded.settings.keys.items()} == {
        key: tenant["name"] for tenant in listed for key in tenant["api_key_sha256"]
    }


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path below `node`."""
    if not isinstance(node, dict | list):
        return []
    items = node.items() if isinstance(node, dict) else enumerate(node)
    return [found for key, child in items for found in ((*path, key), *places(child, (*path, key)))]


junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.dates(),
    st.lists(st.text(max_size=3), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.sampled_from(
        ["0s", "1", "-1s", "9" * 400, "1e999", "http://[::1", "http://a:b@c", "/*/", "$"]
    ),
)


def check_only_config_error(text: str) -> None:
    """Loading gives settings, or problems that are complete and lie in the file."""
    problems: tuple[Problem, ...] = ()
    try:
        load_text(text)
    except ConfigError as error:
        problems = error.problems
        accepted = False
    else:
        accepted = True
    assert accepted or problems
    lines = len(text.splitlines()) + 1
    for problem in problems:
        assert problem.message
        assert problem.remedy
        assert problem.field
        assert 1 <= problem.line <= lines


@settings(max_examples=60, deadline=None)
@given(configs(), st.data())
def test_mutated_values_and_keys(config: dict[str, Any], data: st.DataObject) -> None:
    """Any value or key replaced, taken away or added gives settings or a ConfigError."""
    mutant: Any = copy.deepcopy(config)
    for _ in range(data.draw(st.integers(1, 4))):
        found = places(mutant)
        path = data.draw(st.sampled_from(found))
        parent = mutant
        for part in path[:-1]:
            parent = parent[part]
        action = data.draw(st.sampled_from(["replace", "delete", "add", "rename"]))
        if action == "delete":
            del parent[path[-1]]
        elif isinstance(parent, list) or action == "replace":
            parent[path[-1]] = data.draw(junk)
        else:
            key = data.draw(st.text(max_size=8))
            parent[key] = data.draw(junk) if action == "add" else parent.pop(path[-1])
        if not places(mutant):
            break
    check_only_config_error(dumped(mutant))


@settings(max_examples=60, deadline=None)
@given(configs(), st.data())
def test_mutated_text(config: dict[str, Any], data: st.DataObject) -> None:
    """Letters of YAML thrown into the text give settings or a ConfigError."""
    text = dumped(config)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 5)))
        letters = st.one_of(
            st.text(" \n\t:-[]{}&*!|>'\"%@`#?,<~0a", max_size=6), st.text(max_size=3)
        )
        text = text[:start] + data.draw(letters) + text[end:]
    check_only_config_error(text)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes(data: bytes) -> None:
    """Bytes that are no configuration at all give a ConfigError."""
    with pytest.raises(ConfigError):
        load_from(PATH, Files({PATH: data}))
