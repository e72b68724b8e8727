"""The table of scenarios.

Small chats on servers of `demo-primary`: each serves about 34 a second at its knee of 16, and is
configured for 64 at once, as servers left at their defaults are.
"""

from __future__ import annotations

from dataclasses import replace

from ext_authz.simulation.clients import Client, Retrying, Rhythm
from ext_authz.simulation.ways import LogWay, Scrapes
from loadtest.backend.profiles import PROFILES
from loadtest.scenarios import turns
from loadtest.scenarios.scenario import PRIMARY, Bounds, Config, Fair, Scenario
from loadtest.simulated import llm

# What one server serves of these chats at its knee.
SERVER_RPS = 34.0


def config(tenants: dict[str, object], servers: int = 1, **changes: object) -> Config:
    """Tenants by name on one pool; top keys as in a configuration file."""
    pool = {
        "name": "p",
        "endpoints": [f"http://p-{number}:80" for number in range(servers)],
        "max_concurrency": 64,
    }
    return {
        "slo": {"default_ms": 1500},
        "metrics_source": {"type": "scrape", "scrape_interval": "100ms"},
        "pools": [pool],
        "tenants": tenants,
        **changes,
    }


ONE: dict[str, object] = {"a": {}}
TWO: dict[str, object] = {"a": {}, "b": {}}
CAPACITY_RPS = SERVER_RPS
# Two and a half times what there is.
OVERLOAD = (Client("a", 2.5 * CAPACITY_RPS),)
CALM = (Client("a", 0.6 * CAPACITY_RPS),)
EVEN = (Client("a", 1.2 * CAPACITY_RPS), Client("b", 1.2 * CAPACITY_RPS))
WHOLE = (10, 40)


def storm(retries: Retrying, hammer_s: float = 0.2) -> tuple[Client, ...]:
    """A base load, and for twenty seconds much more than there is, from clients that come back."""
    base = Client("a", 0.35 * CAPACITY_RPS)
    rush = Client(
        "rush", 1.5 * CAPACITY_RPS, tenant="b", retries=retries, hammer_s=hammer_s,
        gives_up_s=10.0, rhythm=Rhythm(from_s=10.0, until_s=30.0),
    )  # fmt: skip
    return base, rush


def _storm(retries: Retrying, about: str, amplification: float | None = None) -> Scenario:
    return Scenario(
        f"retry storm: {retries.value}", about, storm(retries), config(TWO), window_s=(15, 30),
        after_s=(35, 45), innocent="a",
        bounds=Bounds(
            innocent_served=0.95, innocent_p99_s=1.5, recovered=0.95, amplification=amplification
        ),
    )  # fmt: skip


SHARING = (
    Scenario(
        "noisy neighbour", "weight 3 at a third of its share, beside weight 1 at ten times its own",
        (Client("innocent", 0.25 * CAPACITY_RPS), Client("noisy", 2.5 * CAPACITY_RPS)),
        config({"innocent": {"weight": 3}, "noisy": {}}),
        innocent="innocent",
        bounds=Bounds(innocent_served=0.98, innocent_p99_s=1.5, premature=0.02),
    ),
    Scenario(
        "heavy tail", "two tenants in backlog, one of them with a tenth of long prompts",
        (EVEN[0], replace(EVEN[1], long_ratio=0.1)),
        config(TWO),
        window_s=(10, 50), fair=(Fair((10, 50), {"a": 1.0, "b": 1.0}),),
        bounds=Bounds(share_error=0.05, jain=0.99),
    ),
    Scenario(
        "weight change", "from 1 : 1 to 3 : 1 in a reload, both in backlog", EVEN, config(TWO),
        turns=(turns.configured(20.0, {"tenants": {"a": {"weight": 3}, "b": {}}}),),
        window_s=(10, 50),
        fair=(Fair((8, 20), {"a": 1.0, "b": 1.0}), Fair((23, 50), {"a": 3.0, "b": 1.0})),
        bounds=Bounds(share_error=0.05),
    ),
    Scenario(
        "tenant joins and leaves", "a third one of the same weight for twenty seconds",
        (*EVEN, Client("c", CAPACITY_RPS, rhythm=Rhythm(from_s=20.0, until_s=40.0))),
        config({"a": {}, "b": {}, "c": {}}),
        window_s=(10, 60),
        fair=(Fair((22, 40), dict.fromkeys("abc", 1.0)), Fair((44, 60), dict.fromkeys("ab", 1.0))),
        bounds=Bounds(share_error=0.05, jain=0.99),
    ),
    Scenario(
        "config reload", "twice a second, with nothing changed but the order of tenants", EVEN,
        config(TWO),
        turns=tuple(
            turns.configured(0.5 * n, {"tenants": {"b": {}, "a": {}} if n % 2 else TWO})
            for n in range(1, 100)
        ),
        window_s=(10, 50), fair=(Fair((10, 50), {"a": 1.0, "b": 1.0}),),
        bounds=Bounds(share_error=0.05, jain=0.99),
    ),
)  # fmt: skip

TROUBLE = (
    Scenario("overload", "2.5 times what there is", OVERLOAD, config(ONE),
             bounds=Bounds(of_best=0.97, kept=0.97, premature=0.02)),
    Scenario(
        "burst", "four times the rate for 2 of 8 s, 0.9 of what there is on the mean",
        (Client("a", 0.51 * CAPACITY_RPS, rhythm=Rhythm(every_s=8.0, for_s=2.0, times=4.0)),),
        config(ONE), window_s=(16, 48), bounds=Bounds(),
    ),
    Scenario(
        "thermal throttle", "clocks drop by 1.4 under overload, and telemetry tells",
        OVERLOAD, config(ONE), turns=(turns.throttled(20.0, 1.4),), window_s=(22, 45),
    ),
    Scenario(
        "one endpoint dies", "one of two, for fifteen seconds, under 1.3 times what there is",
        (Client("a", 2.6 * CAPACITY_RPS),), config(ONE, servers=2),
        turns=(turns.dies(20.0, "p-1:80", PRIMARY), turns.returns(35.0, "p-1:80", PRIMARY)),
        window_s=(20, 50), bounds=Bounds(kept=0.9), judged=False,
    ),
    Scenario("telemetry lost", "for twenty seconds under overload", OVERLOAD, config(ONE),
             turns=turns.blind(20.0, 40.0), window_s=(22, 45)),
    Scenario("telemetry lags 6 s", "under overload; samples are acted on up to 10 s",
             OVERLOAD,
             config(ONE, metrics_source={"type": "scrape", "scrape_interval": "100ms",
                                         "stale_after": "10s"}),
             scrapes=Scrapes(lag_s=6.0), window_s=(15, 45)),
    Scenario("access log lost", "for twenty seconds at 0.6 of what there is", CALM,
             config(ONE), turns=turns.log_cut(20.0, 40.0), window_s=(20, 60), after_s=(58, 68),
             bounds=Bounds(of_best=0.8, recovered=0.97)),
    Scenario("access log 1 s late", "flushed each second, under overload", OVERLOAD,
             config(ONE), log=LogWay(flush_s=1.0)),
    Scenario("clock steps", "the gate's clock goes 1.5 s back, and 5 s ahead ten seconds later",
             EVEN, config(TWO),
             turns=(turns.skewed(15.0, -1.5), turns.skewed(25.0, 3.5)),
             fair=(Fair((10, 40), {"a": 1.0, "b": 1.0}),),
             bounds=Bounds(of_best=0.8, share_error=0.1)),
    Scenario("gate stalls", "for three seconds nothing is decided, and all news comes at once",
             OVERLOAD, config(ONE), turns=(turns.stalled(20.0, 3.0),), window_s=(23, 40)),
    Scenario("card nearly full", "an engine that pre-allocates: 92 % of the memory, 5 % of KV",
             CALM, config(ONE), turns=(turns.shown_kv(0.0, 0.05),),
             bounds=Bounds(of_best=0.98, kept=0.98)),
)  # fmt: skip

POOLS = (
    Scenario(
        "demotion", "an overloaded pool demotes to one of its own cap", OVERLOAD,
        {**config(ONE), "pools": [
            {"name": "p", "endpoints": ["http://p-0:80"], "max_concurrency": 64,
             "demote_to": "q"},
            {"name": "q", "endpoints": ["http://q-0:80"], "max_concurrency": 48}]},
        pools={"p": PRIMARY, "q": llm("demo-economy")},
        limits={"p": (14, 16, 18), "q": (8, 10, 12)},
    ),
    Scenario(
        "classes", "realtime chats of the high class over a flood of the low one that may take 6 s",
        (
            Client("realtime", 0.8 * CAPACITY_RPS),
            Client("batch", 3.0 * CAPACITY_RPS, prompt_tokens=300.0, path="/v1/completions"),
        ),
        {**config({"realtime": {"type": "realtime"}, "batch": {"type": "analytics"}}),
         "slo": {"default_ms": 1500, "requests": {"/v1/completions": {"slo_ms": 6000}}},
         "scheduling": {"types": {
             "realtime": {"weight": 3, "priority_class": "high"},
             "analytics": {"weight": 1, "priority_class": "low"}}},
         "pools": [
            {"name": "p", "endpoints": ["http://p-0:80", "http://p-1:80"], "max_concurrency": 64,
             "demote_to": "q"},
            {"name": "q", "endpoints": ["http://q-0:80"], "max_concurrency": 48}]},
        pools={"p": PRIMARY, "q": llm("demo-economy")},
        limits={"p": (14, 16, 18), "q": (8, 10, 12)},
        innocent="realtime", bounds=Bounds(innocent_served=0.98),
    ),
    Scenario(
        "fixed shape", "a tabular model behind 150 ms at 1.5 times what there is",
        (Client("a", 300.0, path="/v2/models/m/infer"),),
        {**config(ONE), "slo": {"default_ms": 150}, "pools": [
            {"name": "p", "engine": "triton", "endpoints": ["http://p-0:80"],
             "max_concurrency": 64}]},
        pools={"p": PROFILES["fraud"]},
        limits={"p": (12, 16, 20, 24, 28)}, window_s=(5, 20),
    ),
    Scenario("loose promise", "6 s, which far too many at once could keep", OVERLOAD,
             config(ONE, slo={"default_ms": 6000})),
)  # fmt: skip

STORMS = (
    _storm(Retrying.OBEY, "clients that come back when told", 1.5),
    _storm(Retrying.HAMMER, "clients that come back five times a second"),
    _storm(Retrying.TOGETHER, "clients that come back on the same second"),
    _storm(Retrying.NEVER, "clients that do not come back"),
)

SCENARIOS: dict[str, Scenario] = {each.name: each for each in (*SHARING, *TROUBLE, *POOLS, *STORMS)}
