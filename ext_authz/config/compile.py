"""`load`: a file, all its problems at once, or the settings it means."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ext_authz.config.build import build
from ext_authz.config.checks import check
from ext_authz.config.files import Files
from ext_authz.config.report import MAX_PROBLEMS, TOP, Report
from ext_authz.config.schema import Root
from ext_authz.config.tenants import check_tenants, collect_keys
from ext_authz.config.yaml_tree import read_yaml
from ext_authz.errors import ConfigError, Problem
from ext_authz.settings import Settings

_MAX_PRUNINGS = 8


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration that can run, and what its author should know.

    `warnings` are allowed but doubtful. `files` were read: the configuration, then key files.
    """

    settings: Settings
    warnings: tuple[Problem, ...]
    files: tuple[Path, ...]


def load(path: Path) -> Loaded:
    """Read and compile the file at `path`, with the key files it names.

    Raises ConfigError with every problem found, sorted by line; an unreadable file is one too.
    """
    return load_from(path, Files())


def load_from(path: Path, files: Files) -> Loaded:
    """`load`, from contents that `files` may have read already. Raises ConfigError."""
    try:
        data = files.read(path)
    except OSError as error:
        raise ConfigError((unreadable(path, error),)) from error
    tree, yaml_problems = read_yaml(data, str(path))
    if tree is None:
        raise ConfigError(tuple(yaml_problems))
    report = Report(str(path), tree)
    report.problems += yaml_problems
    root = _validate(report)
    keys: dict[bytes, str] = {}
    if root is not None:
        check(root.admission_control, report)
        check_tenants(root.admission_control, report)
        keys = collect_keys(root.admission_control, report, files, path.parent)
    if report.problems or root is None:
        raise ConfigError(_in_order(report.problems, str(path)))
    return Loaded(
        settings=build(root.admission_control, keys, files.fingerprint(), path.parent),
        warnings=_in_order(report.warnings, str(path)),
        files=files.paths,
    )


def unreadable(path: Path, error: OSError) -> Problem:
    """That the configuration file itself cannot be read."""
    why = error.strerror or "not a readable file"
    remedy = "correct the path, or the permissions of the file"
    return Problem(str(path), 1, "(file)", f"cannot be read: {why}", remedy)


def _validate(report: Report) -> Root | None:
    """The file without what the schema rejects, so that the rest can be checked as well."""
    for attempt in range(_MAX_PRUNINGS):
        rejection: ValidationError | None = None
        try:
            return Root.model_validate(report.tree.data)
        except ValidationError as error:
            rejection = error  # handled outside: its text quotes the input, which may be a key
        told = len(report.problems)
        prune = report.rejected(rejection)
        if attempt:  # what is wrong only after pruning is no fault of the file
            del report.problems[told:]
        if any(len(loc) <= 1 and loc[:1] in {(), (TOP,)} for loc in prune):
            return None
        report.tree.prune(prune)
    return None


def _in_order(problems: list[Problem], main: str) -> tuple[Problem, ...]:
    """By line, the configuration itself first; bounded, so that a hostile file cannot flood."""
    ordered = sorted(problems, key=lambda p: (p.file != main, p.file, p.line, p.field))
    if len(ordered) > MAX_PROBLEMS:
        last = ordered[MAX_PROBLEMS - 1]
        more = f"and {len(ordered) - MAX_PROBLEMS + 1} more problems"
        ordered[MAX_PROBLEMS - 1 :] = [
            Problem(main, last.line, "(file)", more, "correct those above first")
        ]
    return tuple(ordered)
