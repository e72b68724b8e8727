"""What a request costs before anything is learned."""

from __future__ import annotations

from ext_authz.estimation.cost import CostBook
from ext_authz.model import InferenceRequest, WorkEstimate
from ext_authz.settings import CostRules


def estimate(request: InferenceRequest, rules: CostRules) -> WorkEstimate:
    """Prompt and output; nobody knows better yet, so the most is what is expected."""
    made = CostBook(rules).estimate(request, "tenant", "model")
    assert made.most_output_tokens == made.output_tokens
    return WorkEstimate(made.prompt_tokens, made.output_tokens)
