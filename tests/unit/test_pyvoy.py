"""What can be held of the fast host without pyvoy."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path
from threading import Thread

import pytest

from ext_authz.cli import main
from ext_authz.config import load
from ext_authz.pyvoy.envoy import envoy_config
from ext_authz.pyvoy.given import Given
from ext_authz.pyvoy.supervise import _held, _run

CONFIG = """\
admission_control:
  pools:
    - {{name: p, endpoints: ["http://127.0.0.1:1"], max_concurrency: 1}}
  server: {{{server}}}
"""


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without pyvoy, which that of the tests is anyway."""
    monkeypatch.setitem(sys.modules, "pyvoy", None)


@pytest.mark.parametrize(
    ("server", "arguments"), [("host: pyvoy", ()), ("drain: 1s", ("--host", "pyvoy"))]
)
def test_where_pyvoy_is_missing_the_extra_is_named(
    tmp_path: Path,
    lacking: None,
    capsys: pytest.CaptureFixture[str],
    server: str,
    arguments: tuple[str, ...],
) -> None:
    """With the place in the file, whoever asked for it."""
    path = tmp_path / "gate.yaml"
    path.write_text(CONFIG.format(server=server))
    assert main(["serve", "--config", str(path), *arguments]) == 1
    told = capsys.readouterr().err
    assert f"{path}:1: admission_control.server.host: " in told
    assert 'pip install "ext-authz[pyvoy]"' in told


def test_the_host_is_a_setting(tmp_path: Path) -> None:
    """grpc unless asked for."""
    path = tmp_path / "gate.yaml"
    for server, host in (("drain: 1s", "grpc"), ("host: pyvoy", "pyvoy"), ("host: grpc", "grpc")):
        path.write_text(CONFIG.format(server=server))
        assert load(path).settings.server.host == host


def test_an_unknown_host_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what it may be."""
    path = tmp_path / "gate.yaml"
    path.write_text(CONFIG.format(server="host: pyvoi"))
    assert main(["check", str(path)]) == 1
    told = capsys.readouterr().err
    assert "is not one of grpc, pyvoy; did you mean pyvoy?" in told


def test_envoy_is_set_up_as_a_grpc_server() -> None:
    """Only HTTP/2, no end of silent streams, room for the largest message, no port for orders."""
    manager: dict[str, object] = {"stat_prefix": "x"}
    chain = {"filters": [{"name": "hcm", "typed_config": manager}]}
    made = {
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
        "static_resources": {"listeners": [{"name": "listener", "filter_chains": [chain]}]},
    }
    config = envoy_config(made, "/run/admin.sock", 1000)
    assert config["admin"] == {"address": {"pipe": {"path": "/run/admin.sock", "mode": 0o600}}}
    (listener,) = config["static_resources"]["listeners"]
    assert listener["per_connection_buffer_limit_bytes"] > 1005
    read = listener["filter_chains"][0]["filters"][0]["typed_config"]
    assert (read["codec_type"], read["stream_idle_timeout"]) == ("HTTP2", "0s")
    assert read["stat_prefix"] == "x"


def test_what_is_given_comes_back() -> None:
    """Through the environment, which knows text only."""
    given = Given("/gate.yaml", "info", 1, 2, "/admin", "/python", None)
    assert Given.load(given.dump()) == given


def test_the_address_is_kept_until_envoy_has_it() -> None:
    """A port that the system chose is nobody else's, and Envoy can still listen at it."""
    with _held("127.0.0.1:0") as held:
        address = held.getsockname()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(address)
        with socket.socket() as envoy:
            envoy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            envoy.bind(address)
            envoy.listen()
        with pytest.raises(OSError, match=r"cannot listen on 192\.0\.2\.1:9001"):
            _held("192.0.2.1:9001")


@pytest.mark.parametrize("listen", ["[::1]:0", "localhost:0"])
def test_names_and_both_families_can_be_listened_at(listen: str) -> None:
    """As with the other host."""
    with _held(listen) as held:
        assert held.getsockname()[1] > 0


def test_a_second_signal_ends_what_does_not_drain(tmp_path: Path) -> None:
    """The first one closes the pipe; a process that then hangs is ended by the next."""
    ready = tmp_path / "ready"
    hangs = f"import pathlib, time; pathlib.Path({str(ready)!r}).touch(); time.sleep(60)"

    def signal_twice() -> None:
        while not ready.exists():
            time.sleep(0.01)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)

    # A signal that comes too early must not end the tests.
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    thread = Thread(target=signal_twice)
    try:
        thread.start()
        code = _run([sys.executable, "-c", hangs], dict(os.environ), str(tmp_path), os.pipe())
        thread.join()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert code == 128 + signal.SIGTERM
