"""What a closed loop in virtual time is made of: numbers only."""

from __future__ import annotations

from dataclasses import dataclass

from ext_authz.simulation.clients import Client
from ext_authz.simulation.ways import OFTEN, SOON, LogWay, Scrapes, Teach
from loadtest.backend.profiles import LlmProfile
from loadtest.simulated import llm as profile

__all__ = ["Client", "LogWay", "Plan", "Scrapes", "Teach", "profile"]


@dataclass(frozen=True, slots=True)
class Plan:
    """One loop: `endpoints` servers of `profile` that run `slots` at once, and their clients.

    With a `limit` there is no controller: each server is kept at that many requests, which are
    counted without any lag.
    """

    clients: tuple[Client, ...]
    profile: LlmProfile
    endpoints: int = 1
    slots: int = 64
    slo_s: float = 1.5
    lease_s: float = 15.0
    log: LogWay = SOON
    scrapes: Scrapes = OFTEN
    teach: Teach = Teach.BOOK
    limit: int | None = None
