"""What the demo offers and to what: numbers only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """One tenant's traffic. `key` is a demo key, good for nothing else."""

    key: str
    rps: int
    prompt_bytes: int
    max_tokens: int
    weight: int
    type: str


@dataclass(frozen=True, slots=True)
class Server:
    """One backend: its profile, its pool, and the most requests it is given at once."""

    pool: str
    profile: str
    max_concurrency: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. Requests that start within `warmup_s` are offered but not counted."""

    loads: dict[str, Load]
    servers: tuple[Server, ...]
    slo_s: float
    timeout_s: int
    warmup_s: int
    seconds: int


# The two primaries serve about 70 of these chats a second at their knee (16 in flight each) and the
# economy server about 17 more (10 in flight), so 200 a second is more than twice what all of them
# can do. They may hold a quarter more than at the knee, as part of that is kept free for the
# realtime tenant most of the time.
DEMO = Plan(
    loads={
        "chat": Load("demo-key-chat", 20, 800, 128, 3, "realtime"),
        "batch": Load("demo-key-batch", 30, 800, 128, 1, "analytics"),
        "flood": Load("demo-key-flood", 150, 800, 128, 1, "analytics"),
    },
    servers=(
        Server("primary", "demo-primary", 20),
        Server("primary", "demo-primary", 20),
        Server("economy", "demo-economy", 12),
    ),
    slo_s=1.5,
    timeout_s=3,
    warmup_s=3,
    seconds=25,
)

# Per primary; the economy server gets its proportion.
STATIC_LIMITS = (8, 12, 16, 20, 26, 34)
STATIC_SECONDS = 13

# How often the gate is told of its backends: by its own scraping, and by an agent beside each.
SCRAPE_INTERVAL_MS = 100
AGENT_INTERVAL_MS = 50
