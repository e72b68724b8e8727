"""A bounded ring of recent decisions, and their explanation in plain words.

Nothing a client wrote is kept but the model's name and the request id; no key, no prompt.
"""

from __future__ import annotations

from collections import deque

from ext_authz.estimation.kv import RISK_RATIO
from ext_authz.model import Decision, Evidence, Verdict, value
from ext_authz.overload import Held, Mode

CAPACITY = 4096


@value
class Entry:
    """One decision as it went out. `at_s` is Unix time."""

    at_s: float
    request_id: str
    decision: Decision


class Journal:
    """The last `CAPACITY` decisions, oldest dropped."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._entries: deque[Entry] = deque(maxlen=capacity)

    def append(self, at_s: float, request_id: str, decision: Decision) -> None:
        """Remember one decision."""
        self._entries.append(Entry(at_s, request_id, decision))

    def recent(self, count: int) -> tuple[Entry, ...]:
        """The last `count` decisions, newest first."""
        return tuple(entry for entry, _ in zip(reversed(self._entries), range(count), strict=False))

    def find(self, name: str) -> Entry | None:
        """The newest decision with this request id or reservation id."""
        if not name:
            return None
        for entry in reversed(self._entries):
            if name in {entry.request_id, entry.decision.reservation_id}:
                return entry
        return None


def explain(entry: Entry) -> str:
    """Why a request was answered as it was, with the numbers that were looked at."""
    decision = entry.decision
    who = f"tenant {decision.tenant or 'unknown'}"
    if decision.type:
        who += f", type {decision.type}"
    if decision.model:
        who += f", model {_shown(decision.model)}"
    name = _shown(entry.request_id) or "-"
    lines = [f"request {name} ({who}): {decision.verdict} ({decision.reason})"]
    if decision.would_be is not decision.verdict:
        lines.append(f"not enforced here: it would have been {decision.would_be}")
    lines += _held(decision.held)
    lines += _sent(decision)
    if decision.pipeline:
        stage = "" if decision.stage is None else f": its stage on {decision.stage} objected"
        lines.append(f"pipeline {decision.pipeline}{stage}")
    if decision.estimate:
        cost = decision.estimate
        lines.append(f"cost: {cost.prompt_tokens} prompt + {cost.output_tokens} output tokens")
    if decision.evidence:
        lines += _evidence(decision.evidence)
    if decision.limit:
        state = decision.limit
        window = f"per {state.window_s:g} s" if state.window_s else "at once"
        lines.append(f"limit {state.name}: {state.limit:g} {window} is used up")
    if decision.verdict is Verdict.REJECT and decision.retry:
        retry = decision.retry
        lines.append(
            f"asked to come back in {retry.after_s:.2f} s ({retry.jitter_s:.2f} s of it jitter)"
        )
    return "\n".join(lines)


def _sent(decision: Decision) -> list[str]:
    if not decision.endpoint:
        return []
    most = decision.max_tokens
    less = "" if most is None else f", asked for at most {most} output tokens"
    return [f"sent to {decision.pool} at {decision.endpoint}{less}"]


def _held(held: Held | None) -> list[str]:
    return [] if held is None else [f"held for {held.seconds:.3f} s ({held.reason})"]


def _shown(text: str) -> str:
    """What a client wrote, on one line and without anything a terminal or an encoder acts on."""
    return text if text.isprintable() else ascii(text)


def _evidence(seen: Evidence) -> list[str]:
    limit = "unlimited" if seen.tenant_limit is None else f"{seen.tenant_limit:.1f}"
    lines = [
        f"pool: {seen.in_flight:.1f} in flight of {seen.slots} slots",
        f"tenant: {seen.tenant_in_flight} in flight, may hold {limit}",
    ]
    if seen.limit is not None:
        lines.append(f"endpoint: may carry {seen.limit} ({seen.limited_by})")
    if seen.execution_s is None:
        lines.append("mean: none yet, nothing has finished")
    else:
        budget = "no promise" if seen.budget_s is None else f"budget {seen.budget_s:.3f} s"
        lines.append(
            f"mean: wait {seen.wait_s or 0.0:.3f} s + execution {seen.execution_s:.3f} s, {budget}"
        )
    reactive = seen.mode is Mode.REACTIVE
    if reactive:
        lines.append("mode: reactive, gauges and means decided")
    if seen.predicted_s is not None:
        lines.append(
            f"prediction{' (not acted on)' if reactive else ''}: {seen.predicted_s:.3f} s, "
            f"late with a chance of {100.0 * (seen.risk_ratio or 0.0):.1f} %"
        )
    if seen.memory_risk_ratio is not None and seen.memory_risk_ratio > RISK_RATIO:
        lines.append(f"memory: may fill {100.0 * seen.memory_risk_ratio:.1f} % of the pool's cache")
    return lines
