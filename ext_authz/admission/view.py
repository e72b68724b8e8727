"""What a policy may look at: one request against one endpoint of one pool, read only."""

from __future__ import annotations

from ext_authz.admission.endpoints import EndpointState
from ext_authz.admission.flows import Flow
from ext_authz.admission.measures import Measures
from ext_authz.admission.modes import Trust
from ext_authz.admission.risk import RiskBudget, is_load_to_blame
from ext_authz.admission.roster import Roster
from ext_authz.admission.shares import Shares
from ext_authz.admission.would_have import Spared
from ext_authz.admission.yielding import StandBack
from ext_authz.estimation.latency.chain import Whole
from ext_authz.estimation.latency.features import IDLE, Load, Work
from ext_authz.estimation.latency.predictor import Forecast, Predictor
from ext_authz.estimation.latency.queueing import FIXED_SHAPE
from ext_authz.estimation.margin import MarginTuner
from ext_authz.model import Evidence, InferenceRequest, WorkEstimate, value
from ext_authz.settings import AdmissionSettings, Pool, RequestType, Tenant


@value
class Caller:
    """Who sent a request. `tenant` None: no key, or one nobody has.

    `key` is the digest of the key. `returning`: the client says itself that it has sent this
    request before. `conflict`: two headers carried different keys, of which the first in the
    configured order decided.
    """

    tenant: str | None
    key: bytes = b""
    returning: bool = False
    conflict: bool = False


NOBODY = Caller(None)


@value
class Ask:
    """One request with everything resolved that does not depend on load.

    `pools` is where it may run in order of preference: the first, then its chain of demotion.
    `slo_s` is the end-to-end promise (a client's deadline may have shortened it), `ttft_s` that of
    the first token and `tpot_s` that of each further one; None if none. `priced_as` is the model
    in the books of costs. Of a `pipeline`, `stages` holds what each asks of its one pool, the
    entry first, and `estimate` what the request itself asks; empty for all others. It has waited
    `held_s` at the gate, which the promises do not hold any more.
    """

    id: str
    tenant: Tenant
    type: RequestType
    request: InferenceRequest
    estimate: WorkEstimate
    pools: tuple[Pool, ...]
    slo_s: float | None
    ttft_s: float | None = None
    tpot_s: float | None = None
    priced_as: str = ""
    pipeline: str | None = None
    stages: tuple[Ask, ...] = ()
    caller: Caller = NOBODY
    held_s: float = 0.0


class PoolState:
    """One pool's live numbers. Only the controller changes them."""

    __slots__ = (
        "endpoints",
        "is_fixed_shape",
        "margin",
        "measures",
        "predictor",
        "risks",
        "roster",
        "shares",
        "spec",
        "trust",
    )

    def __init__(
        self,
        spec: Pool,
        endpoints: tuple[EndpointState, ...],
        margin: MarginTuner | None = None,
    ) -> None:
        self.spec = spec
        self.endpoints = endpoints
        self.is_fixed_shape = spec.engine in FIXED_SHAPE
        self.roster = Roster(spec, endpoints)
        self.shares = Shares(spec.slots)
        self.predictor = Predictor()
        self.risks = RiskBudget()
        self.margin = margin or MarginTuner(0.0, None)
        self.measures = Measures()
        self.trust = Trust(spec.mode, self.measures)


class View:
    """An ask, the pool and the endpoint it would go to, with predictions filled in.

    `guess` is what is predicted, and `forecast` the same where it is acted on; `risk` is the chance
    that the promises are broken as things are, None if nobody knows. `waiting` are the requests in
    the engine's own queue, where that is asked about and known. The request may fill `tokens` of a
    cache.
    `allowed` is how many slots the flow may hold (see `Shares.allowance`). Of a pipeline's entry
    `later` are the other stages and `whole` is what is predicted of all; `ahead` are the slots of
    the pool that stages before this one would hold.
    """

    __slots__ = (
        "ahead",
        "allowed",
        "ask",
        "endpoint",
        "execution_s",
        "fallback",
        "flow",
        "forecast",
        "guess",
        "later",
        "margin_s",
        "met",
        "now_s",
        "occupied",
        "pool",
        "pool_load",
        "promised",
        "risk",
        "run_slots",
        "settings",
        "spared",
        "stand_back",
        "tokens",
        "trial",
        "wait_s",
        "waiting",
        "whole",
        "work",
    )

    # What `looking` fills in at once.
    tokens: int
    pool_load: float
    allowed: float
    stand_back: StandBack | None
    margin_s: float
    fallback: bool
    now_s: float
    occupied: float
    wait_s: float
    execution_s: float | None
    met: Load
    run_slots: int

    def __init__(
        self,
        ask: Ask,
        pool: PoolState,
        endpoint: EndpointState,
        flow: Flow,
        settings: AdmissionSettings,
    ) -> None:
        self.settings = settings
        self.ask = ask
        self.pool = pool
        self.endpoint = endpoint
        self.flow = flow
        self.work: Work | None = None
        self.guess: Forecast | None = None
        self.forecast: Forecast | None = None
        self.waiting: float | None = None
        self.risk: float | None = None
        # Let in because what was promised is predicted to be kept, and not because it would be as
        # much at risk on an idle endpoint: that no margin can help.
        self.promised = False
        # Let in though this verdict would have been another.
        self.spared: Spared | None = None
        # Let in though it is predicted to be late, to see whether that is so.
        self.trial = False
        self.ahead = 0
        self.later: tuple[View, ...] = ()
        self.whole: Whole | None = None

    @property
    def floor(self) -> float:
        """Requests that the endpoint takes whatever is predicted."""
        return self.endpoint.traffic.floor(self.now_s)

    @property
    def slots(self) -> int:
        """Slots of the pool's endpoints that can be used now."""
        return self.pool.shares.slots

    @property
    def hopeless(self) -> bool:
        """Whether it would be late without any wait: room kept for its like would stand idle."""
        budget_s = self.budget_s
        if budget_s is None:
            return False
        if self.forecast is not None:
            # With less before it, it would take no longer than it will now.
            return self.forecast.e2e_s > budget_s and self.alone().e2e_s > budget_s
        return self.execution_s is not None and self.execution_s > budget_s

    @property
    def expected_s(self) -> float | None:
        """How long it is expected to hold its slot, on clocks as they are; None if unknown."""
        if self.forecast is not None:
            return self.forecast.e2e_s * self.endpoint.thermal_factor
        return None if self.execution_s is None else self.wait_s + self.execution_s

    @property
    def budget_s(self) -> float | None:
        """The end-to-end time left, in seconds of cool clocks; None without a promise."""
        if self.ask.slo_s is None:
            return None
        return (self.ask.slo_s - self.margin_s) / self.endpoint.thermal_factor

    def is_load_to_blame(self, risk: float) -> bool:
        """Whether it is load that makes `risk` too much."""
        # Alone it would not be safer than this, whatever is predicted of it.
        least = 0.0 if self.ask.slo_s is None else self.pool.predictor.e2e[False].doubt
        if not is_load_to_blame(risk, least):
            return False
        return is_load_to_blame(risk, self.risk_of(self.alone()))

    @property
    def is_safest(self) -> bool:
        """Whether no endpoint that is free can promise more."""
        forecast, risk = self.forecast, self.risk
        if forecast is None or risk is None or forecast.queued or self.ask.slo_s is None:
            return False
        return risk <= self.pool.predictor.e2e[0].least

    def risk_of(self, forecast: Forecast) -> float:
        """The chance (0..1) that the promises are broken if the forecast is right."""
        return risk_on(self, self.endpoint, forecast)

    def alone(self) -> Forecast:
        """What would be predicted if nothing else ran on the endpoint.

        Where it never was idle that would be made up: then beside the lowest load that was seen,
        but no more than half of what it meets.
        """
        work = self.work or Work(self.ask.estimate.prompt_tokens, self.ask.estimate.output_tokens)
        met, beside = self.met, IDLE
        least = min(self.pool.predictor.least_load, 0.5 * met.in_flight)
        if least > 0.0:
            beside = Load(least, met.context_tokens * least / met.in_flight)
        return self.pool.predictor.ask(work, beside, self.run_slots, self.endpoint.traffic.pace)

    def evidence(self) -> Evidence:
        """The numbers looked at, for the journal and `explain`."""
        pool, endpoint, guess = self.pool, self.endpoint, self.guess
        sample, execution_s, slo_s = endpoint.sample, self.execution_s, self.ask.slo_s
        capacity = None if sample is None else sample.kv_capacity_tokens
        if capacity is not None:
            # The tokens that the pool can hold, if all its servers are like this one.
            capacity *= len(pool.endpoints)
        # In the order of its fields: so many keywords would cost more than all the rest.
        return Evidence(
            self.pool_load,
            pool.shares.slots,
            None if execution_s is None else self.wait_s,
            execution_s,
            None if slo_s is None else slo_s - self.margin_s,
            self.flow.used,
            self.allowed,
            None if guess is None else guess.e2e_s * endpoint.thermal_factor,
            self.risk,
            self.tokens / capacity if capacity else None,
            endpoint.limit,
            endpoint.limited_by,
            pool.trust.acts_on,
        )


def risk_on(view: View, endpoint: EndpointState, forecast: Forecast) -> float:
    """The chance (0..1) that the promises are broken on an endpoint of the pool if this forecast
    for it is right."""
    ask, predictor, risk = view.ask, view.pool.predictor, 0.0
    cool, slo_s = endpoint.thermal_factor, ask.slo_s
    if slo_s is not None:
        risk = predictor.e2e[forecast.queued].late((slo_s - view.margin_s) / cool, forecast.e2e_s)
    if ask.ttft_s is not None:
        spread = predictor.ttft if predictor.tells_first else predictor.e2e
        first = spread[forecast.queued].late(ask.ttft_s / cool, forecast.ttft_s)
        risk = max(risk, first)
    if ask.tpot_s is not None and ask.estimate.output_tokens > 1:
        each_s = (forecast.e2e_s - forecast.ttft_s) / ask.estimate.output_tokens
        rest = predictor.e2e[forecast.queued].late(ask.tpot_s / cool, max(each_s, 1e-6))
        risk = max(risk, rest)
    return risk
