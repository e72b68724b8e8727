"""Pictures, sound and papers: in conversations, and in forms."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest

from ext_authz.estimation.parsing import parse
from ext_authz.estimation.shapes.media import (
    PDF_BYTES_PER_TOKEN,
    UNSEEN_PDF_TOKENS,
    audio_bytes_per_s,
)
from ext_authz.model import HttpCall, InferenceRequest, Operation, Unread, WorkEstimate
from ext_authz.settings import CostRules
from tests.support.pricing import estimate

CHAT, SPEECH = "/v1/chat/completions", "/v1/audio/transcriptions"
RULES = CostRules()


def wav(seconds: int, rate: int = 16_000, channels: int = 1, bits: int = 16) -> bytes:
    """Silence, with the header of a WAV file."""
    frame = channels * bits // 8
    size = seconds * rate * frame
    form = struct.pack("<HHIIHH", 1, channels, rate, rate * frame, frame, bits)
    head = b"RIFF" + struct.pack("<I", 36 + size) + b"WAVEfmt " + struct.pack("<I", 16) + form
    return head + b"data" + struct.pack("<I", size) + bytes(size)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def said(*parts: Any, path: str = CHAT) -> InferenceRequest:
    field = "input" if path.endswith("responses") else "messages"
    body = json.dumps({"model": "m", field: [{"role": "user", "content": list(parts)}]}).encode()
    return parse(HttpCall("POST", path, {}, body, len(body), partial=False))


@pytest.mark.parametrize(
    ("head", "rate"),
    [
        (wav(1)[:64], 32_000),
        (wav(1, rate=48_000, channels=2)[:64], 192_000),
        (wav(1, rate=8_000, bits=8)[:64], 8_000),
        (wav(0, rate=2_000_000_000)[:64], 384_000),
        (wav(0, rate=0)[:64], 1),
        (wav(1)[:35], 3_000),
        (b"ID3" + bytes(61), 3_000),
        (b"", 3_000),
    ],
)
def test_how_many_bytes_a_second_of_sound_takes(head: bytes, rate: int) -> None:
    """A WAV header tells, within what speech can need; the rest is compressed speech."""
    assert audio_bytes_per_s(head) == rate


@pytest.mark.parametrize("detail", [None, "auto", "low", "high"])
def test_a_word_makes_no_picture_cheaper(detail: str | None) -> None:
    """O-12: engines look at a picture as they always do, so `detail` is not believed."""
    picture = {"url": "data:image/png;base64,QUJD", "detail": detail}
    request = said({"type": "image_url", "image_url": picture})
    assert request.images == 1
    assert 1000 <= estimate(request, RULES).prompt_tokens <= 1005


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        ({"type": "input_audio", "input_audio": {"data": b64(wav(1)), "format": "wav"}}, 51),
        (
            {"type": "input_audio", "input_audio": {"data": b64(bytes(30_000)), "format": "mp3"}},
            500,
        ),
        ({"type": "audio_url", "audio_url": {"url": "https://a.example/b.mp3"}}, 1500),
        (
            {
                "type": "audio_url",
                "audio_url": {"url": "data:audio/wav;base64," + b64(wav(1, rate=8000))},
            },
            51,
        ),
        ({"type": "input_audio", "input_audio": {}}, 1500),
    ],
)
def test_sound_in_a_conversation_costs_its_length(part: dict[str, Any], tokens: int) -> None:
    """Fifty tokens a second, and never the size of its data as text."""
    request = said({"type": "text", "text": "what is said?"}, part)
    assert request.token_ids == tokens
    assert request.text_bytes < 60


def test_sound_goes_on_beyond_a_cut() -> None:
    """What is cut in the middle of sound has as much more of it as there are bytes."""
    data = b64(bytes(3_000_000))
    request = said({"type": "input_audio", "input_audio": {"data": data, "format": "mp3"}})
    assert request.partial
    assert request.token_ids == pytest.approx(1000 * 50, rel=0.02)
    assert request.text_bytes < 10_000


PDF = b64(b"%PDF-1.7 " + bytes(31_991))


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        (
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
            },
            32_000 // PDF_BYTES_PER_TOKEN,
        ),
        (
            {"type": "document", "source": {"type": "url", "url": "https://a/b.pdf"}},
            UNSEEN_PDF_TOKENS,
        ),
        ({"type": "document", "source": {"type": "file", "file_id": "file_1"}}, UNSEEN_PDF_TOKENS),
        ({"type": "input_file", "file_id": "file-1"}, UNSEEN_PDF_TOKENS),
        (
            {
                "type": "file",
                "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64," + PDF},
            },
            32_000 // PDF_BYTES_PER_TOKEN,
        ),
    ],
)
def test_papers_cost_their_pages(part: dict[str, Any], tokens: int) -> None:
    """A PDF costs by its size, one that is only pointed at ten pages."""
    request = said(part, path="/v1/messages")
    assert request.token_ids == pytest.approx(tokens, rel=0.01)
    assert request.text_bytes < 100


@pytest.mark.parametrize(
    "part",
    [
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "x" * 9000},
        },
        {
            "type": "document",
            "source": {"type": "content", "content": [{"type": "text", "text": "x" * 9000}]},
        },
        {"type": "document", "title": "x" * 9000, "source": {"type": "url", "url": "https://a/b"}},
        {"type": "file", "file": {"file_data": "data:text/plain;base64," + "x" * 9000}},
        {"type": "file", "file": {"file_id": "f", "file_data": "x" * 9000}},
        {"type": "file", "file": {"file_id": "x" * 9000}},
        {"type": "mystery", "data": "x" * 9000},
    ],
)
def test_text_in_papers_is_text(part: dict[str, Any]) -> None:
    """Only what is declared a PDF is priced as one, so no prompt can be hidden as papers."""
    assert said(part, path="/v1/messages").text_bytes >= 9000


def form(*parts: tuple[str, bytes], file: str = "file") -> bytes:
    """A form as clients write it; of `file` with a file's name."""
    body = b""
    for name, data in parts:
        named = '; filename="a.wav"\r\nContent-Type: audio/wav' if name == file else ""
        head = f'--XyZ\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
        body += head.encode() + data + b"\r\n"
    return body + b"--XyZ--\r\n"


def sent(
    body: bytes, path: str = SPEECH, kind: str = "multipart/form-data; boundary=XyZ"
) -> InferenceRequest:
    return parse(HttpCall("POST", path, {"content-type": kind}, body, len(body), partial=False))


@pytest.mark.parametrize(
    "path", [SPEECH, "/v1/audio/translations", "/openai/deployments/m/audio/transcriptions"]
)
def test_speech_costs_a_window_for_every_thirty_seconds(path: str) -> None:
    """Each window is a prompt of its own, with an output up to what fits one."""
    body = form(("model", b"m"), ("prompt", b"x" * 40), ("file", wav(70)))
    request = sent(body, path)
    assert (request.operation, request.model, request.opaque) == (
        Operation.TRANSCRIPTION,
        "m",
        False,
    )
    assert estimate(request, RULES) == WorkEstimate(3 * 1500 + 10, 3 * 448)


def test_a_short_recording_is_a_whole_window() -> None:
    """A second of it is padded to thirty; nothing at all still costs one window."""
    assert sent(form(("file", wav(1)), ("model", b"m"))).token_ids == 1500
    assert sent(form(("model", b"m"))).token_ids == 1500


def test_what_follows_a_long_recording_is_not_seen() -> None:
    """The model behind the file is unknown, where its length and so its price is not."""
    request = sent(form(("file", bytes(3_000_000)), ("model", b"m")))
    assert (request.model, request.partial, request.opaque) == (None, True, False)
    # Of the 1,000 s a few bytes of the rest of the form may make one window more.
    assert request.token_ids == 34 * 1500
    assert sent(form(("model", b"m"), ("file", bytes(3_000_000)))).model == "m"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (
            form(("model", b"a"), ("model", b"b"), ("file", wav(1))),
            "multipart/form-data; boundary=XyZ",
        ),
        (form(("", b"a"), ("file", wav(1))), "multipart/form-data; boundary=XyZ"),
        (form(("model", b"a"))[:-4], "multipart/form-data; boundary=XyZ"),
        (form(*[(f"f{n}", b"") for n in range(80)]), "multipart/form-data; boundary=XyZ"),
        (form(("file", wav(1))), "multipart/form-data; boundary=other"),
        (form(("file", wav(1))), "multipart/form-data; boundary=XyZ; boundary=other"),
        (form(("file", wav(1))), "multipart/form-data"),
        (b'{"model":"m","file":"x"}' + bytes(9000), "application/json"),
        (bytes(9000), ""),
    ],
)
def test_a_form_servers_may_disagree_about_is_not_understood(body: bytes, kind: str) -> None:
    """Names twice or missing, an end that is none, another boundary: at least its size as text."""
    request = sent(body, kind=kind)
    assert request.unread is Unread.BAD_FORM
    assert request.text_bytes >= len(body)
    assert estimate(request, RULES).tokens >= RULES.opaque_tokens


def test_a_quoted_boundary_is_one() -> None:
    """As some clients write it."""
    assert not sent(
        form(("file", wav(1))), kind='Multipart/Form-Data; charset=utf-8; boundary="XyZ"'
    ).opaque


@pytest.mark.parametrize("path", ["/elsewhere", "/v1/audio/../audio/transcriptions", CHAT])
def test_no_other_path_makes_speech_cheaper(path: str) -> None:
    """What may be speech is counted as such wherever it goes."""
    body = form(("file", bytes(300_000)), ("model", b"m"))
    plain, other = estimate(sent(body), RULES), estimate(sent(body, path), RULES)
    assert other.prompt_tokens >= plain.prompt_tokens
    assert other.output_tokens >= plain.output_tokens


def test_pictures_to_be_changed_are_looked_at_and_made() -> None:
    """Those that are sent, and as many as are asked for."""
    body = form(("prompt", b"x" * 40), ("n", b"2"), ("image", bytes(5000)), file="image")
    request = sent(body, "/v1/images/edits")
    assert (request.operation, request.images) == (Operation.IMAGE, 3)
    assert estimate(request, RULES).output_tokens == 0
