"""The one exception tree. An exception here is a fault; a refusal is a `Decision`."""

from __future__ import annotations

from dataclasses import dataclass


class ExtAuthzError(Exception):
    """Base of every fault this package raises on purpose."""


class CodecError(ExtAuthzError):
    """A message from the wire that cannot be decoded."""


class TelemetryError(ExtAuthzError):
    """A source that answered with something unusable, or not at all."""


class StateError(ExtAuthzError):
    """A file of learned state that must be ignored, or must not be written."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong (or doubtful) in a configuration file.

    `line` is 1-based; `field` is the dotted path as the user would write it; `remedy` is an
    instruction. None of the three ever quotes an API key.
    """

    file: str
    line: int
    field: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.field}: {self.message}; {self.remedy}"


class ConfigError(ExtAuthzError):
    """Every problem of a configuration, reported at once."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems
