"""How a pool is shared, as it is configured."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from ext_authz.config.scalars import as_bool, duration, number
from ext_authz.overload import ShareRules


class FairnessBody(BaseModel):
    """What work is, what lower classes keep, and who stands back while others are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    output_token_price: Annotated[float, number(0, 100)] = 4.0
    low_class_floor: Annotated[float, number(0, 0.3)] = 0.1
    pause_low_class: Annotated[bool, BeforeValidator(as_bool)] = True
    heavy_tenant_share: Annotated[float, number(0, 1, above=True)] = 0.4
    heavy_tenant_window: Annotated[float, duration(1, 86_400)] = 600.0
    admission_delay: Annotated[float, duration(0, 3600)] = 1.0
    reserve_reaction: Annotated[float, duration(0, 60)] = 0.2


def share_rules(body: FairnessBody) -> ShareRules:
    """The rules that `body` means."""
    return ShareRules(
        output_price=body.output_token_price,
        class_floor_ratio=body.low_class_floor,
        heavy_ratio=body.heavy_tenant_share,
        heavy_window_s=body.heavy_tenant_window,
        pause_low=body.pause_low_class,
        delay_s=body.admission_delay,
        reserve_reaction_s=body.reserve_reaction,
    )
