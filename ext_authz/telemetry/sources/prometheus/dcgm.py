"""The series of NVIDIA's DCGM exporter, read as cards and MIG slices.

PURE. A card shows up once per pod, job or restart: it is one card all the same, known by host,
UUID and GPU instance. What the exporter could not read is printed as a huge number or not at
all; both are unknown here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from types import MappingProxyType

from ext_authz.snapshot import DeviceSample
from ext_authz.telemetry.pages.exposition import DropReason
from ext_authz.telemetry.sources.prometheus.promql import DatedSeries

MIB = 2.0**20
NO_IDENTITY = "no_identity"
"""Reason for which a series that names no card is not used."""

# DCGM's blanks begin at the largest 32-bit integer less its sixteen codes; those of 64 bits and
# of floating point are larger still. No real value in %, degrees, W, MHz or MiB comes near.
_BLANK_FROM = 2_147_483_632.0
_FAILED = "ERROR - FAILED TO CONVERT"
# Hardware slowdown, software and hardware thermal slowdown, power brake. The power cap (0x04) is
# where a card at work runs.
_THROTTLED = 0x08 | 0x20 | 0x40 | 0x80
# "GPU has fallen off the bus."
_XID_LOST = 79

_UTIL = "DCGM_FI_DEV_GPU_UTIL"
_ENGINE_ACTIVE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
_USED = "DCGM_FI_DEV_FB_USED"
_FREE = "DCGM_FI_DEV_FB_FREE"
_RESERVED = "DCGM_FI_DEV_FB_RESERVED"
_TOTAL = "DCGM_FI_DEV_FB_TOTAL"
_TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"
_SLOWDOWN = "DCGM_FI_DEV_SLOWDOWN_TEMP"
_CLOCK = "DCGM_FI_DEV_SM_CLOCK"
_CLOCK_MAX = "DCGM_FI_DEV_MAX_SM_CLOCK"
_POWER = "DCGM_FI_DEV_POWER_USAGE"
_POWER_LIMITS = ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "DCGM_FI_DEV_POWER_MGMT_LIMIT")
_REASONS = ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
_XID = "DCGM_FI_DEV_XID_ERRORS"
_LARGEST = {_UTIL: 100.0, _ENGINE_ACTIVE: 1.0}

NAMES = frozenset(
    {_UTIL, _ENGINE_ACTIVE, _USED, _FREE, _RESERVED, _TOTAL, _TEMPERATURE, _SLOWDOWN, _CLOCK}
    | {_CLOCK_MAX, _POWER, *_POWER_LIMITS, *_REASONS, _XID}
)
"""Every metric that is read."""

Key = tuple[str | None, str, str]
"""Host, UUID, GPU instance ("" for a whole card)."""


@dataclass(frozen=True, slots=True)
class Xid:
    """The last error code of a card. `changed`: we saw it become this code."""

    code: int
    changed: bool


@dataclass(frozen=True, slots=True)
class Cards:
    """What a page of DCGM says. `pods` are the workloads on each device, by its name; `xids` is
    to be given to the next reading; `news` are devices whose error code has just changed."""

    samples: tuple[DeviceSample, ...]
    pods: Mapping[str, frozenset[str]]
    xids: Mapping[Key, Xid]
    news: Mapping[str, int]
    dropped: Mapping[str, int]


@dataclass(slots=True)
class _Card:
    """The believable series of one card while they are gathered: per metric its age and values,
    all of them of the newest date."""

    values: dict[str, tuple[float, list[float]]] = field(default_factory=dict)
    unusable: set[str] = field(default_factory=set)
    pods: set[str] = field(default_factory=set)
    model: str | None = None

    def get(self, *names: str) -> float | None:
        """The largest value of the first of `names` that has one."""
        return next((max(self.values[name][1]) for name in names if name in self.values), None)

    def age_s(self) -> float:
        """The age of the oldest of its numbers, so that none is taken for younger than it is."""
        return max((age for age, _ in self.values.values()), default=0.0)


def read_cards(
    series: Iterable[DatedSeries], now: float, source: str, before: Mapping[Key, Xid]
) -> Cards:
    """The cards that `series` tell of, dated back from `now` (monotonic seconds) by their age.

    A slice is named by its card's UUID, a slash and its GPU instance. An error code stays on the
    page for ever, so that only its change tells anything: a card counts as lost while it shows
    the code of one fallen off the bus, it came to show it while we watched, and nothing else can
    be read of it.
    """
    dropped: Counter[str] = Counter()
    cards: dict[Key, _Card] = {}
    for one in series:
        uuid = one.labels.get("UUID") or one.labels.get("uuid")
        if one.name not in NAMES or one.age_s is None:
            continue
        if not uuid:
            dropped[NO_IDENTITY] += 1
            continue
        key = (_host(one.labels), uuid, one.labels.get("GPU_I_ID", ""))
        _add(cards.setdefault(key, _Card()), one, dropped)
    xids = {key: xid for key, card in cards.items() if (xid := _xid(card, before.get(key)))}
    known = {key: card for key, card in cards.items() if card.values}
    samples = [_sample(key, card, now, source, xids.get(key)) for key, card in known.items()]
    news = {
        _name(key): xid.code
        for key, xid in xids.items()
        if key in before and before[key].code != xid.code
    }
    return Cards(
        tuple(sorted(samples, key=lambda sample: (sample.host or "", sample.device))),
        MappingProxyType({_name(key): frozenset(card.pods) for key, card in cards.items()}),
        MappingProxyType(xids),
        MappingProxyType(news),
        MappingProxyType(dropped),
    )


def _host(labels: Mapping[str, str]) -> str | None:
    named = labels.get("Hostname") or labels.get("hostname")
    if named:
        return named
    return labels.get("instance", "").rpartition(":")[0] or labels.get("instance") or None


def _name(key: Key) -> str:
    return f"{key[1]}/{key[2]}" if key[2] else key[1]


def _add(card: _Card, one: DatedSeries, dropped: Counter[str]) -> None:
    pod = one.labels.get("exported_pod") or one.labels.get("pod") or one.labels.get("pod_name")
    if pod and not pod.startswith(_FAILED):
        card.pods.add(pod)
    model = one.labels.get("modelName", "")
    if model and not model.startswith(_FAILED):
        card.model = model
    if one.value is None or one.age_s is None:
        card.unusable.add(one.name)
        return
    if not _believable(one.name, one.value):
        dropped[DropReason.OUT_OF_RANGE] += 1
        card.unusable.add(one.name)
        return
    age_s, values = card.values.get(one.name, (one.age_s, []))
    if one.age_s < age_s:
        values = []
    if one.age_s <= age_s:
        card.values[one.name] = (one.age_s, [*values, one.value])


def _believable(name: str, value: float) -> bool:
    if not isfinite(value) or not 0 <= value < _BLANK_FROM:
        return False
    if name == _XID or name in _REASONS:
        return value == int(value)
    return value <= _LARGEST.get(name, _BLANK_FROM)


def _xid(card: _Card, before: Xid | None) -> Xid | None:
    code = card.get(_XID)
    if code is None:
        return before
    if before is None:
        return Xid(int(code), changed=False)
    return before if before.code == int(code) else Xid(int(code), changed=True)


def _sample(key: Key, card: _Card, now: float, source: str, xid: Xid | None) -> DeviceSample:
    lost = xid is not None and xid.changed and xid.code == _XID_LOST
    return DeviceSample(
        device=_name(key),
        at_s=now - card.age_s(),
        source=source,
        host=key[0],
        model=card.model,
        utilization_ratio=_utilization(card, is_slice=bool(key[2])),
        memory_used_bytes=_bytes(card.get(_USED)),
        memory_reserved_bytes=_bytes(card.get(_RESERVED)),
        memory_total_bytes=_bytes(_total_mib(card)),
        temperature_c=card.get(_TEMPERATURE),
        slowdown_c=card.get(_SLOWDOWN),
        sm_clock_mhz=card.get(_CLOCK),
        sm_clock_max_mhz=card.get(_CLOCK_MAX),
        power_w=card.get(_POWER),
        power_limit_w=card.get(*_POWER_LIMITS),
        throttled=_throttled(card),
        lost=lost and not card.values.keys() - {_XID},
    )


def _utilization(card: _Card, is_slice: bool) -> float | None:
    """What the graphics engine did. The driver's own utilization does not exist for a slice:
    what a page shows there is its card's."""
    percent = None if is_slice else card.get(_UTIL)
    return card.get(_ENGINE_ACTIVE) if percent is None else percent / 100.0


def _bytes(mib: float | None) -> float | None:
    return None if mib is None else mib * MIB


def _total_mib(card: _Card) -> float | None:
    total = card.get(_TOTAL)
    if total is not None:
        return total
    used, free, reserved = card.get(_USED), card.get(_FREE), card.get(_RESERVED)
    if used is None or free is None or (reserved is None and _RESERVED in card.unusable):
        return None
    # Releases that do not show what the driver keeps count it as used.
    return used + free + (reserved or 0.0)


def _throttled(card: _Card) -> bool | None:
    """Whether any series names a bad reason; unknown if no reasons are exported."""
    masks = next((card.values[name][1] for name in _REASONS if name in card.values), None)
    return None if masks is None else any(int(mask) & _THROTTLED for mask in masks)
