"""The demo's way of the access log: led through a process, cut, mended; and what is made of it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import Mock

import yaml

from ext_authz.config.compile import load
from ext_authz.deploy.envoy import render_envoy
from loadtest.demo import log_cut
from loadtest.demo.log_cut import AHEAD_S, CUT_S, LEASE_S, LogCut
from loadtest.demo.log_way import LogWay
from loadtest.demo.plan import DEMO, Server
from loadtest.demo.stack import Backend, Stack, gate_config
from loadtest.processes import free_port


@contextmanager
def pages(said: dict[str, dict[str, int]]) -> Iterator[int]:
    """Answers each path with its JSON."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(said[self.path.partition("?")[0]]).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def reaches(port: int, within: int = 200) -> bool:
    """Whether a page can be had at `port`; a process that was just started gets its time."""
    for _ in range(within):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as way:
                way.sendall(b"GET /x HTTP/1.0\r\n\r\n")
                return way.recv(15).startswith(b"HTTP/1.0 200")
        except ConnectionRefusedError:
            threading.Event().wait(0.05)
    return False


def test_the_way_is_cut_and_mended(tmp_path: Path) -> None:
    """Bytes pass, then nothing connects, then bytes pass again on the same port."""
    with pages({"/x": {}}) as target, ExitStack() as stack:
        way = LogWay(target, tmp_path, stack)
        assert reaches(way.port)
        way.cut()
        assert not reaches(way.port, within=1)
        way.mend()
        assert reaches(way.port)


def test_only_the_log_is_led_that_way(tmp_path: Path) -> None:
    """Of the rendered Envoy nothing but the log cluster's port changes, and the settings of the
    cut are settings that load."""
    port = free_port()
    backend = Backend(Server("primary", "demo-primary", 4), f"http://127.0.0.1:{port}", Mock())
    ports = {name: 1024 + at for at, name in enumerate(("edge", "grpc", "admin", "feedback"))}
    config = gate_config(DEMO, (backend,), ports)
    del config["admission_control"]["pools"][0]["demote_to"]
    for name, changes in log_cut.SETTINGS.items():
        config["admission_control"][name].update(changes)
    (tmp_path / "gate.yaml").write_text(yaml.safe_dump(config))
    settings = load(tmp_path / "gate.yaml").settings
    assert settings.admission.lease_s == LEASE_S
    rendered = yaml.safe_load(render_envoy(settings))
    with ExitStack() as stack:
        way = LogWay(1024, tmp_path, stack)
        led = way.lead(yaml.safe_load(render_envoy(settings)))
    before, after = rendered["static_resources"], led["static_resources"]
    for old, new in zip(before["clusters"], after["clusters"], strict=True):
        if new["name"] == "ext_authz_access_log":
            old_end, new_end = (json.dumps(one["load_assignment"]) for one in (old, new))
            assert new_end == old_end.replace(str(ports["grpc"]), str(way.port))
        else:
            assert new == old
    assert after["listeners"] == before["listeners"]


def test_the_books_are_compared_part_by_part() -> None:
    """Cut and mended when due; each part's means come from its own looks."""
    said = {"/debug/status": {"in_flight": 9}, "/log": {"in_flight": 9}}
    with pages(said) as port:
        url = f"http://127.0.0.1:{port}"
        backend = Backend(DEMO.servers[0], url, Mock())
        way = Mock()
        cut = LogCut(Stack("", "", url, (backend, backend), Mock(), way))
        middle_s = 100.0
        steps = 0.5
        now = middle_s - AHEAD_S - 2.0
        while now < middle_s - AHEAD_S + CUT_S + LEASE_S + 3.0:
            is_cut = way.cut.called and not way.mend.called
            said["/debug/status"]["in_flight"] = 40 if is_cut else 9
            cut.step(now, middle_s)
            now += steps
        assert (way.cut.call_count, way.mend.call_count) == (1, 1)
        said["/debug/status"]["in_flight"] = 0
        notes = cut.notes()
    figures = [line.split()[-3:] for line in notes[1:5]]
    assert figures == [["9.0", "/", "18.0"], ["40.0", "/", "18.0"], *[["9.0", "/", "18.0"]] * 2]
    assert notes[0].startswith("access log cut off for 5.0 s")
    assert notes[-1].endswith(": 0")
