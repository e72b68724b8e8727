"""The house rules that no linter knows: who may import whom, what PURE means, how long is long."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ext_authz"

# Imports point down: a module imports its own room and what is listed below it. First match wins.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("ext_authz.__main__",),
    ("ext_authz.cli",),
    ("ext_authz.pyvoy",),
    ("ext_authz.app", "ext_authz.agent", "ext_authz.replaying"),
    ("ext_authz.lookout",),
    ("ext_authz.fleet", "ext_authz.plan"),
    ("ext_authz.telemetry.worker",),
    ("ext_authz.simulation",),
    (
        "ext_authz.serving",
        "ext_authz.web",
        "ext_authz.deploy",
        "ext_authz.config.watch",
        "ext_authz.state.keeper",
        "ext_authz.telemetry.collector",
    ),
    (
        "ext_authz.journal",
        "ext_authz.journal_file",
        "ext_authz.metrics",
        "ext_authz.recorded",
        "ext_authz.recording",
    ),
    ("ext_authz.config", "ext_authz.telemetry", "ext_authz.state"),
    ("ext_authz.admission", "ext_authz.estimation"),
    ("ext_authz.clock", "ext_authz.process"),
    (
        "ext_authz.model",
        "ext_authz.settings",
        "ext_authz.overload",
        "ext_authz.snapshot",
        "ext_authz.errors",
        "ext_authz.histogram",
    ),
)
PURE = (
    "ext_authz.admission",
    "ext_authz.estimation",
    "ext_authz.deploy",
    "ext_authz.model",
    "ext_authz.overload",
    "ext_authz.recorded",
    "ext_authz.recording",
    "ext_authz.settings",
    "ext_authz.simulation",
    "ext_authz.snapshot",
    "ext_authz.state.learned",
    "ext_authz.errors",
    "ext_authz.histogram",
    "ext_authz.telemetry.describe",
    "ext_authz.telemetry.discovery.endpoint_slices",
    "ext_authz.telemetry.merge",
    "ext_authz.telemetry.pages.exposition",
    "ext_authz.telemetry.pages.mappings",
    "ext_authz.telemetry.pages.rates",
    "ext_authz.telemetry.pages.reading",
    "ext_authz.telemetry.sources.feedback.fields",
    "ext_authz.telemetry.sources.feedback.heartbeat",
    "ext_authz.telemetry.sources.feedback.intake",
    "ext_authz.telemetry.sources.prometheus.dcgm",
    "ext_authz.telemetry.sources.prometheus.promql",
    "ext_authz.telemetry.sources.prometheus.read",
    "ext_authz.telemetry.window",
    "ext_authz.telemetry.worker.outbox",
)
IMPURE = {
    "aiohttp", "asyncio", "grpc", "http", "logging", "nats", "os", "prometheus_client", "redis",
    "requests", "socket", "subprocess", "threading", "time", "urllib3", "uvloop",
}  # fmt: skip
# The one clock; everything else is handed the time.
CLOCKS = {("time", name) for name in ("time", "monotonic", "perf_counter", "time_ns")}
CLOCKS |= {("datetime", "now"), ("datetime", "utcnow"), ("date", "today")}
CHANCE = {"random", "randint", "uniform", "choice", "shuffle", "expovariate", "gauss"}
MOST_LINES, MOST_FUNCTION_LINES = 300, 50

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def tree(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text())


def imported(name: str) -> Iterator[str]:
    """Full names of the modules that a module imports, at any depth."""
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


def within(name: str, room: str) -> bool:
    return name == room or name.startswith(room + ".")


def layer(name: str) -> int:
    """Index into LAYERS of the most specific room that `name` lies in."""
    rooms = [(len(r), i) for i, rooms in enumerate(LAYERS) for r in rooms if within(name, r)]
    return max(rooms)[1]


@pytest.mark.parametrize("name", [n for n in MODULES if n != "ext_authz"])
def test_imports_point_down(name: str) -> None:
    """No module imports a room above its own, and a room beside it only within one layer."""
    up = [i for i in imported(name) if within(i, "ext_authz") and layer(i) < layer(name)]
    assert not up, f"{name} imports upwards: {up}"


@pytest.mark.parametrize("name", [n for n in MODULES if any(within(n, room) for room in PURE)])
def test_pure_rooms_do_no_io_and_take_time_and_chance_as_arguments(name: str) -> None:
    """Pure modules import no I/O, read no clock and use no global random."""
    roots = {i.split(".")[0] for i in imported(name)}
    assert not roots & IMPURE, f"{name} imports {sorted(roots & IMPURE)}"
    calls = {
        (node.value.id, node.attr)
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    chance = {(module, attr) for module, attr in calls if module == "random" and attr in CHANCE}
    assert not (calls & CLOCKS) | chance


@pytest.mark.parametrize("name", [n for n in MODULES if n != "ext_authz.clock"])
def test_only_one_module_reads_the_clock(name: str) -> None:
    """Everything outside `clock` is handed the time, or a Clock."""
    read = {
        (node.value.id, node.attr)
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    assert not read & CLOCKS


def test_every_module_is_used() -> None:
    """A module that nobody imports is dead; only the entry points are called from outside: the
    command, the simulation, which load tests and scenarios drive, and what pyvoy loads by name."""
    used = {i for name in MODULES for i in imported(name)}
    packages = {n for n, path in MODULES.items() if path.name == "__init__.py"}
    entries = {"ext_authz.__main__", "ext_authz.simulation.world", "ext_authz.pyvoy.inside"}
    assert set(MODULES) - used - packages == entries


def test_no_python_hides_the_installed_envoy_package() -> None:
    """A Python file in top-level envoy/ would shadow the package of that name."""
    assert not list((ROOT / "envoy").rglob("*.py"))


@pytest.mark.parametrize("folder", ["ext_authz", "loadtest", "tests"])
def test_files_and_functions_can_be_read_in_one_sitting(folder: str) -> None:
    """Nobody has to scroll for ever."""
    long = []
    for path in (ROOT / folder).rglob("*.py"):
        text = path.read_text()
        if text.count("\n") > MOST_LINES:
            long.append(f"{path.name}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MOST_FUNCTION_LINES:
                    long.append(f"{path.name}: {node.name} has {lines} lines")
    assert not long, long


def test_the_product_reads_nothing_from_the_load_test() -> None:
    """The gate must not know the backend model it is tested against."""
    assert not [n for n in MODULES for i in imported(n) if within(i, "loadtest")]
