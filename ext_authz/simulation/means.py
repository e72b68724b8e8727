"""What stands in for what was not recorded of a request, and what was recorded of endpoints.

PURE.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from math import ceil

from ext_authz.model import WorkEstimate
from ext_authz.recorded import Carried, Request


class Means:
    """What stands in for what was not recorded: means over what was."""

    def __init__(self, requests: Sequence[Request]) -> None:
        times: defaultdict[tuple[str, str | None], list[float]] = defaultdict(list)
        costs: defaultdict[str, list[WorkEstimate]] = defaultdict(list)
        for request in requests:
            if request.seconds is not None:
                for key in ((request.tenant, request.model), ("", request.model), ("", None)):
                    times[key].append(request.seconds)
            if request.cost is not None:
                costs[request.tenant].append(request.cost)
        self._seconds = {key: sum(told) / len(told) for key, told in times.items()}
        self._costs = {name: _mean_cost(told) for name, told in costs.items()}

    def seconds(self, request: Request) -> float | None:
        """Of its tenant and model, else of its model, else of all."""
        keys = ((request.tenant, request.model), ("", request.model), ("", None))
        return next((self._seconds[key] for key in keys if key in self._seconds), None)

    def cost(self, tenant: str) -> WorkEstimate | None:
        """Of the tenant's requests that were read."""
        return self._costs.get(tenant)


def _mean_cost(costs: Sequence[WorkEstimate]) -> WorkEstimate:
    count = len(costs)
    return WorkEstimate(
        ceil(sum(cost.prompt_tokens for cost in costs) / count),
        ceil(sum(cost.output_tokens for cost in costs) / count),
        ceil(sum(cost.most_output_tokens for cost in costs) / count),
    )


class Others:
    """What was recorded of endpoints beside our own requests."""

    def __init__(self, carried: Sequence[Carried]) -> None:
        self._told: defaultdict[str, tuple[list[float], list[Carried]]] = defaultdict(
            lambda: ([], [])
        )
        for each in carried:
            times, values = self._told[each.endpoint]
            times.append(each.at_s)
            values.append(each)

    def of(self, endpoint: str, now: float) -> Carried | None:
        """The last word by `now`, or the first there is; None of an endpoint that is new."""
        if endpoint not in self._told:
            return None
        times, values = self._told[endpoint]
        return values[max(0, bisect_right(times, now) - 1)]
