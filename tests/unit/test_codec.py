"""Checks, as Envoy sends them, decoded."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.errors import CodecError
from ext_authz.model import HttpCall
from ext_authz.serving.codec import Codec
from ext_authz.serving.wire import compile_messages

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from envoy_data_plane.envoy.config.core import v3 as core
    from envoy_data_plane.envoy.service.auth import v3 as auth

WIRE = compile_messages()
CODEC = Codec(WIRE)
CHAT = json.dumps({"model": "llama-70b", "messages": [{"role": "user", "content": "hi"}]}).encode()


def check(**http: Any) -> bytes:
    """A CheckRequest around an HTTP request, built with the dataclasses."""
    request = auth.AttributeContextRequest(http=auth.AttributeContextHttpRequest(**http))
    return bytes(auth.CheckRequest(attributes=auth.AttributeContext(request=request)))


def raw(*pairs: tuple[str, bytes]) -> core.HeaderMap:
    return core.HeaderMap(
        headers=[core.HeaderValue(key=key, raw_value=value) for key, value in pairs]
    )


class TestDecodeCheck:
    def test_a_whole_request(self) -> None:
        """Method, path with its query, headers and body come through as they are."""
        headers = {"content-type": "application/json", "content-length": str(len(CHAT))}
        call = CODEC.decode_check(
            check(method="POST", path="/v1/x?y=1", headers=headers, raw_body=CHAT, size=len(CHAT))
        )
        assert call == HttpCall("POST", "/v1/x?y=1", headers, CHAT, len(CHAT), partial=False)

    @pytest.mark.parametrize(
        "data", [b"\xff", b"\x0a\x05abc", b"\x00", b"\x0a\xff\xff\xff\xff\xff"]
    )
    def test_undecodable(self, data: bytes) -> None:
        """Bytes that are no CheckRequest are a CodecError."""
        with pytest.raises(CodecError):
            CODEC.decode_check(data)

    @pytest.mark.parametrize(
        "message",
        [
            auth.CheckRequest(),
            auth.CheckRequest(attributes=auth.AttributeContext()),
            auth.CheckRequest(
                attributes=auth.AttributeContext(request=auth.AttributeContextRequest())
            ),
        ],
    )
    def test_no_http_request(self, message: auth.CheckRequest) -> None:
        """A Check that describes no HTTP request is a CodecError."""
        with pytest.raises(CodecError):
            CODEC.decode_check(bytes(message))

    def test_an_empty_http_request(self) -> None:
        """Missing parts are empty, not errors."""
        empty = HttpCall("", "", {}, b"", 0, partial=False)
        assert CODEC.decode_check(b"\x0a\x04\x22\x02\x12\x00") == empty

    def test_unknown_fields_are_ignored(self) -> None:
        """A later Envoy may send more than is known here."""
        data = check(method="GET", path="/") + b"\xfa\x7f\x03abc"
        assert CODEC.decode_check(data).method == "GET"

    @pytest.mark.parametrize(
        "http",
        [
            {"headers": {"Authorization": "Bearer k", ":path": "/x", "X-Api-Key": "é"}},
            {"headers": {"authorization": "Bearer k", ":odd": "x", "x-api-key": "é"}},
            {
                "header_map": raw(
                    (":authority", b"a"), ("authorization", b"Bearer k"), ("x-api-key", b"\xc3\xa9")
                )
            },
            {"header_map": raw(("AUTHORIZATION", b"Bearer k"), ("x-api-key", b"\xc3\xa9"))},
            {
                "header_map": core.HeaderMap(
                    headers=[
                        core.HeaderValue(key="authorization", value="Bearer k"),
                        core.HeaderValue(key="x-api-key", value="é"),
                    ]
                )
            },
        ],
    )
    def test_headers_in_either_form(self, http: dict[str, Any]) -> None:
        """Both encodings give the same lower-case names, without pseudo headers."""
        expected = {"authorization": "Bearer k", "x-api-key": "é"}
        assert CODEC.decode_check(check(**http)).headers == expected

    def test_raw_headers_win(self) -> None:
        """With both forms present the exact bytes count."""
        call = CODEC.decode_check(check(headers={"a": "map"}, header_map=raw(("a", b"raw"))))
        assert call.headers == {"a": "raw"}

    def test_repeated_headers_are_joined(self) -> None:
        """A header sent twice is one value, in the order sent, whatever its capitals."""
        call = CODEC.decode_check(check(header_map=raw(("k", b"1"), ("x", b""), ("K", b"2"))))
        assert call.headers == {"k": "1,2", "x": ""}

    def test_bytes_that_are_no_text_are_replaced(self) -> None:
        """A value that is not UTF-8 is marked, and the other headers are not lost."""
        call = CODEC.decode_check(check(header_map=raw(("k", b"a\xff"), ("x-ok", b"1"))))
        assert call.headers == {"k": "a�", "x-ok": "1"}

    @given(
        st.lists(
            st.tuples(st.sampled_from(["a", "A", "bb", ":path", ":odd"]), st.binary(max_size=3)),
            max_size=6,
        )
    )
    def test_the_short_way_means_the_long_way(self, pairs: list[tuple[str, bytes]]) -> None:
        """Whatever the mix of headers, the result is that of the obvious loop."""
        expected: dict[str, list[str]] = {}
        for key, value in pairs:
            if not key.startswith(":"):
                expected.setdefault(key.lower(), []).append(value.decode(errors="replace"))
        call = CODEC.decode_check(check(header_map=raw(*pairs)))
        assert call.headers == {key: ",".join(values) for key, values in expected.items()}

    def test_text_bodies(self) -> None:
        """Without packing the body is text; raw bytes win if both are there."""
        assert CODEC.decode_check(check(body="é")).body == "é".encode()
        assert CODEC.decode_check(check(body="text", raw_body=b"\xff")).body == b"\xff"

    @pytest.mark.parametrize(
        ("headers", "size", "whole", "partial"),
        [
            ({}, 4, 4, False),
            ({}, 0, 4, False),
            ({}, -1, 4, False),
            ({"content-length": "4"}, -1, 4, False),
            ({"content-length": "9"}, 4, 9, True),
            ({"content-length": "9"}, 12, 12, True),
            ({"content-length": "3"}, 4, 4, False),
            ({"content-length": "-9"}, 4, 4, False),
            ({"content-length": "nine"}, 4, 4, False),
            ({"content-length": "9,9"}, 4, 4, False),
            ({"content-length": "٩"}, 4, 4, False),
            ({"content-length": "9" * 19}, 4, 4, False),
            ({"content-length": ""}, 4, 4, False),
            ({"x-envoy-auth-partial-body": "false"}, 4, 4, False),
            ({"x-envoy-auth-partial-body": "true"}, -1, -1, True),
            ({"x-envoy-auth-partial-body": "true"}, 4, -1, True),
            ({"x-envoy-auth-partial-body": "true", "content-length": "9"}, 4, 9, True),
            ({"x-envoy-auth-partial-body": "false,true"}, 4, -1, True),
            # What Envoy had read when it asked: more than it shows, not all there is.
            ({}, 9, -1, True),
        ],
    )
    def test_sizes(self, headers: dict[str, str], size: int, whole: int, partial: bool) -> None:
        """The size is the declared one, if that is a number, and unknown when nobody knows."""
        call = CODEC.decode_check(check(headers=headers, raw_body=b"body", size=size))
        assert (call.body_bytes, call.partial) == (whole, partial)

    def test_a_body_that_was_not_buffered(self) -> None:
        """Routes without buffering send no body: its size is known from the header alone."""
        call = CODEC.decode_check(check(headers={"content-length": "900"}))
        assert (call.body, call.body_bytes, call.partial) == (b"", 900, True)

    def test_grpc_frames_are_left_alone(self) -> None:
        """A gRPC body is bytes, NULs and all."""
        frame = b"\x00\x00\x00\x00\x02\x0a\x00"
        call = CODEC.decode_check(check(raw_body=frame, headers={"te": "trailers"}))
        assert call.body == frame

    @given(st.binary(max_size=200))
    def test_junk_is_a_codec_error_or_a_call(self, data: bytes) -> None:
        """Nothing but CodecError ever comes out of undecodable bytes."""
        try:
            call = CODEC.decode_check(data)
        except CodecError:
            return
        assert call.body_bytes >= -1
