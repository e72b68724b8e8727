"""What one answer tells of itself as it passes: when its first token came, and its `usage`.

Nothing of a body is kept but the last few kilobytes while it passes, and nothing is logged. It is
the text of models and callers: whatever it says, reading it ends in a number or in unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import jiter

from ext_authz.model import value

# What is kept of the end. `usage` and what follows it are some hundreds of bytes in every API.
TAIL_BYTES = 8 * 1024
# A line of an event stream before the first token that is longer counts as a token: the events
# that come earlier say only which answer it is.
LONGEST_LINE_BYTES = 16 * 1024
# Beyond it an answer is left alone: texts are shorter, and pictures have no `usage` worth that.
MOST_BYTES = 4 * 1024 * 1024
# More is nobody's count.
_MOST_TOKENS = 1_000_000_000

_NAMESPACE = "envoy.filters.http.ext_authz"
# Quotes inside a JSON string are escaped, so no text of a model can look like this. SGLang's own
# API has its counts in `meta_info`.
_USAGE = re.compile(rb'"(?:usage|meta_info)"\s*:\s*(?=\{)')
_DECODER = json.JSONDecoder()
# Events before the first token, by their `type`: Anthropic's messages, OpenAI's responses.
_BEFORE_TOKENS = frozenset(
    {
        "message_start",
        "content_block_start",
        "ping",
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_summary_part.added",
    }
)


@value
class AnswerPart:
    """A part of an answer as Envoy hands it over.

    `headers`, by lower-case name and `:status` among them, are set in the first part only.
    `last`: no body follows.
    """

    decision_id: str
    headers: Mapping[str, str] | None
    body: bytes
    last: bool


@value
class Reading:
    """What was learned from an answer: tokens, and when the first came (monotonic seconds; None if
    it was not streamed). Unknown is None."""

    prompt_tokens: int | None
    output_tokens: int | None
    first_s: float | None


def read_part(message: Any) -> AnswerPart | None:
    """Read one decoded ProcessingRequest; None if it is no part of an answer."""
    kind = message.WhichOneof("request")
    if kind == "response_body":
        body = message.response_body
        return AnswerPart("", None, body.body, body.end_of_stream)
    if kind != "response_headers":
        return None
    head = message.response_headers
    headers = {
        header.key: header.raw_value.decode("latin-1") or header.value
        for header in head.headers.headers
    }
    return AnswerPart(_decision_id(message), headers, b"", head.end_of_stream)


def _decision_id(message: Any) -> str:
    said = message.metadata_context.filter_metadata.get(_NAMESPACE)
    decision_id = None if said is None else said.fields.get("decision_id")
    return "" if decision_id is None else str(decision_id.string_value)


def start_reading(head: AnswerPart) -> Answer | None:
    """A reader for the answer that begins with `head`; None if nothing can be learned from it: it
    failed, is empty, or is neither JSON nor an event stream that can be read."""
    headers = head.headers
    if headers is None or head.last:
        return None
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    streamed = kind == "text/event-stream"
    plain = headers.get("content-encoding", "identity").strip().lower() in {"", "identity"}
    if headers.get(":status") != "200" or not (streamed or (plain and kind == "application/json")):
        return None
    return Answer(streamed, plain)


class Answer:
    """Reads one answer. `first_s` is when the first token of a stream came (monotonic), once it
    has. With `done` nothing more can be learned from what follows."""

    def __init__(self, streamed: bool, plain: bool = True) -> None:
        self.first_s: float | None = None
        self.done = False
        self._plain = plain
        self._looking = streamed
        self._line = b""
        self._tail = b""
        self._seen_bytes = 0
        # Counts that came before the first token.
        self._early: Any = None

    def take(self, body: bytes, now: float) -> None:
        """The next bytes, which came at `now`."""
        if not body:
            return
        if self._looking:
            self._look(body, now)
        self._seen_bytes += len(body)
        self._tail = (self._tail + body)[-TAIL_BYTES:]
        self.done = self._seen_bytes > MOST_BYTES or not (self._plain or self._looking)

    def reading(self, whole: bool) -> Reading | None:
        """What was learned; None if it is nothing.

        Of an answer that was not seen to its end (`whole`) the output is unknown: some engines
        tell with every token how many there were so far.
        """
        prompt, output = counts(_last_usage(self._tail)) if self._plain else (None, None)
        if prompt is None:
            prompt, _ = counts(self._early)
        if not whole:
            output = None
        if prompt is None and output is None and self.first_s is None:
            return None
        return Reading(prompt, output, self.first_s)

    def _look(self, body: bytes, now: float) -> None:
        """Look for the first token in the lines that `body` completes."""
        *lines, self._line = (self._line + body).split(b"\n")
        if (
            not self._plain
            or len(self._line) > LONGEST_LINE_BYTES
            or any(self._has_token(line) for line in lines)
        ):
            self.first_s = now
            self._looking = False
            self._line = b""

    def _has_token(self, line: bytes) -> bool:
        """Whether a line of an event stream brings a token; what is not known does."""
        field, _, data = line.partition(b":")
        data = data.strip()
        if field != b"data" or not data or data == b"[DONE]":
            return False
        if len(data) > LONGEST_LINE_BYTES:
            return True
        try:
            event = jiter.from_json(data)
        except ValueError:
            return True
        if not isinstance(event, dict):
            return True
        kind, choices = event.get("type"), event.get("choices")
        if kind == "message_start" and isinstance(event.get("message"), dict):
            self._early = event["message"].get("usage")
        if isinstance(kind, str) and kind in _BEFORE_TOKENS:
            return False
        return not isinstance(choices, list) or any(map(_says_something, choices))


def _says_something(choice: Any) -> bool:
    """Whether a choice of a chunk holds more than the role that opens it."""
    if not isinstance(choice, dict):
        return True
    delta = choice.get("delta")
    if isinstance(delta, dict) and any(said for name, said in delta.items() if name != "role"):
        return True
    return bool(choice.get("text") or choice.get("finish_reason"))


def _last_usage(tail: bytes) -> Any:
    """The last `usage` that is an object, None if there is none."""
    ends = [found.end() for found in _USAGE.finditer(tail)]
    if not ends:
        return None
    try:
        usage, _ = _DECODER.raw_decode(tail[ends[-1] :].decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return usage


def counts(usage: Any) -> tuple[int | None, int | None]:
    """Prompt and output tokens of a `usage` of any API, None where it does not say."""
    if not isinstance(usage, dict):
        return None, None
    prompt = _count(usage, "prompt_tokens")
    if prompt is None:
        prompt = _count(usage, "input_tokens")
        if prompt is not None:
            # Anthropic counts what came from the cache apart, OpenAI within.
            prompt += _count(usage, "cache_read_input_tokens") or 0
            prompt += _count(usage, "cache_creation_input_tokens") or 0
    output = _count(usage, "completion_tokens")
    return prompt, _count(usage, "output_tokens") if output is None else output


def _count(usage: dict[str, Any], name: str) -> int | None:
    count = usage.get(name)
    return count if type(count) is int and 0 <= count <= _MOST_TOKENS else None
