"""The composition root: a configuration that this machine cannot run is refused, whole."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from random import Random

import pytest

from ext_authz.app import App
from ext_authz.clock import SystemClock
from ext_authz.config import load
from ext_authz.errors import ConfigError

CONFIG = """\
admission_control:
  {more}
  pools:
    - {{name: p, endpoints: ["http://127.0.0.1:1"], max_concurrency: {slots}}}
  server: {{grpc_listen: 127.0.0.1:0, admin_listen: 127.0.0.1:0}}
"""
LACKING = {
    "nvml": ("metrics_sources: [{type: scrape}, {type: nvml}]", r"ext-authz\[nvml\]"),
    "twice": (
        "metrics_sources: [{type: prometheus, url: 'http://p'}, {type: prometheus, url: 'http://p'}]",
        "two sources are prometheus/p",
    ),
}


def write(path: Path, more: str, slots: int) -> None:
    path.write_text(CONFIG.format(more=more, slots=slots))


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine without the driver's package."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pynvml" else find(name)
    )
    return monkeypatch


@pytest.mark.parametrize("kind", LACKING)
async def test_a_reload_that_cannot_run_changes_nothing(
    tmp_path: Path, lacking: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """What is missing is told with file and remedy, and the last good configuration stays, to
    its last slot; once it can be had, the next change is taken over."""
    more, _ = LACKING[kind]
    path = tmp_path / "gate.yaml"
    write(path, "enabled: true", slots=3)
    app = App(path, load(path), Random(1))
    before = app._gate.settings
    write(path, more, slots=4)
    app._watcher.poll_once(SystemClock().now())
    assert app._gate.settings is before
    assert app._lookout.status()["fingerprint"] == before.fingerprint
    assert app._metrics.value("config_reloads", "refused") == 1
    assert "last good one stays" in caplog.text
    assert f"{path}:1: admission_control.metrics_sources: " in caplog.text
    assert "; install what is missing, or take it out" in caplog.text
    lacking.undo()
    write(path, "metrics_sources: [{type: scrape}, {type: nvml}]", slots=5)
    app._watcher.poll_once(SystemClock().now())
    assert app._gate.settings.admission.pools["p"].slots == 5
    assert app._metrics.value("config_reloads", "loaded") == 1


@pytest.mark.parametrize("kind", LACKING)
async def test_a_start_that_cannot_run_says_where_and_what(
    tmp_path: Path, lacking: pytest.MonkeyPatch, kind: str
) -> None:
    """The same problem at the start is one of the file, not a fault of ours."""
    more, message = LACKING[kind]
    path = tmp_path / "gate.yaml"
    write(path, more, slots=6)
    with pytest.raises(ConfigError, match=message) as caught:
        App(path, load(path), Random(1))
    assert caught.value.problems[0].file == str(path)
