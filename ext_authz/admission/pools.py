"""The pools and endpoints of one configuration, with the live state of those that stay.

PURE.
"""

from __future__ import annotations

from collections.abc import Iterator

from ext_authz.admission.endpoints import EndpointState, seat
from ext_authz.admission.modes import Trust
from ext_authz.admission.view import PoolState
from ext_authz.estimation.latency.chain import Chain
from ext_authz.estimation.margin import MarginTuner
from ext_authz.settings import AdmissionSettings, Pool, Stage


class Pools:
    """Pools by name, endpoints by address."""

    def __init__(self) -> None:
        self.by_name: dict[str, PoolState] = {}
        self.endpoints: dict[str, EndpointState] = {}
        # The pool of each endpoint, by its address.
        self.homes: dict[str, PoolState] = {}
        # What each pipeline has learned, by its name.
        self.chains: dict[str, Chain] = {}
        self._stages: dict[str, tuple[Stage, ...]] = {}
        self._margin: tuple[float, float | None, float] | None = None

    def reconfigure(self, settings: AdmissionSettings) -> None:
        """Be those of `settings`; load, shares and what was learned stay."""
        old_endpoints, old_pools = self.endpoints, self.by_name
        self.by_name, self.endpoints, self.homes = {}, {}, {}
        margin = (
            settings.margin_s,
            settings.default_slo.e2e_s,
            settings.target_violation_ratio,
        )
        for spec in settings.pools.values():
            states = []
            for endpoint_spec in spec.endpoints:
                state = old_endpoints.get(endpoint_spec.address) or EndpointState(endpoint_spec)
                state.configure(endpoint_spec)
                self.endpoints[endpoint_spec.address] = state
                states.append(state)
            pool = PoolState(spec, tuple(states), MarginTuner(*margin))
            if (old := old_pools.get(spec.name)) is not None:
                _begin_alike(states, old)
                pool.shares = old.shares
                pool.shares.resize(spec.slots)
                pool.predictor, pool.measures = old.predictor, old.measures
                pool.risks = old.risks
                if spec.mode is old.trust.mode:
                    pool.trust = old.trust
                else:
                    pool.trust = Trust(spec.mode, pool.measures)
                pool.measures.keep_tenants(settings.tenants)
                if margin == self._margin:
                    pool.margin = old.margin
            pool.shares.rules = settings.shares
            pool.shares.patience_s = settings.hold.limit_s
            self.by_name[spec.name] = pool
            self.homes.update((endpoint.spec.address, pool) for endpoint in states)
        self._margin = margin
        old_chains, old_stages = self.chains, self._stages
        self._stages = {pipeline.name: pipeline.stages for pipeline in settings.pipelines}
        self.chains = {
            name: old_chains[name] if old_stages.get(name) == stages else Chain()
            for name, stages in self._stages.items()
        }
        seat(self.endpoints.values())

    def homed(self) -> Iterator[tuple[Pool, EndpointState]]:
        """Each endpoint with its pool."""
        for pool in self.by_name.values():
            for endpoint in pool.endpoints:
                yield pool.spec, endpoint

    def states(self) -> tuple[tuple[str, EndpointState], ...]:
        """(pool, endpoint) of all that is configured."""
        return tuple((p.spec.name, e) for p in self.by_name.values() for e in p.endpoints)


def _begin_alike(endpoints: list[EndpointState], old: PoolState) -> None:
    """Endpoints that are new to a pool begin with the largest knee that is known there."""
    knees = [endpoint.knee.slots for endpoint in old.endpoints if endpoint.knee.slots is not None]
    for endpoint in endpoints:
        if knees and endpoint.sample is None and endpoint.knee.slots is None:
            endpoint.knee.slots = max(knees)
