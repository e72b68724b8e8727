"""What a measured request is expected to cost, before anything is learned.

PURE.
"""

from __future__ import annotations

import math

from ext_authz.model import InferenceRequest, Operation, WorkEstimate
from ext_authz.settings import CostRules

MAX_TOKENS = 1_000_000_000


def estimate(request: InferenceRequest, rules: CostRules) -> WorkEstimate:
    """Price `request`: prompt at least 1 token, both parts at most `MAX_TOKENS`.

    prompt = ceil(text_bytes / bytes_per_token) + token_ids + images x image_tokens; output =
    sequences x (the explicit cap, else the default), 0 for embeddings. A body cut at an unknown
    size adds `opaque_tokens`. An opaque request costs `opaque_tokens` at least, and its cap is
    believed only where it raises the price. `rules.bytes_per_token` must be positive.
    """
    text = math.ceil(min(request.text_bytes / rules.bytes_per_token, MAX_TOKENS))
    prompt = text + request.token_ids + request.images * rules.image_tokens
    if request.size_unknown:
        prompt += rules.opaque_tokens
    output = request.sequences * _output_tokens(request, rules)
    if request.opaque:
        prompt = max(prompt, rules.opaque_tokens - output)
    return WorkEstimate(min(max(1, prompt), MAX_TOKENS), min(max(0, output), MAX_TOKENS))


def _output_tokens(request: InferenceRequest, rules: CostRules) -> int:
    """Output of one sequence."""
    if request.operation is Operation.EMBEDDING:
        return 0
    cap = request.output_cap_tokens
    if cap is None:
        return rules.default_output_tokens
    return max(cap, rules.default_output_tokens) if request.opaque else cap
