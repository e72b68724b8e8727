"""Bodies made to be slow: how much is looked at is bounded, and what is not costs the most."""

from __future__ import annotations

import json

import pytest

from ext_authz.estimation.parsing import parse
from ext_authz.estimation.shapes import document, kserve, openai
from ext_authz.estimation.shapes.tally import MAX_ITEMS, SMALLEST_IMAGE_BYTES, Tally
from ext_authz.model import HttpCall, Unread, WorkEstimate
from ext_authz.settings import CostRules
from tests.support.pricing import estimate

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RULES = CostRules()


def priced(body: bytes, path: str = CHAT) -> WorkEstimate:
    return estimate(parse(HttpCall("POST", path, {}, body, len(body), partial=False)), RULES)


def filled(start: str, unit: str, end: str) -> bytes:
    """A body of 64 KiB of one thing."""
    room = document.MAX_PARSE_BYTES - len(start) - len(end)
    return (start + unit * (room // len(unit)) + end).encode()


def read(body: bytes) -> document.Document:
    found = document.read(document.body_of(HttpCall("POST", CHAT, {}, body, len(body), False)))
    assert found is not None
    return found


TALKS = [
    filled('{"messages":[', "[],", "[]]}"),
    filled('{"messages":[', "{},", "{}]}"),
    filled('{"messages":[', "[{}],", "1]}"),
    filled('{"tools":[', '{"a":{}},', "1]}"),
    filled('{"messages":[[],', "1,", "1]}"),
]


@pytest.mark.parametrize("body", TALKS)
def test_the_walk_through_a_conversation_ends_early(body: bytes) -> None:
    """However many brackets fit into a body, a bounded number of things is looked at."""
    tally = Tally()
    openai.conversation(read(body), tally)
    assert tally.items == MAX_ITEMS + 1
    assert tally.overfull
    for path in (CHAT, "/unknown"):
        assert priced(body, path).prompt_tokens >= len(body) / RULES.bytes_per_token


def test_the_walk_through_a_batch_ends_early() -> None:
    """The prompts beyond the bound are counted, and not looked at one by one."""
    tally = Tally()
    openai.completion(read(filled('{"prompt":["",', "1,", "1]}")), tally)
    assert (tally.token_ids, tally.overfull) == (MAX_ITEMS - 1, True)
    assert tally.prompts > 30_000


@pytest.mark.parametrize("path", [CHAT, TEXT, "/unknown"])
def test_nothing_hides_behind_brackets(path: str) -> None:
    """Pictures and text beyond what is looked at cost no less than they would in the open."""
    field = "prompt" if path == TEXT else "messages"
    brackets = "{}," * (MAX_ITEMS + 1)
    for hidden in ('{"type":"image_url","image_url":{"url":""}},' * 500, f'"{"a" * 20_000}",'):
        # The last is looked at first, and the other way round.
        for inside in (brackets + hidden, hidden + brackets):
            covered = f'{{"{field}":[{inside}{{}}]}}'.encode()
            plain = f'{{"{field}":[{hidden}{{}}]}}'.encode()
            assert priced(covered, path).prompt_tokens >= priced(plain, path).prompt_tokens
    assert len('{"type":"image"}') == SMALLEST_IMAGE_BYTES


def test_what_people_send_is_looked_at_in_full() -> None:
    """Long conversations and large batches of texts or ids are far below the bound."""
    message = {"role": "user", "content": [{"type": "text", "text": "abcd"}]}
    body = json.dumps({"messages": [message] * 900}, separators=(",", ":")).encode()
    # The words for role and type count too.
    assert priced(body).prompt_tokens == 3 * 900
    body = json.dumps({"prompt": ["abcd"] * 8000, "max_tokens": 1}).encode()
    assert priced(body, TEXT) == WorkEstimate(8000, 8000)
    body = json.dumps({"prompt": [[1, 2, 3]] * 2048, "max_tokens": 1}).encode()
    assert priced(body, TEXT) == WorkEstimate(3 * 2048, 2048)


def test_ten_thousand_caps_are_searched_once_each() -> None:
    """Of a name written over and over, with every number there is, the largest counts."""
    numbers = ",".join(f'"max_tokens":{number}' for number in range(3000))
    assert priced(f"{{{numbers}}}".encode()).output_tokens == 2999
    assert len(document._CAPS.findall(b'"n":1,' * 10_000)) == 10_000


def test_a_tensor_of_brackets_is_no_tensor() -> None:
    """Rows without end are refused as a shape, before they are all walked through."""
    assert kserve._flatten([[]] * (kserve.MAX_ROWS + 5)) == (kserve.MAX_COUNT + 1, 0)
    tensor = '{"inputs":[{"name":"x","shape":[0],"datatype":"FP32","data":['
    body = filled(tensor, "[],", "[]]}]}")
    request = parse(HttpCall("POST", "/v2/models/m/infer", {}, body, len(body), partial=False))
    assert (request.unread, request.model) == (Unread.BAD_TENSOR, "m")
