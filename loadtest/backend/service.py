"""What all HTTP handlers of a backend share: engine, faults, record, and the way through them."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from aiohttp import web

from loadtest.backend.asks import Ask, BadAskError
from loadtest.backend.batching import ContinuousEngine
from loadtest.backend.control import Faults, MetricsMode
from loadtest.backend.driver import Driver, Ticket
from loadtest.backend.engine import EngineFullError, Gauges, WorkTooLargeError
from loadtest.backend.fixed import FixedShapeEngine
from loadtest.backend.page import triton_page, vllm_page
from loadtest.backend.profiles import LlmProfile, Profile
from loadtest.backend.record import Entry, Record, Timing, timing
from loadtest.backend.totals import FixedTotals, LlmTotals

CLIENT_LEFT = 499


class Service:
    """One backend: a profile served under `models`, the first of which labels its metrics."""

    def __init__(self, profile: Profile, seed: int, models: tuple[str, ...]) -> None:
        self.profile = profile
        self.models = models
        self.faults = Faults()
        self.record = Record()
        self._random = random.Random(seed)
        self._frozen_page = ""
        self._serial = 0
        self._render: Callable[[Gauges], str]
        if isinstance(profile, LlmProfile):
            llm_totals = LlmTotals()
            self.driver = Driver(ContinuousEngine(profile, seed), llm_totals)
            self._render = partial(vllm_page, models[0], profile, llm_totals, time.time())
        else:
            fixed_totals = FixedTotals()
            self.driver = Driver(FixedShapeEngine(profile), fixed_totals)
            self._render = partial(triton_page, models[0], fixed_totals)

    def next_id(self, prefix: str) -> str:
        """A name for a response, unique in this process."""
        self._serial += 1
        return f"{prefix}-{self._serial:012d}"

    def check_model(self, model: str | None) -> str:
        """The served name for `model`, the default when it is None. Raises BadAskError (404)."""
        if model is None:
            return self.models[0]
        if model not in self.models:
            raise BadAskError("no such model is served here", "model", status=404)
        return model

    @asynccontextmanager
    async def admitted(
        self, request: web.Request, ask: Ask, chunk_tokens: int = 0
    ) -> AsyncIterator[Ticket]:
        """A ticket for `ask`, withdrawn when the client leaves and recorded either way.

        Raises BadAskError: 503 when refused, 400 when the work could never run.
        """
        offset_s = time.time() - self.driver.now()
        if self.faults.error_ratio and self._random.random() < self.faults.error_ratio:
            self._log(request, 503, offset_s, None)
            raise BadAskError("the engine failed", status=503)
        try:
            ticket = self.driver.submit(ask.works, chunk_tokens)
        except EngineFullError:
            self._log(request, 503, offset_s, None)
            raise BadAskError("the engine is busy; too many requests wait", status=503) from None
        except WorkTooLargeError as error:
            self._log(request, 400, offset_s, None)
            raise BadAskError(str(error)) from None
        in_flight = self.driver.in_flight
        try:
            yield ticket
        finally:
            left = self.driver.cancel(ticket)
            self._log(request, CLIENT_LEFT if left else 200, offset_s, ticket, in_flight)

    def timing(self, ticket: Ticket) -> Timing:
        """The timing of a ticket that is done."""
        return timing(list(ticket.ended.values()), time.time() - self.driver.now())

    def set_faults(self, faults: Faults) -> None:
        """Change what is wrong from now on."""
        if faults.metrics is MetricsMode.FROZEN and self.faults.metrics is not MetricsMode.FROZEN:
            self._frozen_page = self.live_page()
        self.faults = faults

    def page(self) -> str | None:
        """The metric page as the faults have it, None when there is none."""
        if self.faults.metrics is MetricsMode.MISSING:
            return None
        if self.faults.metrics is MetricsMode.FROZEN:
            return self._frozen_page
        return self.live_page()

    def live_page(self) -> str:
        """The true metric page."""
        return self._render(self.driver.gauges())

    def _log(
        self,
        request: web.Request,
        status: int,
        offset_s: float,
        ticket: Ticket | None,
        in_flight: int | None = None,
    ) -> None:
        ended = list(ticket.ended.values()) if ticket else []
        arrived = ticket.arrived_s if ticket else self.driver.now()
        request_id = request.headers.get("x-request-id")
        sent_id = request.headers.get("x-loadtest-id")
        self.record.add(
            Entry(
                path=request.path[:200],
                status=status,
                arrived_unix_ms=round((arrived + offset_s) * 1000.0, 3),
                ended_unix_ms=round((self.driver.now() + offset_s) * 1000.0, 3),
                in_flight=self.driver.in_flight if in_flight is None else in_flight,
                request_id=request_id[:200] if request_id else None,
                sent_id=sent_id[:200] if sent_id else None,
                prompt_tokens=sum(one.prompt_tokens for one in ended),
                output_tokens=sum(one.output_tokens for one in ended),
                timing=timing(ended, offset_s) if ended else None,
            )
        )
