"""Problems with their places: what the schema rejects, and what the checks find."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from ext_authz.config.locate import SECRET_KEYS, Loc, Tree, field_text
from ext_authz.config.scalars import FAULT
from ext_authz.config.schema import AdmissionControl, Root
from ext_authz.config.yaml_tree import Kind, Scalar
from ext_authz.errors import Problem

TOP = "admission_control"
MAX_PROBLEMS = 1000

_SHAPES = {
    "model_type": ("is not a mapping", "write keys and values below it"),
    "model_attributes_type": ("is not a mapping", "write keys and values below it"),
    "dict_type": ("is not a mapping", "write keys and values below it"),
    "list_type": ("is not a list", "write `[a, b]`, or one `- ` line each"),
}


class Report:
    """What is wrong or doubtful, gathered over one load.

    `broken` names the sections (keys below the top key) that lost something to the schema:
    checks that need a section whole skip themselves, so that one mistake is told once.
    """

    def __init__(self, file: str, tree: Tree) -> None:
        self.file = file
        self.tree = tree
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self.broken: set[str] = set()

    def at(self, loc: Loc, message: str, remedy: str) -> Problem:
        """A problem at a place below the top key."""
        path = self.tree.path_of((TOP, *loc))
        return Problem(self.file, self.tree.line_of(path), field_text(path), message, remedy)

    def line(self, loc: Loc) -> int:
        """The line of a place below the top key."""
        return self.tree.line_of(self.tree.path_of((TOP, *loc)))

    def problem(self, loc: Loc, message: str, remedy: str) -> None:
        """Note that the file must be refused."""
        self.problems.append(self.at(loc, message, remedy))

    def warn(self, loc: Loc, message: str, remedy: str) -> None:
        """Note something that is allowed but probably not meant."""
        self.warnings.append(self.at(loc, message, remedy))

    def whole(self, *sections: str) -> bool:
        """Whether none of these sections lost anything to the schema."""
        return not self.broken.intersection(sections)

    def rejected(self, error: ValidationError) -> list[Loc]:
        """Note what the schema rejects; answers the places to prune before the next try."""
        prune: list[Loc] = []
        for item in error.errors(include_url=False)[:MAX_PROBLEMS]:
            loc = tuple(part for part in item["loc"] if part != "[key]")
            path = self.tree.path_of(loc)
            message, remedy = _explain(item, loc)
            where = field_text(path)
            line = self.tree.line_of(path)
            self.problems.append(Problem(self.file, line, where or TOP, message, remedy))
            prune.append(loc[:-1] if item["type"] == "missing" else loc)
            if len(loc) > 1:
                self.broken.add(str(loc[1]))
        return prune


def _explain(item: Mapping[str, Any], loc: Loc) -> tuple[str, str]:
    """Message and remedy of one pydantic error; the rejected input is never shown."""
    kind, context = item["type"], item.get("ctx", {})
    given = item.get("input")
    if kind == FAULT:
        return str(context["problem"]), str(context["remedy"])
    if kind == "extra_forbidden":
        return _unknown_key(loc)
    if kind == "missing":
        return "is missing", f"add `{loc[-1]}:`"
    if isinstance(given, Scalar) and given.kind is Kind.NULL:
        return "has no value", "give one, or delete the line to get the default"
    if kind in _SHAPES:
        return _SHAPES[kind]
    if kind == "too_long":
        return f"has more than {context['max_length']} entries", "delete some"
    if kind == "too_short":
        return "is empty", f"add an entry, or delete `{loc[-1]}` if it may be left out"
    return "is not valid", "see docs/config.md for what may stand here"


def _unknown_key(loc: Loc) -> tuple[str, str]:
    known = known_keys(loc[:-1])
    key = str(loc[-1])
    if len(loc) == 1 and key in AdmissionControl.model_fields:
        return "is not a known key here", f"indent it below `{TOP}:`"
    if "api_key_sha256" in known and key in SECRET_KEYS:
        return (
            "is not a known key",
            "run `ext-authz hash-key` and write its result to api_key_sha256",
        )
    near = difflib.get_close_matches(key[:100], known, n=1)
    if near:
        return "is not a known key", f"did you mean `{near[0]}`?"
    return "is not a known key", f"delete it; known here: {', '.join(sorted(known))}"


def known_keys(loc: Loc) -> list[str]:
    """The keys that may stand in the mapping at `loc`."""
    kind: Any = Root
    for part in loc:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields.get(str(part))
            kind = _core(field.annotation) if field else None
        elif get_origin(kind) is list:
            kind = _core(get_args(kind)[0])
        elif get_origin(kind) is dict:
            kind = _core(get_args(kind)[1])
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []


def _core(annotation: Any) -> Any:
    """An annotation without its metadata and without `| None`."""
    if get_origin(annotation) is Annotated:
        return _core(get_args(annotation)[0])
    options = [option for option in get_args(annotation) if option is not type(None)]
    if options and get_origin(annotation) not in {list, dict}:
        return _core(options[0])
    return annotation
