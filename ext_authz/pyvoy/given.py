"""What the process that starts Envoy tells the interpreter within it, by way of the environment."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

VARIABLE = "EXT_AUTHZ_GIVEN"


@dataclass(frozen=True, slots=True)
class Given:
    """`ends` is a pipe that is closed to have the server end; `admin` Envoy's own socket; `python`
    and `python_path` what a command line would run with, as Envoy's process knows neither."""

    config: str
    log_level: str
    port: int
    ends: int
    admin: str
    python: str
    python_path: str | None

    def dump(self) -> str:
        """As text."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Given:
        """From what `dump` gave."""
        return cls(**json.loads(text))
