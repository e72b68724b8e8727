"""What was learned, gathered as plain values, and taken up again where it still holds.

PURE. What a pool learned holds for an engine, models and slots; these are written beside it, and
what was learned of others is left alone. Everything is taken or left by itself: one damaged part
costs no other.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping

from ext_authz.admission.view import PoolState
from ext_authz.estimation.cost import CostBook
from ext_authz.settings import Pool

# Of a name that is told in a log line, and of the parts told by one.
MOST_LETTERS, MOST_TOLD = 64, 20


def gathering(
    pools: Mapping[str, PoolState], costs: CostBook
) -> Generator[None, None, dict[str, object]]:
    """What was learned, as plain values; of endpoints nothing, their paces are of the moment. Works
    in pieces of some hundred microseconds: what is learned between two of them may be in or not."""
    told: dict[str, object] = {}
    for name, pool in list(pools.items()):
        told[name] = {
            "of": made_of(pool.spec),
            "predictor": pool.predictor.export(),
            "margin": pool.margin.export(),
        }
        yield
    prices = yield from costs.exporting()
    return {"pools": told, "costs": prices}


def recall(saved: object, pools: Mapping[str, PoolState], costs: CostBook) -> tuple[str, ...]:
    """Take up of what `gathering` gave what fits; what was left and why, for a log line. Never
    raises, whatever `saved` is."""
    if not isinstance(saved, dict):
        return ("everything: no mapping",)
    told = []
    known = saved.get("pools")
    if not isinstance(known, dict):
        told.append("pools: no mapping")
        known = {}
    for name, part in known.items():
        pool = pools.get(name)
        if pool is None:
            told.append(f"{_shown(name)}: no such pool")
        else:
            told += (f"{_shown(name)}: {why}" for why in _recall_pool(part, pool))
    if not costs.restore(saved.get("costs")):
        told.append("costs: damaged")
    if len(told) > MOST_TOLD:
        told[MOST_TOLD - 1 :] = [f"and {len(told) - MOST_TOLD + 1} more"]
    return tuple(told)


def made_of(spec: Pool) -> dict[str, object]:
    """What a pool's speed depends on. Its number of endpoints is not among it, which changes while
    it runs."""
    slots = {endpoint.max_concurrency for endpoint in spec.endpoints}
    if spec.discovery is not None:
        slots.add(spec.discovery.max_concurrency)
    return {
        "engine": spec.engine,
        "models": sorted(spec.models),
        "slots": sorted(slots),
        "instances": spec.instances,
    }


def _recall_pool(part: object, pool: PoolState) -> list[str]:
    """What was left, and why."""
    if not isinstance(part, dict):
        return ["no mapping"]
    now = made_of(pool.spec)
    then = part.get("of")
    if then != now:
        then = then if isinstance(then, dict) else {}
        other = [name for name, value in now.items() if then.get(name) != value]
        return [f"was of other {', '.join(other) or 'things'}"]
    told = []
    if not pool.predictor.restore(part.get("predictor")):
        told.append("predictions are damaged")
    if not pool.margin.restore(part.get("margin")):
        told.append("margin is damaged or of another promise")
    return told


def _shown(name: object) -> str:
    text = "".join(letter if letter.isprintable() else "?" for letter in str(name)[:MOST_LETTERS])
    return f"pool {text}"
