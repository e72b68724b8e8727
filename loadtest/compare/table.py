"""The table of the comparison: sixteen scenarios, on servers that differ from one to the next.

Knees, caches and speeds vary on purpose, so that no constant of a gate can be tuned to them.
`capacity_rps` is worked out from the engine models by a test; most promises are 1.5 s, where one
such chat alone takes about 0.3 s.
"""

from __future__ import annotations

from loadtest.compare.scenario import (
    Killed,
    Kind,
    Phase,
    Retries,
    Scenario,
    Server,
    Shape,
    Telemetry,
    Tenant,
    Throttled,
    steady,
)

# Servers by how they differ: where the knee is, how steep, how fast, how much cache.
PLAIN = Server()
NARROW = Server(changes={"knee.sequences": 11, "knee.steepness": 5.0, "kv_tokens": 12_288})
WIDE = Server(
    changes={"knee.sequences": 24, "max_sequences": 96, "kv_tokens": 24_576, "step_tokens": 4096}
)
SLOW = Server(changes={"costs.decode_fixed_ms": 7.0, "costs.prefill_token_ms": 0.022})
FAST = Server(
    changes={"costs.decode_fixed_ms": 4.2, "knee.sequences": 14, "knee.exponent": 1.2,
             "max_sequences": 128}
)  # fmt: skip
# Its cache is full before it is at its knee when prompts are long.
TIGHT = Server(changes={"kv_tokens": 6144, "knee.sequences": 18})
ECONOMY = Server(pool="economy", profile="demo-economy")
TABULAR = Server(profile="fraud")

STORM_FROM_S, STORM_UNTIL_S = 6.0, 18.0
HEAVY = Shape(long_ratio=0.1)


def one(times: float, shape: Shape = Shape()) -> tuple[Tenant, ...]:  # noqa: B008  it is frozen
    """A single tenant at one rate."""
    return (Tenant("solo", steady(times), shape=shape),)


def _storm(retries: Retries, about: str, gives_up_s: float = 4.0) -> Scenario:
    """A base load, and for twelve seconds much more than there is, from clients that come back."""
    rush = (Phase(STORM_FROM_S, STORM_UNTIL_S, 1.5),)
    return Scenario(
        f"storm-{retries.value}", f"for twelve seconds 1.85 times capacity, {about}",
        servers=(FAST,),
        tenants=(
            Tenant("base", steady(0.35)),
            Tenant("rush", rush, retries=retries, gives_up_s=gives_up_s),
        ),
        capacity_rps=37.0, measured_s=25, innocent="base", storm_ends_s=STORM_UNTIL_S,
    )  # fmt: skip


LOAD = (
    Scenario(
        "light", "0.35 of capacity: nothing should be refused or demoted",
        servers=(PLAIN, PLAIN), tenants=one(0.35), capacity_rps=72.0,
    ),
    Scenario(
        "overload-1.5x", "steady, 1.5 times capacity",
        servers=(PLAIN, PLAIN), tenants=one(1.5), capacity_rps=72.0,
    ),
    Scenario(
        "overload-3x", "steady, three times capacity",
        servers=(WIDE,), tenants=one(3.0), capacity_rps=47.0,
    ),
    Scenario(
        "burst", "2.5 times capacity for two of every six seconds, half of it between",
        servers=(NARROW, NARROW), capacity_rps=54.0, measured_s=24,
        tenants=(
            Tenant(
                "solo",
                (*steady(0.5), *(Phase(at, at + 2.0, 2.0) for at in (6.0, 12.0, 18.0, 24.0))),
            ),
        ),
    ),
    Scenario(
        "heavy-tail", "a tenth of the prompts eight times as long, 1.5 times capacity",
        servers=(TIGHT, TIGHT), tenants=one(1.5, shape=HEAVY), capacity_rps=62.0,
    ),
)  # fmt: skip

SHARING = (
    Scenario(
        "noisy-neighbour", "weight 3 at a third of its share beside weight 1 at 2.5 times capacity",
        servers=(SLOW, SLOW), capacity_rps=57.0, innocent="quiet",
        tenants=(Tenant("quiet", steady(0.25), weight=3.0), Tenant("noisy", steady(2.5))),
    ),
    Scenario(
        "backlogged-3-1", "two tenants of weights 3 and 1, each with 1.5 times capacity",
        servers=(PLAIN, PLAIN), capacity_rps=72.0, measured_s=30,
        tenants=(
            Tenant("three", steady(1.5), weight=3.0, backlogged=True),
            Tenant("one", steady(1.5), backlogged=True),
        ),
    ),
    Scenario(
        "mixed", "realtime chats of the high class at 0.4 of capacity over a flood of batch "
        "completions of the low class that may take 6 s",
        servers=(PLAIN, SLOW, ECONOMY), capacity_rps=64.0, innocent="realtime",
        demote_to={"primary": "economy"},
        tenants=(
            Tenant("realtime", steady(0.4), weight=3.0, type="realtime"),
            Tenant(
                "batch", steady(1.5), type="analytics", slo_s=6.0,
                shape=Shape(Kind.COMPLETION, prompt_tokens=300.0),
            ),
        ),
        patience_s=8.0,
    ),
)  # fmt: skip

TROUBLE = (
    Scenario(
        "thermal", "clocks drop by 1.4 in the middle of 1.3 times capacity",
        servers=(PLAIN, FAST), tenants=one(1.3), capacity_rps=73.0, measured_s=24,
        events=(Throttled(15.0, 1.4),),
    ),
    Scenario(
        "endpoint-loss", "one of three servers is killed in the middle of full load",
        servers=(PLAIN, PLAIN, PLAIN), tenants=one(1.0), capacity_rps=108.0, measured_s=24,
        events=(Killed(15.0, 2),),
    ),
    Scenario(
        "telemetry-loss", "one page missing, one frozen for ten seconds of 1.5 times capacity",
        servers=(WIDE, PLAIN), tenants=one(1.5), capacity_rps=83.0, measured_s=24,
        events=(
            Telemetry(10.0, "missing", 0), Telemetry(10.0, "frozen", 1),
            Telemetry(20.0, "live"),
        ),
    ),
)  # fmt: skip

KINDS = (
    Scenario(
        "streaming", "streamed chats at 1.5 times capacity, first tokens within 0.4 s",
        servers=(PLAIN, WIDE), tenants=one(1.5, shape=Shape(Kind.STREAM)), capacity_rps=83.0,
        ttft_s=0.4,
    ),
    Scenario(
        "fixed-shape", "a tabular model behind 150 ms (KServe v2) at 1.4 times capacity",
        servers=(TABULAR,), tenants=one(1.4, shape=Shape(Kind.INFER)), capacity_rps=200.0,
        slo_s=0.15, patience_s=2.0,
    ),
)  # fmt: skip

STORMS = (
    _storm(Retries.OBEY, "from clients that come back when told", 10.0),
    _storm(Retries.BACKOFF, "from clients that back off by themselves"),
    _storm(Retries.HAMMER, "from clients that come back four times a second"),
)

SCENARIOS: dict[str, Scenario] = {
    each.name: each for each in (*LOAD, *SHARING, *TROUBLE, *KINDS, *STORMS)
}
# What `make loadtest` plays unless it is asked for all.
QUICK = ("overload-1.5x", "heavy-tail", "noisy-neighbour", "storm-hammer")
