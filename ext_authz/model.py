"""The vocabulary: frozen values that every room speaks, and nothing that acts.

PURE. Times are seconds, sizes bytes or tokens, as each name says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar, dataclass_transform

from ext_authz.overload import Bound, Held, Mode

_Class = TypeVar("_Class")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[_Class]) -> type[_Class]:
    """A slotted dataclass that type checkers hold to be frozen.

    For values made for every request: freezing at run time makes a constructor three times as
    slow, and they are a tenth of what a decision costs.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


class Verdict(StrEnum):
    """What happens to a request."""

    ADMIT = "admit"
    DEMOTE = "demote"
    REJECT = "reject"
    HOLD = "hold"  # decided later, see `Held`


class Reason(StrEnum):
    """Why. The only vocabulary of metric labels, answers and the journal."""

    # admitted
    HEADROOM = "headroom"
    IDLE_ENDPOINT = "idle_endpoint"
    PREFLIGHT = "preflight"
    DISABLED = "disabled"
    DEMOTION_PREFERRED = "demotion_preferred"
    TELEMETRY_FALLBACK = "telemetry_fallback"
    # refused for what the caller is or asks
    UNKNOWN_KEY = "unknown_key"
    MODEL_NOT_ALLOWED = "model_not_allowed"
    UNKNOWN_MODEL = "unknown_model"
    TOO_LARGE = "too_large"
    # refused by the tenant's own limits
    REQUEST_RATE = "request_rate"
    TOKEN_RATE = "token_rate"
    TENANT_CONCURRENCY = "tenant_concurrency"
    TYPE_CONCURRENCY = "type_concurrency"
    # refused or demoted because others need the capacity too
    SLO_UNREACHABLE = "slo_unreachable"
    AT_CAPACITY = "at_capacity"
    OVER_SHARE = "over_share"
    YIELDING = "yielding"
    PAUSED = "paused"
    RESERVED = "reserved"
    KV_MEMORY = "kv_memory"
    DEVICE_MEMORY = "device_memory"
    HAMMERING = "hammering"
    # nothing can serve
    NO_ENDPOINT = "no_endpoint"
    TELEMETRY_LOST = "telemetry_lost"
    # our own faults
    MALFORMED_CHECK = "malformed_check"
    OVERLOADED = "overloaded"
    INTERNAL = "internal"


class Api(StrEnum):
    """The API a caller speaks, which decides the shape of an error body."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    KSERVE = "kserve"
    GRPC = "grpc"
    OTHER = "other"


class Operation(StrEnum):
    """What a request asks of a model."""

    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDING = "embedding"
    INFER = "infer"
    COMPARISON = "comparison"
    TRANSCRIPTION = "transcription"
    IMAGE = "image"
    TOKENIZE = "tokenize"
    OPAQUE = "opaque"


class Unread(StrEnum):
    """Why a request was not understood and is priced conservatively."""

    UNKNOWN_PATH = "unknown_path"
    AMBIGUOUS_PATH = "ambiguous_path"
    EMPTY = "empty"
    NOT_JSON = "not_json"
    ODD_JSON = "odd_json"
    ENCODED = "encoded"
    GRPC = "grpc"
    BAD_TENSOR = "bad_tensor"
    BAD_FORM = "bad_form"
    FAULT = "fault"


@value
class HttpCall:
    """The HTTP request a Check describes.

    `headers` has lower-case names; a header sent several times is joined by ",". `path` is raw,
    query included. `body` is what Envoy buffered, perhaps only the beginning; `body_bytes` is
    the size of the whole body as far as anybody knows, -1 when nobody does.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    body_bytes: int
    partial: bool


@value
class InferenceRequest:
    """What a call asks for, measured but not yet priced.

    `text_bytes` is UTF-8 text to be tokenised, `token_ids` tokens known by their number (ids,
    patches of tensors, sound), `images` pictures; `sequences` counts prompts x n (at least 1).
    `output_cap_tokens` is the largest explicit cap for ONE sequence, or None. `partial` means the
    body was cut and what lies beyond was scaled from its size; `size_unknown` that not even the
    size is known. `opaque` means the shape was not understood (`unread` says why): price
    conservatively.
    """

    api: Api
    operation: Operation
    path: str
    model: str | None
    text_bytes: int
    token_ids: int = 0
    images: int = 0
    sequences: int = 1
    prompts: int = 1
    output_cap_tokens: int | None = None
    stream: bool = False
    partial: bool = False
    opaque: bool = False
    size_unknown: bool = False
    unread: Unread | None = None


@value
class WorkEstimate:
    """What a request is expected to cost, all its sequences together.

    `output_tokens` are expected; it may put out up to `most_output_tokens`, which is never less.
    `kv_bytes` is what its `kv_tokens` fill, where the shape of the model is known.
    """

    prompt_tokens: int
    output_tokens: int
    most_output_tokens: int = 0
    kv_bytes: float | None = None

    @property
    def tokens(self) -> int:
        """Prompt and expected output: the charge against token limits."""
        return self.prompt_tokens + self.output_tokens

    @property
    def kv_tokens(self) -> int:
        """The KV cells it may fill."""
        output, most = self.output_tokens, self.most_output_tokens
        return self.prompt_tokens + (output if output > most else most)


@value
class RetryHint:
    """When to come back: `after_s` in all, of which `jitter_s` was drawn by chance."""

    after_s: float
    jitter_s: float


@dataclass(frozen=True, slots=True)
class LimitState:
    """A limit as a client may read it: `limit` per `window_s` (0: at once), and what is left."""

    name: str
    limit: float
    window_s: float
    remaining: float


@value
class Evidence:
    """The numbers a decision was taken on: enough to explain it later. Unknown is None.

    `predicted_s` is the expected time end to end, `risk_ratio` the chance to break the promise,
    `memory_risk_ratio` the part of the pool's KV cache it may fill; `limit` is how many requests
    the endpoint may carry, and `limited_by` why; `mode` what was acted on.
    """

    in_flight: float
    slots: int
    wait_s: float | None
    execution_s: float | None
    budget_s: float | None
    tenant_in_flight: int
    tenant_limit: float | None
    predicted_s: float | None = None
    risk_ratio: float | None = None
    memory_risk_ratio: float | None = None
    limit: int | None = None
    limited_by: Bound | None = None
    mode: Mode = Mode.PREDICTIVE


@value
class Decision:
    """The answer to one request.

    `verdict` is what happens; `would_be` the verdict enforcement would have given (they differ
    only in shadow mode). `endpoint` and `reservation_id` are set exactly when work was admitted
    to a pool. `pipeline` is the one that the request belongs to, and `stage` the pool of its stage
    that objected. `held` is set of what waits, and of what has waited. `max_tokens` is what the
    server is asked to put out at most, `limits` are those that who is admitted is told of.
    """

    verdict: Verdict
    reason: Reason
    would_be: Verdict
    tenant: str | None = None
    type: str | None = None
    model: str | None = None
    pool: str | None = None
    endpoint: str | None = None
    reservation_id: str | None = None
    estimate: WorkEstimate | None = None
    retry: RetryHint | None = None
    limit: LimitState | None = None
    evidence: Evidence | None = None
    pipeline: str | None = None
    stage: str | None = None
    held: Held | None = None
    max_tokens: int | None = None
    limits: tuple[LimitState, ...] = ()


@value
class Usage:
    """What an engine counted of one request, None if unknown; `ttft_s` is from its arrival."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    ttft_s: float | None = None


@value
class Outcome:
    """How an admitted request ended, as the access log tells it.

    `duration_s` is from when it was let in to its end, `ended_s` (monotonic) when that was: earlier
    than the entry came, unknown where the log gives no times. `status` is HTTP's, `grpc_status`
    that of a gRPC answer's trailers. `timed_out`: the proxy or the client's deadline ended it.
    `response_bytes` is the body sent; `usage` what the engine counted, where a tap has read it.
    `completed`: it was served to its end, which alone teaches how long things take.
    """

    reservation_id: str
    status: int
    duration_s: float
    upstream: str | None
    client_left: bool = False
    upstream_reset: bool = False
    timed_out: bool = False
    grpc_status: int | None = None
    ended_s: float | None = None
    response_bytes: int = 0
    usage: Usage | None = None
    completed: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Asked half a dozen times of each.
        completed = (
            200 <= self.status < 300
            and not (self.client_left or self.upstream_reset or self.timed_out)
            and not self.grpc_status
        )
        object.__setattr__(self, "completed", completed)
