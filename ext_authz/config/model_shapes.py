"""What a token fills of the KV cache: as a configuration says, or as is known of the model."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict

from ext_authz.config.locate import Loc
from ext_authz.config.scalars import choice, number, whole
from ext_authz.estimation.kv import ModelShape, known_shape

if TYPE_CHECKING:
    from ext_authz.config.report import Report

NUMBER_BYTES: Mapping[str, int] = MappingProxyType(
    {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
)
_WAYS = (
    "write kv_bytes_per_token, or layers, kv_heads and head_dim, or layers and latent_dim, with "
    "precision if the cache is not of 16 bits"
)
_SHAPE = ("layers", "kv_heads", "head_dim", "latent_dim")


class ModelShapeBody(BaseModel):
    """The shape of a model, or what follows from it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    layers: Annotated[int, whole(1, 10_000)] | None = None
    kv_heads: Annotated[int, whole(1, 10_000)] | None = None
    head_dim: Annotated[int, whole(1, 100_000)] | None = None
    latent_dim: Annotated[int, whole(1, 100_000)] | None = None
    precision: Annotated[str, choice(*NUMBER_BYTES)] | None = None
    kv_bytes_per_token: Annotated[float, number(0, 1e12, above=True)] | None = None

    @property
    def written(self) -> frozenset[str]:
        """The parts of the shape that are there."""
        return frozenset(name for name in _SHAPE if getattr(self, name) is not None)


def check_shapes(
    loc: Loc, shapes: Mapping[str, ModelShapeBody], models: list[str], report: Report
) -> None:
    """Note what is wrong with one pool's `model_shapes`."""
    # Where the schema has taken something away, what seems to be missing may have been there.
    if not report.whole("pools"):
        return
    for name, body in shapes.items():
        if models and name not in models:
            report.problem((*loc, name), "is no model of this pool", "add it to `models`")
        elif (problem := _problem(name, body)) is not None:
            report.problem((*loc, name), problem, _WAYS)


def _problem(name: str, body: ModelShapeBody) -> str | None:
    written = body.written
    if body.kv_bytes_per_token is not None:
        told_twice = written or body.precision is not None
        return "has kv_bytes_per_token and a shape" if told_twice else None
    if written in ({"layers", "kv_heads", "head_dim"}, {"layers", "latent_dim"}):
        return None
    if "latent_dim" in written and written & {"kv_heads", "head_dim"}:
        return "has latent_dim, which stands in the place of kv_heads and head_dim"
    if written:
        return "is half a shape"
    if body.precision is None:
        return "says nothing"
    return None if known_shape(name) else "is no model whose shape is known"


def kv_token_bytes(models: list[str], shapes: Mapping[str, ModelShapeBody]) -> Mapping[str, float]:
    """Bytes of cache a token fills, by model: as configured, else as known of its name."""
    found = {
        name: _token_bytes(name, shapes.get(name)) for name in dict.fromkeys((*models, *shapes))
    }
    return MappingProxyType({name: size for name, size in found.items() if size is not None})


def _token_bytes(name: str, body: ModelShapeBody | None) -> float | None:
    if body is not None and body.kv_bytes_per_token is not None:
        return body.kv_bytes_per_token
    shape = known_shape(name)
    if body is None:
        return None if shape is None else float(shape.token_bytes)
    if body.layers is not None:
        shape = ModelShape(
            body.layers, body.kv_heads or 0, body.head_dim or 0, body.latent_dim or 0
        )
    if shape is None:
        return None
    return shape.token_bytes / shape.number_bytes * NUMBER_BYTES[body.precision or "bf16"]
