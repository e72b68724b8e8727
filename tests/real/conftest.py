"""Collects this folder only when it is named, and prints the figures that its tests took."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave everything here out, unless an argument names this folder or a file in it."""
    start = config.invocation_params.dir
    named = [(start / argument.partition("::")[0]).resolve() for argument in config.args]
    wanted = any(path == HERE or HERE in path.parents for path in named)
    return None if wanted else True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The figures that tests recorded of the servers, so that a log tells what was seen."""
    for report in terminalreporter.getreports("passed"):
        figures = ", ".join(f"{name} {value}" for name, value in report.user_properties)
        if figures:
            terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {figures}")
