"""Access logs, as Envoy streams them, decoded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.errors import CodecError
from ext_authz.serving.codec import Codec
from ext_authz.serving.entries import AccessLogEntry
from tests.support.access_log_entries import (
    IDENTIFIED,
    NAMESPACE,
    USUAL,
    WIRE,
    accesslog,
    core,
    data,
    make_entry,
    message,
    metadata,
    protobuf,
    read,
    read_one,
)

# Some generated fields are deprecated and say so whenever they are set.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_a_usual_entry() -> None:
    """The end of a request tells status, duration, server and size."""
    assert read_one() == USUAL


@pytest.mark.parametrize(
    ("kind", "intermediate", "final", "periodic"),
    [
        (0, False, True, False),
        (0, True, False, True),
        (4, False, False, False),
        (5, True, False, True),
        (5, False, False, True),
        (6, False, True, False),
        (7, False, False, False),
        (9, False, False, False),
    ],
)
def test_only_the_end_is_final(kind: int, intermediate: bool, final: bool, periodic: bool) -> None:
    """Entries of running requests never settle them; the old flag counts where no type is."""
    one = read_one(access_log_type=data.AccessLogType(kind), intermediate_log_entry=intermediate)
    assert (one.final, one.periodic) == (final, periodic)


@pytest.mark.parametrize(
    "unidentified",
    [
        None,
        core.Metadata(),
        metadata(protobuf.Value(string_value="r-1"), namespace="other"),
        metadata(protobuf.Value(string_value="")),
        metadata(protobuf.Value(number_value=7.0)),
        core.Metadata(filter_metadata={NAMESPACE: protobuf.Struct()}),
    ],
)
def test_entries_without_an_id_are_none(unidentified: core.Metadata | None) -> None:
    """What no decision stands behind is not guessed at, and hides nothing beside it."""
    batch = message(make_entry(), make_entry(metadata=unidentified), make_entry())
    assert read(batch) == [USUAL, None, USUAL]


def test_an_entry_of_nothing() -> None:
    """Missing parts are read as absent."""
    common = data.AccessLogCommon(metadata=IDENTIFIED)
    (one,) = read(message(data.HttpAccessLogEntry(common)))
    assert one == AccessLogEntry("r-1", 0, True, False, 0.0, None, False, False, 0)


def test_filter_state_of_unknown_types_is_no_obstacle() -> None:
    """An Any that nobody here can unpack does not spoil the entry it is in."""
    unknown = protobuf.Any(type_url="type.googleapis.com/no.such.Message", value=b"\xff\xff")
    assert read_one(filter_state_objects={"shadow": unknown}) == USUAL


def test_messages_without_http_entries() -> None:
    """The first message may only identify the stream, and TCP entries are not ours."""
    identifier = accesslog.StreamAccessLogsMessageIdentifier(log_name="gate")
    assert read(bytes(accesslog.StreamAccessLogsMessage(identifier))) == []
    tcp = accesslog.StreamAccessLogsMessageTcpAccessLogEntries(log_entry=[data.TcpAccessLogEntry()])
    assert read(bytes(accesslog.StreamAccessLogsMessage(tcp_logs=tcp))) == []


@given(st.lists(st.integers(0, 5), max_size=6), st.binary(max_size=40))
def test_taken_apart_a_message_is_what_it_was(sizes: list[int], more: bytes) -> None:
    """The entries come out byte for byte and in order, beside an identifier and whatever future
    fields there are, also from messages that were joined."""
    entries = [make_entry(details="x" * size) for size in sizes]
    unknown = b"\x7a" + bytes([len(more)]) + more
    identified = bytes(
        accesslog.StreamAccessLogsMessage(
            accesslog.StreamAccessLogsMessageIdentifier(log_name="gate")
        )
    )
    for whole in (
        identified + message(*entries) + unknown,
        b"".join(message(one) for one in entries),
    ):
        assert list(Codec(WIRE).split_access_log(whole)) == [bytes(one) for one in entries]


@given(st.binary(max_size=200))
def test_junk_is_a_codec_error_or_nothing(junk: bytes) -> None:
    """Nothing but CodecError ever comes out of undecodable bytes, and no decision's id."""
    codec = Codec(WIRE)
    try:
        for data_ in (junk, *codec.split_access_log(junk)):
            one = codec.decode_entry(data_)
            assert one is None or one.decision_id == ""
    except CodecError:
        return


def test_undecodable() -> None:
    """A truncated message is a CodecError, and so is a truncated entry in a whole one."""
    codec = Codec(WIRE)
    with pytest.raises(CodecError):
        codec.split_access_log(message(make_entry())[:-1])
    cut = bytes(make_entry())[:-1]
    whole = b"\x12" + _prefixed(b"\x0a" + _prefixed(cut))
    (data_,) = codec.split_access_log(whole)
    with pytest.raises(CodecError):
        codec.decode_entry(data_)


def _prefixed(payload: bytes) -> bytes:
    """With its length before it, as protobuf writes it."""
    low, high = len(payload) & 127, len(payload) >> 7
    return (bytes([low | 128, high]) if high else bytes([low])) + payload


def test_the_empty_answer() -> None:
    """Envoy expects a StreamAccessLogsResponse, which has no fields."""
    assert Codec(WIRE).empty_access_log_response() == bytes(accesslog.StreamAccessLogsResponse())
