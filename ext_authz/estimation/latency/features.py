"""What the time of a request is made of: numbers whose weights are learned.

PURE. A step of a continuous-batching engine costs a fixed part, a part for every prompt token, and
one that grows with the sequences and the cache it carries; so the time to the first token is a sum
over the prompt and what is before it, and the time of the rest is the output tokens times a step.
Every feature grows with load or with size and every weight is at least 0, so a prediction is never
negative and never falls when load rises.

Sources. The step's form: least squares over a published profile of an H200 serving an 8B model,
where batch size alone explains a decode step badly (46 % off) and batch with cache well (6.5 %).
The square of the load: Gunther's universal scalability law read as a quadratic, without which
there is no knee.
"""

from __future__ import annotations

from collections.abc import Sequence

from ext_authz.model import value

Vector = tuple[float, ...]


@value
class Work:
    """The size of one request: prompt tokens, and output tokens of all its sequences."""

    prompt_tokens: float
    output_tokens: float


@value
class Load:
    """What an endpoint carries when a request comes to it, that request left out.

    `in_flight` counts requests, `context_tokens` the prompt tokens of our own among them;
    `prefill_s` is how long the prompts sent just now still keep the engine busy.
    """

    in_flight: float = 0.0
    context_tokens: float = 0.0
    prefill_s: float = 0.0


IDLE = Load()

# Names of the weights, in the order of the vectors below. Kilo-tokens, so that magnitudes are near.
FIRST = ("fixed", "prompt", "busy", "running", "queued", "prefill")
REST = ("output", "output_running", "output_running_2", "output_context")
WHOLE = FIRST + REST


def first(work: Work, load: Load, slots: int) -> Vector:
    """Features of the time to the first token.

    `busy`: whoever joins a running engine waits for the step under way. Up to `slots` requests
    run, the others queue before this one.
    """
    n = load.in_flight
    running = n if n < slots else float(slots)
    return (
        1.0,
        work.prompt_tokens / 1000.0,
        n if n < 1.0 else 1.0,
        running / slots,
        n - running,
        load.prefill_s,
    )


def rest(work: Work, load: Load, slots: int) -> Vector:
    """Features of the time from the first token to the last."""
    n = load.in_flight
    running = n if n < slots else float(slots)
    output = work.output_tokens / 1000.0
    per_slot = output * running / slots
    return (
        output,
        per_slot,
        per_slot * running / slots,
        output * load.context_tokens / 100_000.0,
    )


def sums(weights: Sequence[float], work: Work, load: Load, slots: int) -> tuple[float, float]:
    """The sums of `first` and of `whole`, each feature times its weight: written out, because every
    decision asks for them."""
    fixed, prompt, busy, some, queued, prefill, output, beside, square, context = weights
    n = load.in_flight
    running = n if n < slots else float(slots)
    part = running / slots
    before = (
        fixed
        + prompt * work.prompt_tokens / 1000.0
        + busy * (n if n < 1.0 else 1.0)
        + some * part
        + queued * (n - running)
        + prefill * load.prefill_s
    )
    each = output + part * (beside + part * square) + context * load.context_tokens / 100_000.0
    return before, before + each * work.output_tokens / 1000.0


def whole(work: Work, load: Load, slots: int) -> Vector:
    """Features of the time from end to end."""
    return first(work, load, slots) + rest(work, load, slots)
