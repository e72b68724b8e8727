"""What a comparison has to know of a real model server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from loadtest.compare.scenario import Scenario


class Server(Protocol):
    """A model server that runs."""

    url: str


@dataclass(frozen=True, slots=True)
class Real:
    """A model server to be compared before. `scenario` is the load and what is promised; its
    servers and its capacity stand for nothing. `pool` is what a gate is told of it, `variables`
    what the load generator is. A request of `body` to `path` is what its best is measured with,
    `at_once` of them at any time."""

    scenario: Scenario
    server: Server
    pool: Mapping[str, Any]
    variables: Mapping[str, str]
    path: str
    body: Mapping[str, Any]
    at_once: int
