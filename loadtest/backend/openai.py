"""The OpenAI-shaped routes of a language model: chat, completions, embeddings, models."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass

from aiohttp import web

from loadtest.backend.asks import Ask, Json, chat_ask, completion_ask, embedding_ask, parse_object
from loadtest.backend.driver import Ticket
from loadtest.backend.service import Service

# tokens of one sequence that share a chunk of a stream
CHUNK_TOKENS = 8

_WORD = "word "
_FILLER = _WORD * 4096


def _text(tokens: int) -> str:
    return _FILLER[: tokens * len(_WORD)] if tokens <= 4096 else _WORD * tokens


@dataclass(frozen=True, slots=True)
class _Shape:
    """How chat and completions differ on the wire."""

    parse: Callable[[Json], Ask]
    prefix: str
    kind: str
    chunk_kind: str

    def choice(self, index: int, text: str, reason: str) -> Json:
        body: Json = {"index": index, "finish_reason": reason}
        if self.prefix == "chatcmpl":
            return {**body, "message": {"role": "assistant", "content": text}}
        return {**body, "text": text}

    def piece(self, index: int, text: str, reason: str | None) -> Json:
        body: Json = {"index": index, "finish_reason": reason}
        if self.prefix == "chatcmpl":
            return {**body, "delta": {"content": text}}
        return {**body, "text": text}


_CHAT = _Shape(chat_ask, "chatcmpl", "chat.completion", "chat.completion.chunk")
_COMPLETION = _Shape(completion_ask, "cmpl", "text_completion", "text_completion")


class OpenAiRoutes:
    """Handlers over one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[web.RouteDef]:
        """What to add to an application."""
        return [
            web.post("/v1/chat/completions", self._chat),
            web.post("/v1/completions", self._completion),
            web.post("/v1/embeddings", self._embeddings),
            web.get("/v1/models", self._models),
        ]

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, _CHAT)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, _COMPLETION)

    async def _generate(self, request: web.Request, shape: _Shape) -> web.StreamResponse:
        ask = shape.parse(parse_object(await request.read()))
        head: Json = {
            "id": self._service.next_id(shape.prefix),
            "object": shape.chunk_kind if ask.stream else shape.kind,
            "created": int(time.time()),
            "model": self._service.check_model(ask.model),
        }
        chunk_tokens = CHUNK_TOKENS if ask.stream else 0
        async with self._service.admitted(request, ask, chunk_tokens) as ticket:
            if ask.stream:
                response = web.StreamResponse(headers={"content-type": "text/event-stream"})
                # a client that leaves between two chunks is no fault; the ticket is withdrawn
                with suppress(ConnectionError):
                    await response.prepare(request)
                    await self._stream(response, shape, head, ticket)
                return response
            await ticket.wake.wait()
            ended = [ticket.ended[request_id] for request_id in ticket.ids]
            choices = [
                shape.choice(index, _text(one.output_tokens), one.reason.value)
                for index, one in enumerate(ended)
            ]
            return web.json_response({**head, "choices": choices, **self._closing(ticket)})

    async def _stream(
        self, response: web.StreamResponse, shape: _Shape, head: Json, ticket: Ticket
    ) -> None:
        """The body of a stream. Its headers have left already, as a real engine's do while the
        request still queues."""
        done = False
        while not done:
            await ticket.wake.wait()
            ticket.wake.clear()
            done = ticket.done
            pieces = self._pieces(shape, ticket)
            if pieces:
                await response.write(_event({**head, "choices": pieces}))
        await response.write(_event({**head, "choices": [], **self._closing(ticket)}))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()

    def _pieces(self, shape: _Shape, ticket: Ticket) -> list[Json]:
        """What each sequence of a stream has new since the last look."""
        pieces: list[Json] = []
        for index, request_id in enumerate(ticket.ids):
            before = ticket.sent.get(request_id, 0)
            now = self._service.driver.progress(ticket, request_id)
            if now > before:
                ended = ticket.ended.get(request_id)
                reason = None if ended is None else ended.reason.value
                ticket.sent[request_id] = now
                pieces.append(shape.piece(index, _text(now - before), reason))
        return pieces

    async def _embeddings(self, request: web.Request) -> web.Response:
        ask = embedding_ask(parse_object(await request.read()))
        model = self._service.check_model(ask.model)
        async with self._service.admitted(request, ask) as ticket:
            await ticket.wake.wait()
            data = [
                {"object": "embedding", "index": index, "embedding": [0.5, 0.5, 0.5, 0.5]}
                for index in range(len(ticket.ids))
            ]
            body = {"object": "list", "model": model, "data": data, **self._closing(ticket)}
            return web.json_response(body)

    async def _models(self, _request: web.Request) -> web.Response:
        data = [{"id": name, "object": "model", "created": 0} for name in self._service.models]
        return web.json_response({"object": "list", "data": data})

    def _closing(self, ticket: Ticket) -> Json:
        """Usage, as the API has it, and our own timing."""
        prompt = sum(one.prompt_tokens for one in ticket.ended.values())
        output = sum(one.output_tokens for one in ticket.ended.values())
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
        }
        return {"usage": usage, "timing": asdict(self._service.timing(ticket))}


def _event(body: Json) -> bytes:
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"
