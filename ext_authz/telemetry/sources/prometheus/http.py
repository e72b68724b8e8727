"""A Prometheus server asked through prometheus-api-client, with bounds that hold.

The client alone retries for many seconds, waits between two bytes rather than for an answer,
follows redirects and reads a body of any size. Here a question has one deadline and one size.
It still blocks: see `Threads`.
"""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from ext_authz.clock import Clock
from ext_authz.errors import TelemetryError
from ext_authz.telemetry.sources.prometheus.settings import PrometheusSettings

T = TypeVar("T")
_PART_BYTES = 65_536
_SHOWN = 200
_ALIEN = "answer is not one of Prometheus"
MAX_HANGING = 3
"""Threads that may hang at one time, each in a call that nothing ends."""


class QueryRefusedError(TelemetryError):
    """The server is well and does not like the question: other questions may do."""


class Client:
    """One connection to a server, for one thread at a time. Raises TelemetryError if the client
    library is not installed, or a file it needs cannot be read."""

    def __init__(self, settings: PrometheusSettings, clock: Clock) -> None:
        try:
            import requests
            from prometheus_api_client.exceptions import PrometheusApiClientException
            from prometheus_api_client.prometheus_connect import PrometheusConnect
            from urllib3.exceptions import HTTPError, ReadTimeoutError
            from urllib3.util.retry import Retry
        except ImportError as error:
            raise TelemetryError(
                "prometheus-api-client is not installed; install ext-authz[prometheus]"
            ) from error
        self._clock = clock
        self._deadline_s = 0.0
        self._limit_bytes = settings.max_response_bytes
        self._timeouts = (requests.Timeout, TimeoutError, ReadTimeoutError)
        self._not_json = requests.exceptions.InvalidJSONError
        self._lost = (requests.RequestException, HTTPError, OSError)
        # What the library makes of an answer that has not the shape it expects, and deep nesting.
        self._unfit: tuple[type[Exception], ...] = (PrometheusApiClientException, ValueError)
        self._unfit += (LookupError, TypeError, AttributeError, RecursionError)
        self._session = _bounded_session(self._bounded)
        # Neither a proxy nor a password comes from the environment by surprise.
        self._session.trust_env = False
        self._session.auth = settings.basic_auth
        if settings.ca_file is not None:
            self._session.verify = str(settings.ca_file)
        self._connect = PrometheusConnect(
            settings.url.rstrip("/"),
            headers=_headers(settings),
            retry=Retry(total=0),
            session=self._session,
            method="POST",
        )

    def query(self, expression: str, deadline_s: float, at: float | None = None) -> list[object]:
        """What the server answers to `expression`, for its present or the instant `at` of its
        own clock. Blocks until `deadline_s` (monotonic seconds) at the latest.

        Raises QueryRefusedError if the server will not answer this question, TelemetryError if it
        does not answer properly.
        """
        self._deadline_s = deadline_s
        params = {} if at is None else {"time": f"{at:.3f}"}
        try:
            answer: object = self._connect.custom_query(expression, params=params)
        except self._timeouts as error:
            raise TelemetryError("no answer in time") from error
        except self._not_json as error:
            raise TelemetryError(_ALIEN) from error
        except self._lost as error:
            # Without the URL, which may hold a password.
            raise TelemetryError(f"request failed: {type(error).__name__}") from error
        except self._unfit as error:
            raise TelemetryError(_ALIEN) from error
        if not isinstance(answer, list):
            raise TelemetryError(_ALIEN)
        return answer

    def close(self) -> None:
        """Let go of idle connections."""
        self._session.close()

    def _bounded(self, send: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Send a request whose whole answer is read within the deadline and the size."""
        options |= {"stream": True, "allow_redirects": False, "timeout": self._remaining_s()}
        # The library puts even what it posts into the URL, of which proxies take 8 kB.
        options["data"] = options.pop("params", None)
        response = send(*args, **options)
        try:
            parts, size = [], 0
            while part := response.raw.read1(_PART_BYTES, decode_content=False):
                size += len(part)
                if size > self._limit_bytes:
                    raise TelemetryError(f"answer is larger than {self._limit_bytes} bytes")
                parts.append(part)
                self._remaining_s()
        except BaseException:
            response.close()
            raise
        body = b"".join(parts)
        response.raw.release_conn()
        if response.status_code != 200:
            raise _refused(response.status_code, body)
        response.raw = io.BytesIO(body)
        return response

    def _remaining_s(self) -> float:
        remaining_s = self._deadline_s - self._clock.now()
        if remaining_s <= 0:
            raise TelemetryError("no answer in time")
        return remaining_s


class Threads:
    """Runs blocking calls off the loop, one after the other, and never waits for a hung one.

    The threads are daemons: one that hangs keeps neither the loop nor the process from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._hanging: list[threading.Thread] = []

    async def run(self, call: Callable[[], T], within_s: float) -> T:
        """What `call` gives, or raises. Raises TelemetryError when it takes longer than
        `within_s`, or when too many calls hang already."""
        self._hanging = [thread for thread in self._hanging if thread.is_alive()]
        if len(self._hanging) >= MAX_HANGING:
            raise TelemetryError(f"{len(self._hanging)} earlier calls still hang")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                result = call()
            except Exception as error:
                tell(done.set_exception, error)
            else:
                tell(done.set_result, result)

        def tell(settle: Callable[[Any], None], value: object) -> None:
            # The loop may have ended while we hung.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(lambda: None if done.done() else settle(value))

        thread = threading.Thread(target=work, name=self._name, daemon=True)
        self._hanging.append(thread)
        thread.start()
        try:
            async with asyncio.timeout(within_s):
                return await done
        except TimeoutError as error:
            raise TelemetryError("no answer in time") from error


def _bounded_session(bounded: Callable[..., Any]) -> Any:
    """A session of requests whose every request goes through `bounded`."""
    import requests

    class Session(requests.Session):
        def request(self, *args: Any, **options: Any) -> Any:
            return bounded(super().request, *args, **options)

    return Session()


def _headers(settings: PrometheusSettings) -> dict[str, str]:
    # A packed answer could unpack to any size; one that comes all the same is not understood.
    headers = {**settings.headers, "User-Agent": "ext-authz", "Accept-Encoding": "identity"}
    if settings.bearer_token_file is not None:
        try:
            token = settings.bearer_token_file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise TelemetryError("bearer token file cannot be read") from error
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _refused(status: int, body: bytes) -> TelemetryError:
    """What Prometheus says of a question it cannot answer is worth showing; what a proxy in
    between says is not."""
    try:
        answer = json.loads(body)
        text = answer["error"] if answer.get("status") == "error" else ""
    except (ValueError, LookupError, AttributeError, RecursionError):
        text = ""
    text = "".join(c if c.isprintable() else " " for c in str(text))[:_SHOWN]
    if status in {400, 422} and text:
        return QueryRefusedError(f"query refused: {text}")
    return TelemetryError(f"HTTP status {status}")
