"""Checks and access logs as bytes: whatever comes in, something well-formed goes out."""

from __future__ import annotations

import datetime
import json
import logging
import warnings
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as tuned
from hypothesis import strategies as st

from tests.support.service import KEY, Service, chat, http_check

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from envoy_data_plane.envoy.config.core import v3 as core
    from envoy_data_plane.envoy.data.accesslog import v3 as data
    from envoy_data_plane.envoy.service.accesslog import v3 as accesslog
    from envoy_data_plane.google import protobuf

# Some generated fields are deprecated and say so whenever they are set.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

junk = st.one_of(
    st.binary(max_size=300),
    st.integers(0, len(chat())).map(lambda size: chat()[:size]),
    st.tuples(st.integers(0, len(chat()) - 1), st.integers(1, 255)).map(
        lambda at: chat()[: at[0]] + bytes([chat()[at[0]] ^ at[1]]) + chat()[at[0] + 1 :]
    ),
)


def well_formed(answer: Any) -> bool:
    """Code 0 stands beside ok_response or nothing, every other beside an HTTP answer."""
    kind = answer.WhichOneof("http_response")
    if answer.status.code == 0:
        return bool(kind == "ok_response")
    return kind in {"denied_response", "error_response"}


@tuned(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(junk)
async def test_any_bytes(caplog: pytest.LogCaptureFixture, request_bytes: bytes) -> None:
    """No bytes bring a fault, a malformed answer, or a pass that is not booked."""
    service = Service()
    answer = await service.check(request_bytes)
    assert well_formed(answer)
    assert service.in_flight == (answer.status.code == 0)
    assert not caplog.records


@given(st.binary(max_size=200))
async def test_any_body(body: bytes) -> None:
    """A body is the server's to judge: whatever is in it, the answer is well-formed."""
    service = Service()
    answer = await service.check(http_check({"authorization": f"Bearer {KEY}"}, body))
    assert well_formed(answer)
    assert answer.denied_response.status.code in {0, 413, 429}


@given(st.lists(st.tuples(st.text(max_size=20), st.binary(max_size=50)), max_size=8))
async def test_any_headers(headers: list[tuple[str, bytes]]) -> None:
    """Without a good key no headers are let in."""
    service = Service()
    answer = await service.check(http_check(dict(headers), b"{}"))
    assert well_formed(answer)
    assert answer.denied_response.status.code == 401
    assert service.in_flight == 0


@pytest.mark.interpreted("a method of one controller is replaced")
async def test_a_fault_of_ours_is_left_to_the_failure_mode(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug becomes error_response 503; the log names its type and never what it said."""
    service = Service()

    def fail(*_: object) -> None:
        raise ValueError("sk-good and a prompt")

    monkeypatch.setattr(service.gate.controller, "arrive", fail)
    answer = await service.check(chat())
    assert answer.WhichOneof("http_response") == "error_response"
    assert (answer.status.code, answer.error_response.status.code) == (13, 503)
    assert "ValueError" in caplog.text
    assert "sk-good" not in caplog.text


@pytest.mark.interpreted("a method of one codec is replaced")
async def test_an_answer_that_cannot_be_written(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decision that the codec chokes on is a fault as well, not an exception for the host."""
    service = Service()

    def fail(*_: object) -> bytes:
        raise TypeError("sk-good")

    monkeypatch.setattr(service.codec, "_permission", fail)
    answer = await service.check(chat())
    assert answer.error_response.status.code == 503
    assert "sk-good" not in caplog.text


@pytest.mark.parametrize(
    ("remaining_s", "booked"), [(None, 1), (0.5, 1), (0.003, 1), (0.001, 0), (0.0, 0), (-1.0, 0)]
)
async def test_too_late_books_nothing(remaining_s: float | None, booked: int) -> None:
    """A caller that cannot get the answer in time is refused, and nothing is charged."""
    service = Service()
    answer = await service.check(chat(), remaining_s)
    assert service.in_flight == booked
    assert (answer.status.code == 0) == bool(booked)
    if not booked:
        assert answer.denied_response.status.code == 429


async def test_a_decision_is_counted_and_kept() -> None:
    """Every Check is in the journal and in the metrics, under its request id, key left out."""
    service = Service(slots=1)
    await service.check(chat(request_id="q-7"))
    await service.check(chat(request_id="q-8"))
    await service.check(b"\xff")
    await service.check(chat(key="sk-bad", request_id="x" * 500))
    kept = [(e.request_id, e.decision.reason.value) for e in service.gate.journal.recent(9)]
    assert kept == [
        ("x" * 64, "unknown_key"),
        ("", "malformed_check"),
        ("q-8", "at_capacity"),
        ("q-7", "idle_endpoint"),
    ]
    assert service.metrics.value("decisions", "acme", "p", "admit", "admit", "idle_endpoint") == 1


def entry(decision_id: str = "", request_id: str = "", **changes: Any) -> data.HttpAccessLogEntry:
    """The end of a request, as Envoy tells it."""
    fields = {"decision_id": protobuf.Value(string_value=decision_id)} if decision_id else {}
    struct = protobuf.Struct(fields=fields)
    common: dict[str, Any] = {
        "metadata": core.Metadata(filter_metadata={"envoy.filters.http.ext_authz": struct}),
        "access_log_type": data.AccessLogType(changes.get("kind", 6)),
        "duration": datetime.timedelta(seconds=0.2),
        "response_flags": data.ResponseFlags(**changes.get("flags", {})),
    }
    if changes.get("upstream"):
        socket = core.SocketAddress(address="10.0.0.1", port_value=80)
        common["upstream_remote_address"] = core.Address(socket_address=socket)
    return data.HttpAccessLogEntry(
        common_properties=data.AccessLogCommon(**common),
        request=data.HttpRequestProperties(request_id=request_id),
        response=data.HttpResponseProperties(
            response_code=200, response_code_details=changes.get("details", "via_upstream")
        ),
    )


def log(*entries: data.HttpAccessLogEntry) -> bytes:
    logs = accesslog.StreamAccessLogsMessageHttpAccessLogEntries(log_entry=list(entries))
    return bytes(accesslog.StreamAccessLogsMessage(http_logs=logs))


async def consume(service: Service, *messages: bytes) -> bytes:
    async def stream() -> AsyncIterator[bytes]:
        for message in messages:
            yield message

    return await service.sink.consume(stream())


async def test_settled_once() -> None:
    """The first end of a request frees its slot; doubles and strangers change nothing."""
    service = Service(slots=1)
    await service.check(chat())
    await consume(service, log(entry("r-1", kind=5)), log(entry("r-0"), entry("r-1"), entry("r-1")))
    assert service.in_flight == 0
    counts = {r: service.metrics.value("access_log_entries", r) for r in ("renewed", "settled")}
    assert counts == {"renewed": 1, "settled": 1}
    assert service.metrics.value("access_log_entries", "unknown") == 1
    assert service.metrics.value("access_log_entries", "doubled") == 1
    assert (await service.check(chat())).status.code == 0


async def test_junk_on_a_stream_is_counted_and_passed_over() -> None:
    """An undecodable message neither ends its stream nor hides the next one."""
    service = Service()
    await service.check(chat())
    assert await consume(service, b"\xff\xff", b"", log(entry("r-1"))) == b""
    assert service.in_flight == 0
    assert service.metrics.value("access_log_entries", "malformed") == 1


GIVEN_UP = {
    "timed out": entry(request_id="q-1", details="ext_authz_error"),
    "client left": entry(request_id="q-1", details="downstream_remote_disconnect"),
    "connection lost": entry(
        request_id="q-1", details="", flags={"downstream_connection_termination": True}
    ),
    "failed open": entry(request_id="q-1", upstream=True),
    "failed open, no room": entry(
        request_id="q-1", details="upstream_reset_before_response_started{overflow}"
    ),
}


@pytest.mark.parametrize("told", GIVEN_UP.values(), ids=GIVEN_UP.keys())
async def test_an_answer_nobody_used_is_taken_back(told: data.HttpAccessLogEntry) -> None:
    """Joined by request id: booked, then given up, frees the slot at once and teaches nothing."""
    service = Service(slots=1)
    await service.check(chat())
    await consume(service, log(told))
    assert service.in_flight == 0
    assert service.metrics.value("access_log_entries", "given_up") == 1
    ((_, endpoint),) = service.gate.controller.endpoint_states()
    assert endpoint.execution.value_s is None


@pytest.mark.parametrize("told", GIVEN_UP.values(), ids=GIVEN_UP.keys())
async def test_given_up_before_it_was_decided(told: data.HttpAccessLogEntry) -> None:
    """A Check that comes after Envoy gave up on it is refused, and books nothing."""
    service = Service()
    await consume(service, log(told))
    answer = await service.check(chat())
    assert answer.denied_response.status.code == 429
    assert service.in_flight == 0
    assert (await service.check(chat(request_id="q-2"))).status.code == 0


@pytest.mark.parametrize(
    "told",
    [
        entry(request_id="q-1", details="ext_authz_denied"),
        entry(request_id="q-1", details="local_rate_limited"),
        entry(request_id="q-1", details="ext_authz_error", kind=5),
        entry(request_id="", details="ext_authz_error"),
        entry(request_id="q-2", details="ext_authz_error"),
        entry(request_id="q" * 65, details="ext_authz_error"),
    ],
)
async def test_other_entries_leave_a_booking_alone(told: data.HttpAccessLogEntry) -> None:
    """Refusals, running requests and other ids end nothing."""
    service = Service()
    await service.check(chat())
    await consume(service, log(told))
    assert service.in_flight == 1


async def test_a_repeated_request_id_ends_nothing() -> None:
    """Who may choose ids must not end the booking of work that still runs."""
    service = Service()
    await service.check(chat())
    await service.check(chat())
    await consume(service, log(GIVEN_UP["client left"]))
    assert service.in_flight == 2


async def test_no_prompt_and_no_key_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """At the most talkative level, nothing of a request is written."""
    service = Service()
    with caplog.at_level(logging.DEBUG):
        body = json.dumps({"model": "m", "prompt": "secret prompt"}).encode()
        await service.check(http_check({"authorization": "Bearer sk-secret-key"}, body))
        await service.check(http_check({"authorization": f"Bearer {KEY}"}, body))
    assert "secret" not in caplog.text
    assert KEY not in caplog.text


async def test_an_answer_that_was_not_sent_leaves_nothing_booked() -> None:
    """Nor does one that let nothing in, nor to tell so twice."""
    service = Service()
    kept = await service.checks.check(chat(request_id="q-1"), 0.5)
    lost = await service.checks.check(chat(request_id="q-2"), 0.5)
    refused = await service.checks.check(chat(key="sk-unknown"), 0.5)
    assert service.in_flight == 2
    for answer in (refused, lost, lost, b""):
        service.checks.unsent(answer)
    assert service.in_flight == 1
    service.checks.unsent(kept)
    assert service.in_flight == 0
