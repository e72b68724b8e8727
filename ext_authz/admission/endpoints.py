"""Load of one endpoint: our own unsettled work plus what others brought.

PURE. load = own + foreign, where foreign is what the engine's gauges show beyond our own at the
time of the sample. Own work counts from the moment it is admitted, so a gauge that lags or is
stuck at zero never frees room; once the gauge catches up, nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Collection
from math import exp, inf

from ext_authz.admission.climb import Climb
from ext_authz.admission.hearsay import Hearsay
from ext_authz.admission.limits import Knee
from ext_authz.admission.owned import Owned
from ext_authz.admission.traffic import Traffic
from ext_authz.admission.trials import Trials
from ext_authz.estimation.latency.queueing import FIXED_SHAPE, ExecutionMean, fixed_wait_s, wait_s
from ext_authz.overload import Bound
from ext_authz.settings import Endpoint, Pool
from ext_authz.snapshot import EndpointSample, Staleness

# Gauges are noisy from scrape to scrape; half a second is short against a request and long
# against a scrape interval of 100 ms.
SMOOTHING_S = 0.5


class EndpointState:
    """One endpoint's live numbers. Only the controller changes them.

    `own` are our unsettled requests, `foreign` those in the engine that we did not admit (or have
    already settled), `untold` of our own are over by now though the access log has not told yet,
    `load` is all that run. `peers` are the other endpoints on the same device. `thermal_factor` is
    by how much throttled clocks lengthen execution now, `limit` how many may run at once, and
    `slots` how many are shared out: more than that while it has to show what it can carry. In the
    roster of its pool it has a `place`, and is among those `touched` when its numbers have changed:
    False if only requests of ours have come and gone. `holds_tokens` are those of the largest
    request that could run here at all, alone; infinite when nobody knows. `served_s` is when the
    last one of ours ended that was served.
    """

    # Attributes, not properties: each is read several times a decision and for every endpoint.
    __slots__ = (
        "_foreign",
        "_mean_at_s",
        "_owned",
        "_peak_since",
        "climb",
        "execution",
        "foreign",
        "hearsay",
        "holds_tokens",
        "idle_card_ratio",
        "knee",
        "kv_at_s",
        "limit",
        "limited_by",
        "load",
        "own",
        "own_tokens",
        "peers",
        "place",
        "sample",
        "served_s",
        "slots",
        "spec",
        "thermal_factor",
        "tightened",
        "touched",
        "traffic",
        "trials",
        "untold",
    )

    def __init__(self, spec: Endpoint) -> None:
        self.spec = spec
        self.limit = self.slots = spec.max_concurrency
        self.place = 0
        self.touched: dict[EndpointState, bool] = {}
        self.own = 0
        self.own_tokens = 0
        self.sample: EndpointSample | None = None
        self.execution = ExecutionMean()
        self.traffic = Traffic()
        self.hearsay = Hearsay()
        self.knee = Knee(spec.max_concurrency)
        self.trials = Trials()
        self.climb = Climb()
        self.tightened = 0.0
        # The least of the card's memory that was in use while nothing ran here.
        self.idle_card_ratio: float | None = None
        self.peers: tuple[EndpointState, ...] = ()
        self.thermal_factor = 1.0
        self.foreign = 0.0
        self.untold = 0.0
        self.load = 0.0
        self.limited_by = Bound.CONFIGURED
        self._foreign: float | None = None
        self.holds_tokens = inf
        self.kv_at_s = -inf
        self.served_s = -inf
        self._mean_at_s = -inf
        self._peak_since = 0
        self._owned = Owned()

    def reserve(self, tokens: int) -> None:
        """Count one admitted request."""
        self.own = own = self.own + 1
        self.own_tokens += tokens
        peak = self._peak_since
        self._peak_since = own if own > peak else peak
        if self.peers or self.untold:
            self._moved()
            return
        # Nothing else has changed.
        self.load = own + self.foreign
        if self not in self.touched:
            self.touched[self] = False

    def release(self, tokens: int) -> None:
        """Uncount one."""
        self.own -= 1
        self.own_tokens -= tokens
        self._counted()

    def set_untold(self, requests: float) -> None:
        """So many of our own are over though nobody has told."""
        self.traffic.running_ratio = max(0.0, 1.0 - requests / self.own) if self.own else 1.0
        if requests or self.untold:
            self.untold = requests
            self._moved()

    def configure(self, spec: Endpoint) -> None:
        """What is configured of it has changed."""
        self.spec = spec
        self.bound()
        self._moved()

    def share_device(self, peers: tuple[EndpointState, ...]) -> None:
        """These are on the same device from now on."""
        self.peers = peers
        self.bound()
        self._moved()

    def _counted(self) -> None:
        """Nothing but our own requests has changed."""
        if self.peers or self.untold:
            self._moved()
            return
        self.load = self.own + self.foreign
        if self not in self.touched:
            self.touched[self] = False

    def _moved(self) -> None:
        own = self.own - self.untold
        self.load = (own if own > 0.0 else 0.0) + self.foreign
        self.touched[self] = True
        for peer in self.peers:
            peer.touched[peer] = True

    def bound(self) -> None:
        """Find the limit anew, when its knee or its configuration has changed."""
        most, knee = self.spec.max_concurrency, self.knee
        knee.most = most
        limit = most if self.peers else knee.limit
        slots = most if knee.slots is None else limit
        self.limited_by = Bound.CONFIGURED
        if limit < most:
            self.limited_by = Bound.UNPROVEN if knee.slots is None else Bound.KNEE
        if limit != self.limit or slots != self.slots:
            self.limit, self.slots = limit, slots
            self._moved()

    def tighten(self, ratio: float) -> None:
        """The guard of its cache is lower by so much of the cache."""
        if ratio != self.tightened:
            self.tightened = ratio
            self._moved()

    @property
    def own_kv_ratio(self) -> float | None:
        """The part of its cache that our own requests may fill; None if nobody knows how large
        it is."""
        capacity = self.sample.kv_capacity_tokens if self.sample else None
        return self.own_tokens / capacity if capacity else None

    @property
    def device(self) -> str | None:
        """The card it runs on, as configured or else as telemetry says; None if nobody knows."""
        if self.spec.device != self.spec.address:
            return self.spec.device
        return self.sample.device if self.sample else None

    @property
    def execution_s(self) -> float | None:
        """Expected execution with the clocks as they are now."""
        cool_s = self.execution.value_s
        return None if cool_s is None else cool_s * self.thermal_factor

    def peers_load(self, staleness: Staleness, now: float) -> float:
        """Requests that its peers hold: models that share a card share its queue. Of a peer whose
        telemetry is too old only our own count: who is gone must not fill the card for ever."""
        load = 0.0
        for peer in self.peers:
            believed = peer.believed(staleness, now)
            load += peer.own if believed is None else believed
        return load

    def believed(self, staleness: Staleness, now: float) -> float | None:
        """Its own load, as far as that is believed; None when its telemetry is too old, or tells
        that its card is lost: a server without one shows no load, and draws all of it."""
        sample = self.sample
        if sample is None or sample.device_lost:
            return None
        load = self.load
        age_s = now - sample.at_s
        if age_s > staleness.fresh_s:
            believed = staleness.believed(load, self.limit, age_s)
            if believed is None:
                return None
            # What we admitted ourselves is known, however old the gauges are.
            load = max(believed, self.own - self.untold)
        return load

    def serves(self, staleness: Staleness, now: float) -> bool:
        """Whether it has served one of ours as lately as a sample would be believed. Then it runs,
        whatever has become of its page, and what it runs of ours is known."""
        if self.sample is None or self.sample.device_lost:
            return False
        return now - self.served_s <= staleness.lifetime_s

    def wait_s(self, in_flight: float, execution_s: float, pool: Pool) -> float:
        """Expected wait of one more request behind `in_flight`, by the kind of `pool`'s engine."""
        if pool.engine in FIXED_SHAPE:
            mean_batch = self.sample.mean_batch if self.sample else None
            return fixed_wait_s(in_flight, pool.instances, mean_batch, execution_s)
        return wait_s(in_flight, self.spec.max_concurrency, execution_s)

    def finished(self, seconds: float, now: float, ended_s: float | None = None) -> None:
        """One of our requests completed after `seconds`, with the clocks as they are: just now, or
        at `ended_s`."""
        self.served_s = max(self.served_s, now if ended_s is None else min(ended_s, now))
        self.execution.finished(seconds / self.thermal_factor, now)

    def observe(self, sample: EndpointSample) -> None:
        """Take in a newer sample; an older one is ignored.

        One that only tells something else anew (a device's clocks) does not count its load or
        its mean execution a second time.
        """
        before = self.sample
        if before is not None and sample.at_s < before.at_s:
            return
        self.sample = sample
        self.thermal_factor = sample.thermal_factor
        self.holds_tokens = sample.kv_capacity_tokens or inf
        self._moved()
        self.kv_at_s = sample.told_s("kv_usage_ratio")
        self._take_execution(sample)
        card_ratio, idle_ratio = sample.device_memory_ratio, self.idle_card_ratio
        if card_ratio is not None and self.load < 0.5:
            self.idle_card_ratio = card_ratio if idle_ratio is None else min(idle_ratio, card_ratio)
        if sample.load is None or (
            self._foreign is not None and before is not None and sample.at_s == before.at_s
        ):
            return
        since_s = sample.at_s if before is None else before.at_s
        seen = sample.load - self._owned.most(self._peak_since, since_s, sample.at_s)
        if self._foreign is None or before is None:
            self._foreign = seen
        else:
            keep = exp(-(sample.at_s - before.at_s) / SMOOTHING_S)
            self._foreign = keep * self._foreign + (1.0 - keep) * seen
        self.foreign = max(0.0, self._foreign)
        self._moved()
        self._owned.mark(self._peak_since, self.traffic.at_s)
        self._peak_since = self.own

    def _take_execution(self, sample: EndpointSample) -> None:
        """Learn the mean on cool clocks: the factor is multiplied back when asked."""
        at_s = sample.told_s("mean_execution_s")
        if sample.mean_execution_s is not None and at_s > self._mean_at_s:
            self._mean_at_s = at_s
            self.execution.measured(sample.mean_execution_s / sample.thermal_factor, at_s)

    def fits(self, tokens: int) -> bool:
        """Whether the request could run here at all, alone; True when nobody knows."""
        return tokens <= self.holds_tokens


def seat(endpoints: Collection[EndpointState]) -> None:
    """Tell the endpoints of one device of each other."""
    seated: dict[str, list[EndpointState]] = {}
    for endpoint in endpoints:
        if endpoint.device is not None:
            seated.setdefault(endpoint.device, []).append(endpoint)
    for endpoint in endpoints:
        together = seated.get(endpoint.device or "", [])
        endpoint.share_device(tuple(other for other in together if other is not endpoint))
