"""gRPC's framing: any cut of the bytes gives the same messages, and some are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.serving.grpc_frames import (
    CallError,
    Code,
    Frames,
    framed,
    timeout_s,
    trailers,
)

MOST_BYTES = 64


def taken(frames: Frames) -> list[bytes]:
    messages = []
    while (message := frames.take()) is not None:
        messages.append(message)
    return messages


@given(st.lists(st.binary(max_size=MOST_BYTES), max_size=6), st.data())
def test_any_cut_gives_the_same_messages(messages: list[bytes], data: st.DataObject) -> None:
    """Pieces need not end where messages do."""
    body = b"".join(map(framed, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8)))
    frames = Frames(MOST_BYTES)
    got = []
    for begin, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
        frames.feed(body[begin:end])
        got += taken(frames)
    assert got == messages
    assert frames.empty


@given(st.binary(max_size=MOST_BYTES), st.integers(1, MOST_BYTES))
def test_a_cut_message_is_none(message: bytes, missing: int) -> None:
    """Until the last byte has come there is no message, and what came is remembered."""
    whole = framed(message)
    frames = Frames(MOST_BYTES)
    frames.feed(whole[:-missing])
    assert frames.take() is None
    assert frames.empty == (missing >= len(whole))


def test_a_message_that_is_too_long_is_refused_by_its_prefix() -> None:
    """Before its bytes have come, so that they are never gathered."""
    frames = Frames(MOST_BYTES)
    frames.feed(framed(b"x" * (MOST_BYTES + 1))[:5])
    with pytest.raises(CallError, match="64 bytes") as caught:
        frames.take()
    assert caught.value.code is Code.RESOURCE_EXHAUSTED


def test_a_compressed_message_is_refused() -> None:
    """Not unpacked: what it would grow to nobody has bounded."""
    frames = Frames(MOST_BYTES)
    frames.feed(b"\x01" + framed(b"x")[1:])
    with pytest.raises(CallError) as caught:
        frames.take()
    assert caught.value.code is Code.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"1H", 3600.0),
        (b"2M", 120.0),
        (b"3S", 3.0),
        (b"500m", 0.5),
        (b"99999999u", 99.999999),
        (b"0n", 0.0),
    ],
)
def test_deadlines(value: bytes, seconds: float) -> None:
    """Every unit of the format."""
    assert timeout_s(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", [b"", b"5", b"m", b"123456789m", b"-1S", b"1.5S", b"1s", b"1S "])
def test_a_deadline_that_cannot_be_read_is_refused(value: bytes) -> None:
    """And not taken for none."""
    with pytest.raises(CallError) as caught:
        timeout_s(value)
    assert caught.value.code is Code.INTERNAL


def test_trailers() -> None:
    """The code in digits; a message only where there is one, and never a byte that a header must
    not carry."""
    assert trailers(Code.OK) == [(b"grpc-status", b"0")]
    code, message = trailers(Code.INTERNAL, "50 % über\n")
    assert code == (b"grpc-status", b"13")
    assert message == (b"grpc-message", b"50 %25 %C3%BCber%0A")
