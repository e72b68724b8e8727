"""What a measured request is expected to cost, and what teaches that.

PURE. Prompts are priced by bytes per token, outputs by how long answers get under the request's
cap. Both start from configured priors and learn: from what engines count over some seconds, from
the count of single requests where a tap on responses reads it, and from the sizes of responses,
calibrated on the engines' counters.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

from ext_authz.estimation.kv import known_shape
from ext_authz.estimation.output_length import OutputLengths
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


class CostBook:
    """Everything learned of costs. `model` below is a configured name or one for all others, so
    that no client can make the book grow."""

    def __init__(self) -> None:
        self.lengths = OutputLengths()
        self.prompts = ByteRatios(PROMPT_LOW, PROMPT_HIGH)
        self.outputs = ByteRatios(OUTPUT_LOW, OUTPUT_HIGH)
        # By endpoint: of prompts and of outputs.
        self._meters: dict[str, tuple[Meter, Meter]] = {}

    def estimate(
        self, request: InferenceRequest, tenant: str, model: str, rules: CostRules
    ) -> WorkEstimate:
        """Price `request`: prompt at least 1 token, all parts at most `MAX_TOKENS`.

        prompt = ceil(text_bytes / bytes per token) + token_ids + images x image_tokens; output =
        sequences x the expected length under the explicit cap, nothing for embeddings, the cap
        itself (else the default) before anything is known. A body cut at an unknown size adds
        `opaque_tokens`. An opaque request costs `opaque_tokens` at least, and its cap is believed
        only where it raises the price. `rules.bytes_per_token` must be positive.
        """
        ratio = self.prompts.ratio((model, request.operation), rules.bytes_per_token)
        prompt = math.ceil(min(request.text_bytes / ratio, MAX_TOKENS))
        prompt += request.token_ids + request.images * rules.image_tokens
        if request.size_unknown:
            prompt += rules.opaque_tokens
        expected, most = self._output(request, tenant, model, rules)
        if request.opaque:
            prompt = max(prompt, rules.opaque_tokens - expected)
        prompt = min(max(1, prompt), MAX_TOKENS)
        shape = known_shape(model)
        kv_bytes = None if shape is None else float(shape.token_bytes) * (prompt + most)
        return WorkEstimate(prompt, expected, most, kv_bytes)

    # -- teaching -------------------------------------------------------------------------

    def sent(
        self,
        endpoint: str,
        request: InferenceRequest,
        estimate: WorkEstimate,
        model: str,
        rules: CostRules,
    ) -> None:
        """A request went to `endpoint`."""
        if request.opaque or request.partial:
            # Its bytes are not what its tokens were made of: what it is said to cost is left out.
            self._meter(endpoint)[0].sent(None, 0.0, 1.0, estimate.prompt_tokens)
            return
        other = request.token_ids + request.images * rules.image_tokens
        kind = (model, request.operation)
        prior = rules.bytes_per_token
        self._meter(endpoint)[0].sent(kind, float(request.text_bytes), prior, float(other))

    def answered(
        self, endpoint: str, request: InferenceRequest, model: str, response_bytes: int
    ) -> None:
        """A request to `endpoint` was answered with so many bytes."""
        prior = STREAM_PRIOR if request.stream else ANSWER_PRIOR
        self._meter(endpoint)[1].sent((model, request.stream), float(response_bytes), prior)

    def ended(
        self, request: InferenceRequest, tenant: str, model: str, outcome: Outcome
    ) -> float | None:
        """A request has ended: the tokens it put out, None if nobody can tell."""
        kind = (model, request.stream)
        prior = STREAM_PRIOR if request.stream else ANSWER_PRIOR
        if request.operation is Operation.EMBEDDING or request.output_cap_tokens == 0:
            return 0.0
        usage = outcome.usage
        counted = None if usage is None else usage.output_tokens
        if usage is not None and usage.prompt_tokens and not (request.opaque or request.partial):
            text_tokens = float(usage.prompt_tokens - request.token_ids)
            prompt_kind: Hashable = (model, request.operation)
            if not request.images:
                self.prompts.saw(prompt_kind, float(request.text_bytes), text_tokens, 4.0)
        if counted is not None:
            self.outputs.saw(kind, float(outcome.response_bytes), float(counted), prior)
            tokens: float | None = float(counted)
        elif self.outputs.known(kind) and outcome.response_bytes > 0:
            tokens = max(1.0, outcome.response_bytes / self.outputs.ratio(kind, prior))
        else:
            tokens = None
        if tokens is not None and outcome.completed:
            self._learn_length(request, tenant, model, tokens)
        return tokens

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

    def export(self) -> dict[str, object]:
        """What was learned, as plain values."""
        return {
            "lengths": self.lengths.export(),
            "prompts": self.prompts.export(),
            "outputs": self.outputs.export(),
        }

    def restore(self, saved: object) -> bool:
        """Take up what `export` gave; False, and all is as it was, for anything else."""
        fresh = CostBook()
        try:
            fresh.lengths.restore(saved["lengths"])  # type: ignore[index]  # whatever it is, raises
            fresh.prompts.restore(saved["prompts"])  # type: ignore[index]
            fresh.outputs.restore(saved["outputs"])  # type: ignore[index]
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            return False
        self.lengths, self.prompts, self.outputs = fresh.lengths, fresh.prompts, fresh.outputs
        return True

    def _output(
        self, request: InferenceRequest, tenant: str, model: str, rules: CostRules
    ) -> tuple[int, int]:
        """Tokens of all sequences: expected, and the most."""
        if request.operation is Operation.EMBEDDING:
            return 0, 0
        cap, default = request.output_cap_tokens, rules.default_output_tokens
        if request.opaque:
            each = default if cap is None else max(cap, default)
            most = each
        else:
            each = math.ceil(self.lengths.expected(tenant, model, cap, default))
            longest = self.lengths.longest(tenant, model, default) if cap is None else cap
            most = math.ceil(longest)
        each = min(max(0, request.sequences * each), MAX_TOKENS)
        return each, min(max(each, request.sequences * most), MAX_TOKENS)

    def _learn_length(
        self, request: InferenceRequest, tenant: str, model: str, tokens: float
    ) -> None:
        cap, sequences = request.output_cap_tokens, max(1, request.sequences)
        each = tokens / sequences
        if cap is not None and each >= 0.98 * cap:
            # Bytes tell tokens to some per cent only.
            each = float(cap)
        self.lengths.learn(tenant, model, each, cap)

    def _meter(self, endpoint: str) -> tuple[Meter, Meter]:
        meters = self._meters.get(endpoint)
        if meters is None:
            meters = self._meters[endpoint] = (Meter(), Meter())
        return meters
