"""What holds for every test."""

from __future__ import annotations

from ctypes.util import find_library

import pytest
from hypothesis import HealthCheck, settings

from ext_authz.process import is_compiled

# Time says nothing on a machine that others use too.
settings.register_profile("shared", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


def pytest_addoption(parser: pytest.Parser) -> None:
    """A run in virtual time that failed is played again, or another one, by its seed."""
    parser.addoption("--seed", type=int, default=1, help="of scenarios in virtual time")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On the compiled build leave out what cannot be seen there: its classes are not patched."""
    if not is_compiled():
        return
    for item in items:
        for mark in item.iter_markers("interpreted"):
            item.add_marker(pytest.mark.skip(reason=f"compiled: {mark.args[0]}"))


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """The seed of scenarios in virtual time."""
    return int(pytestconfig.getoption("--seed"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say aloud what could not run: a skip must never look like a pass.

    A GPU is nothing a machine can be given by installing, so that lacking one fails nothing.
    """
    if find_library("nvidia-ml") is None:
        terminalreporter.write_line(
            "no GPU here: tests/integration/test_nvml_real_gpu.py did not run (make test-gpu)"
        )
    for report in terminalreporter.getreports("skipped"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        terminalreporter.write_line(f"NOT RUN {report.nodeid}: {reason}")
