"""What a measured request is expected to cost, and what teaches that.

PURE. Prompts are priced by bytes per token, outputs by how long answers get under the request's
cap. Both start from configured priors and learn: from what engines count over some seconds, from
the count of single requests where a tap on responses reads it, and from the sizes of responses,
calibrated on the engines' counters.
"""

from __future__ import annotations

import math
from collections.abc import Generator

from ext_authz.estimation.output_length import OutputLengths
from ext_authz.estimation.saved import at_once, fields
from ext_authz.estimation.tokens import ByteRatios, Meter
from ext_authz.model import InferenceRequest, Operation, Outcome, WorkEstimate
from ext_authz.settings import CostRules
from ext_authz.snapshot import EndpointSample

MAX_TOKENS = 1_000_000_000
# Bytes per prompt token lie between these for any text and tokeniser there is.
PROMPT_LOW, PROMPT_HIGH = 1.0, 8.0
# Bytes of a response per output token: text in one document, or an event with its frame for each.
# The priors only matter until the engine's counters have spoken.
ANSWER_PRIOR, STREAM_PRIOR = 5.0, 220.0
OUTPUT_LOW, OUTPUT_HIGH = 1.0, 4000.0
# Bytes tell tokens to some per cent only: this near its cap an answer has reached it.
CAPPED_RATIO = 0.95


class CostBook:
    """Everything learned of costs, and the `rules` that hold before. `model` below is a configured
    name or one for all others, so that no client can make the book grow."""

    def __init__(self, rules: CostRules | None = None) -> None:
        self.rules = rules or CostRules()
        self.lengths = OutputLengths()
        self.prompts = ByteRatios(PROMPT_LOW, PROMPT_HIGH)
        self.outputs = ByteRatios(OUTPUT_LOW, OUTPUT_HIGH)
        # By endpoint: of prompts and of outputs.
        self._meters: dict[str, tuple[Meter, Meter]] = {}

    def estimate(
        self,
        request: InferenceRequest,
        tenant: str,
        model: str,
        kv_token_bytes: float | None = None,
    ) -> WorkEstimate:
        """Price `request`: prompt at least 1 token, all parts at most `MAX_TOKENS`.

        prompt = ceil(text_bytes / bytes per token) + token_ids + images x image_tokens; output =
        sequences x the expected length under the explicit cap, nothing for embeddings, the cap
        itself (else the default) before anything is known. A body cut at an unknown size adds
        `opaque_tokens`. An opaque request costs `opaque_tokens` at least, and its cap is believed
        only where it raises the price. `rules.bytes_per_token` must be positive. A token fills
        `kv_token_bytes` of cache, if that is known.
        """
        rules = self.rules
        ratio = self.prompts.ratio((model, request.operation), rules.bytes_per_token)
        prompt = math.ceil(min(request.text_bytes / ratio, MAX_TOKENS))
        prompt += request.token_ids + request.images * rules.image_tokens
        if request.size_unknown:
            prompt += rules.opaque_tokens
        expected, most = self._output(request, tenant, model)
        if request.opaque:
            prompt = max(prompt, rules.opaque_tokens - expected)
        prompt = min(max(1, prompt), MAX_TOKENS)
        kv_bytes = None if kv_token_bytes is None else kv_token_bytes * (prompt + most)
        return WorkEstimate(prompt, expected, most, kv_bytes)

    # -- teaching -------------------------------------------------------------------------

    def sent(
        self, endpoint: str, request: InferenceRequest, estimate: WorkEstimate, model: str
    ) -> None:
        """A request went to `endpoint`."""
        prompts, outputs = self._meter(endpoint)
        prompts.began()
        outputs.began()
        self._add_prompt(prompts, request, estimate, model)

    def passed(self, endpoint: str, estimate: WorkEstimate) -> None:
        """A stage of a pipeline was charged to `endpoint`, which will count tokens that no size
        tells of."""
        prompts, outputs = self._meter(endpoint)
        prompts.other(float(estimate.prompt_tokens), False)
        outputs.other(float(estimate.output_tokens), False)

    def answered(
        self,
        endpoint: str,
        request: InferenceRequest,
        estimate: WorkEstimate,
        model: str,
        outcome: Outcome,
    ) -> None:
        """A request that was sent to `endpoint` has ended. To be told of all, in time; what a
        single one teaches is learned by `ended`, which may be told later or of a sample."""
        prompts, outputs = self._meter(endpoint)
        prompts.ended()
        outputs.ended()
        if outcome.status >= 400:
            # Whoever refused it counted no tokens.
            if _tells_prompt(request):
                kind = (model, request.operation)
                prompts.text(kind, -float(request.text_bytes), self.rules.bytes_per_token)
            else:
                prompts.other(-float(estimate.prompt_tokens), False)
        elif not _generates(request):
            return
        elif request.opaque or not (outcome.completed or request.stream):
            # Answers of no known form, or cut off before they were sent at all.
            outputs.other(float(estimate.output_tokens), False)
        else:
            kind_out = (model, request.stream)
            outputs.text(kind_out, float(outcome.response_bytes), _answer_prior(request))

    def ended(
        self, request: InferenceRequest, tenant: str, model: str, outcome: Outcome, now: float
    ) -> float | None:
        """A request has ended: the tokens it put out, None if nobody can tell."""
        usage = outcome.usage
        if usage is not None and usage.prompt_tokens is not None and _tells_prompt(request):
            kind = (model, request.operation)
            tokens = float(usage.prompt_tokens - request.token_ids)
            prior = self.rules.bytes_per_token
            self.prompts.saw(kind, float(request.text_bytes), tokens, prior, now)
        if not _generates(request):
            return 0.0
        made = self._put_out(request, model, outcome, now)
        if made is not None and not request.opaque:
            self._learn_length(request, (tenant, model), made, outcome)
        return made

    def observed(self, sample: EndpointSample, own_only: bool) -> None:
        """An engine told what it counted; `own_only` when all its requests are ours."""
        if sample.endpoint not in self._meters:
            return
        prompts, outputs = self._meters[sample.endpoint]
        at_s = sample.told_s("prompt_tokens_per_s")
        if prompts.counted(sample.prompt_tokens_per_s, at_s, own_only):
            prompts.teach(self.prompts)
        at_s = sample.told_s("generation_tokens_per_s")
        if outputs.counted(sample.generation_tokens_per_s, at_s, own_only):
            outputs.teach(self.outputs)

    def keep(self, endpoints: frozenset[str]) -> None:
        """Forget the meters of endpoints that are gone."""
        self._meters = {name: m for name, m in self._meters.items() if name in endpoints}

    # -- state ----------------------------------------------------------------------------

    def exporting(self) -> Generator[None, None, dict[str, object]]:
        """What was learned, as plain values, piece by piece."""
        lengths = yield from self.lengths.exporting()
        return {
            "lengths": lengths,
            "prompts": self.prompts.export(),
            "outputs": self.outputs.export(),
        }

    def export(self) -> dict[str, object]:
        """The same at once."""
        return at_once(self.exporting())

    def restore(self, saved: object) -> bool:
        """Take up what `export` gave; False, and all is as it was, for anything else."""
        fresh = CostBook(self.rules)
        try:
            told = fields(saved)
            fresh.lengths.restore(told["lengths"])
            fresh.prompts.restore(told["prompts"])
            fresh.outputs.restore(told["outputs"])
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            return False
        self.lengths, self.prompts, self.outputs = fresh.lengths, fresh.prompts, fresh.outputs
        return True

    def _output(self, request: InferenceRequest, tenant: str, model: str) -> tuple[int, int]:
        """Tokens of all sequences: expected, and the most."""
        if request.operation is Operation.EMBEDDING:
            return 0, 0
        cap, default = request.output_cap_tokens, self.rules.default_output_tokens
        if request.opaque:
            each = default if cap is None else max(cap, default)
            most = each
        else:
            each = math.ceil(self.lengths.expected(tenant, model, cap, default))
            longest = self.lengths.longest(tenant, model, default) if cap is None else cap
            most = math.ceil(longest)
        each = min(max(0, request.sequences * each), MAX_TOKENS)
        return each, min(max(each, request.sequences * most), MAX_TOKENS)

    def _add_prompt(
        self, prompts: Meter, request: InferenceRequest, estimate: WorkEstimate, model: str
    ) -> None:
        if not _tells_prompt(request):
            # Its bytes are not what its tokens are made of.
            prompts.other(float(estimate.prompt_tokens), False)
            return
        kind = (model, request.operation)
        prompts.text(kind, float(request.text_bytes), self.rules.bytes_per_token)
        if request.token_ids:
            prompts.other(float(request.token_ids), True)

    def _put_out(
        self, request: InferenceRequest, model: str, outcome: Outcome, now: float
    ) -> float | None:
        """The tokens of an answer: counted by the engine, or by its size."""
        kind, prior = (model, request.stream), _answer_prior(request)
        size = float(outcome.response_bytes)
        counted = None if outcome.usage is None else outcome.usage.output_tokens
        if counted is not None:
            self.outputs.saw(kind, size, float(counted), prior, now)
            return float(counted)
        if size > 0.0 and outcome.status < 400 and self.outputs.known(kind) and not request.opaque:
            return max(1.0, size / self.outputs.ratio(kind, prior))
        return None

    def _learn_length(
        self, request: InferenceRequest, who: tuple[str, str], tokens: float, outcome: Outcome
    ) -> None:
        """One answer, or the mean of several that came together."""
        each, cap = tokens / max(1, request.sequences), request.output_cap_tokens
        if outcome.completed:
            if cap is not None and each >= CAPPED_RATIO * cap:
                each = float(cap)
            self.lengths.learn(*who, each, cap)
        elif request.stream and (outcome.client_left or outcome.timed_out):
            # It would have been longer, had it been left to go on.
            self.lengths.learn(*who, each, int(each))

    def _meter(self, endpoint: str) -> tuple[Meter, Meter]:
        meters = self._meters.get(endpoint)
        if meters is None:
            meters = self._meters[endpoint] = (Meter(), Meter())
        return meters


def _answer_prior(request: InferenceRequest) -> float:
    return STREAM_PRIOR if request.stream else ANSWER_PRIOR


def _generates(request: InferenceRequest) -> bool:
    """Whether an engine puts out tokens for it."""
    return request.operation is not Operation.EMBEDDING and request.output_cap_tokens != 0


def _tells_prompt(request: InferenceRequest) -> bool:
    """Whether its text, with the token ids it names, is just what the engine counts as a prompt.
    Some engines count the prompt once for each of several answers."""
    return not (
        request.opaque
        or request.partial
        or request.size_unknown
        or request.images
        or request.sequences != request.prompts
    )
