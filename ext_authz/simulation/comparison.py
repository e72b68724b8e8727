"""A replay's counts as they are printed: then beside now, and what cannot be known.

PURE.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ext_authz.recorded import Recording
from ext_authz.settings import AdmissionSettings
from ext_authz.simulation.tally import Side, Tally, peaks_then

ALL = "(all)"


def as_dict(tally: Tally, recording: Recording, settings: AdmissionSettings) -> dict[str, Any]:
    """Everything, JSON-ready."""
    then_peak = peaks_then(recording.requests)
    return {
        "requests": sum(tally.moved.values()),
        "left_out": {str(why): count for why, count in tally.omitted.items()},
        "tenants": {
            name: {"then": _side(tally.then[name]), "now": _side(tally.now[name])}
            for name in sorted(tally.then)
        },
        "all": {"then": _side(_sum(tally.then)), "now": _side(_sum(tally.now))},
        "moved": [
            {"then": then, "now": now, "requests": count}
            for (then, now), count in sorted(tally.moved.items())
        ],
        "pools": {
            name: {"slots": pool.slots, "peak_then": then_peak[name], "peak": tally.peak[name]}
            for name, pool in settings.pools.items()
        },
        "notes": notes(tally, recording),
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "admitted": side.admitted,
        "demoted": side.demoted,
        "held": side.held,
        "refused": side.refused.total(),
        "refused_for": dict(sorted(side.refused.items())),
        "promises_kept": side.kept,
        "promises_broken": side.broken,
    }


def _sum(sides: Mapping[str, Side]) -> Side:
    total = Side()
    for side in sides.values():
        total.admitted += side.admitted
        total.demoted += side.demoted
        total.held += side.held
        total.refused += side.refused
        total.kept += side.kept
        total.broken += side.broken
    return total


def table(tally: Tally, recording: Recording, settings: AdmissionSettings) -> str:
    """As text: tenants, reasons, pools, and what to think of it."""
    head = f"{'tenant':24}{'requests':>10}{'admitted':>18}{'demoted':>18}{'held':>8}{'refused':>18}"
    lines = [head, *(_tenant(name, tally.then[name], tally.now[name]) for name in tally.then)]
    all_then, all_now = _sum(tally.then), _sum(tally.now)
    lines += [_tenant(ALL, all_then, all_now), "", f"{'refused for':24}{'then':>10}{'now':>10}"]
    for reason in sorted(all_then.refused.keys() | all_now.refused.keys()):
        counts = (all_then.refused[reason], all_now.refused[reason])
        lines.append(f"{reason:24}{counts[0]:10d}{counts[1]:10d}")
    lines += ["", f"{'pool':24}{'slots':>10}{'peak then':>12}{'peak now':>12}"]
    then_peak = peaks_then(recording.requests)
    for name, pool in settings.pools.items():
        lines.append(f"{name:24}{pool.slots:10d}{then_peak[name]:12d}{tally.peak[name]:12d}")
    lines += ["", f"{'of those whose time is known':34}{'then':>10}{'now':>10}"]
    for what, then, now in (
        ("kept their promise", all_then.kept, all_now.kept),
        ("broke it", all_then.broken, all_now.broken),
    ):
        lines.append(f"  {what:32}{then:10d}{now:10d}")
    moves = [f"  then {then}, now {now}: {count}" for then, now, count in _moves(tally.moved)]
    lines += ["", *moves] if moves else []
    return "\n".join([*lines, "", *(f"- {note}" for note in notes(tally, recording))])


def _tenant(name: str, then: Side, now: Side) -> str:
    def cell(was: int, is_: int) -> str:
        return f"{was:>9d} >{is_:>7d}"

    total = now.admitted + now.demoted + now.refused.total()
    return (
        f"{name:24}{total:10d}{cell(then.admitted, now.admitted):>18}"
        f"{cell(then.demoted, now.demoted):>18}{now.held:8d}"
        f"{cell(then.refused.total(), now.refused.total()):>18}"
    )


def _moves(moved: Counter[tuple[str, str]]) -> list[tuple[str, str, int]]:
    """What is decided in another way now, the most frequent first."""
    return [(then, now, count) for (then, now), count in moved.most_common() if then != now]


def notes(tally: Tally, recording: Recording) -> list[str]:
    """What the counts do not show."""
    times = (
        "times follow load as the predictor learned it from the recording; beyond the peak of then "
        "it is an extrapolation, and too kind"
        if tally.modelled
        else "times are those that were recorded, whatever runs beside: where the peak is above "
        "that of then too many promises are counted as kept (--model has times follow load)"
    )
    told = [
        times,
        "clients that were refused came back, or did not, as they did then",
        "nothing is learned before the first request: the first minutes are those after a restart",
    ]
    if tally.guessed:
        told.append(f"{tally.guessed} that are let in now have no recorded time: predicted")
    if tally.unread:
        told.append(
            f"{tally.unread} were refused before their body was read: priced as their tenant's mean"
        )
    told += [f"{count} are left out: {why}" for why, count in tally.omitted.items()]
    if recording.sample_ratio < 1.0:
        told.append(
            f"{100.0 * recording.sample_ratio:g} % were recorded: each stands for "
            f"{1.0 / recording.sample_ratio:g} at about its time, so peaks are estimates"
        )
    if recording.torn:
        told.append(f"{recording.torn} lines were cut off in the middle")
    return told
