"""How well a trace would have been predicted: the table that `ext-authz evaluate` prints.

PURE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ext_authz.simulation.baselines import (
    Ewma,
    KnownDistribution,
    LearnedLengths,
    QueueTimesMean,
    RealLengths,
    StaticProfile,
)
from ext_authz.simulation.replay import Guess, Lengths, Replay, Way, replay_way
from ext_authz.simulation.trace import Trace

DEFAULT_TOKENS = 256

# Rows of the table and what they are; the order is that of printing.
ROWS = {
    "given its length": "the gate's predictor, told the length that the answer turned out to have",
    "length learned": "the gate's predictor as it runs: the length is expected from answers before",
    "oracle": "the predictor, told the median of all lengths: no length known, all else",
    "EWMA": "forgetting mean of what requests took",
    "static profile": "its length times seconds a token, measured once over the first 50 requests",
    "queue x mean": "what queues before it times the mean time, over the slots, and that time",
}


@dataclass(frozen=True, slots=True)
class Score:
    """Of `count` requests: median and 90 % of the absolute relative error, median of the signed
    one, and the part that stayed within the predicted 95 %."""

    count: int
    median_error: float
    p90_error: float
    bias: float
    coverage: float


@dataclass(frozen=True, slots=True)
class Result:
    """One way's scores; `ttft` None where first tokens are not predicted or not known."""

    way: str
    e2e: Score
    ttft: Score | None


def evaluate(trace: Trace, slots: int, warm_up: int, ends_only: bool) -> list[Result]:
    """Replay `trace` through every way; the first `warm_up` requests are not scored."""
    rows = trace.rows

    def predictor(lengths: Lengths) -> list[Guess]:
        return Replay(slots, lengths, ends_only).run(rows)

    def plain(way: Way, lengths: Lengths) -> list[Guess]:
        return replay_way(rows, slots, way, lengths)

    guesses = {
        "given its length": predictor(RealLengths()),
        "length learned": predictor(LearnedLengths(DEFAULT_TOKENS)),
        "oracle": predictor(KnownDistribution(rows)),
        "EWMA": plain(Ewma(), RealLengths()),
        "static profile": plain(StaticProfile(), RealLengths()),
        "queue x mean": plain(QueueTimesMean(), RealLengths()),
    }
    return [_result(name, guesses[name][warm_up:]) for name in ROWS]


def as_dict(results: Sequence[Result]) -> list[dict[str, object]]:
    """JSON-ready."""
    return [asdict(result) for result in results]


def table(results: Sequence[Result]) -> str:
    """The results as text, a line each."""
    head = f"{'':18}{'requests':>9}{'median':>8}{'p90':>8}{'bias':>8}{'in p95':>8}"
    lines = [f"end to end{head[10:]}"]
    lines += [_line(result.way, result.e2e) for result in results]
    first = [result for result in results if result.ttft is not None]
    if first:
        lines += ["", f"first token{head[11:]}"]
        lines += [_line(result.way, result.ttft) for result in first if result.ttft]
    return "\n".join(lines)


def _line(way: str, score: Score) -> str:
    errors = (score.median_error, score.p90_error, score.bias, score.coverage)
    return f"{way:18}{score.count:9d}" + "".join(f"{100.0 * error:7.1f}%" for error in errors)


def _result(way: str, guesses: Sequence[Guess]) -> Result:
    e2e = _score([(g.e2e_s, g.e2e_high_s, g.true_e2e_s) for g in guesses])
    first = [
        (g.ttft_s, g.ttft_high_s, g.true_ttft_s)
        for g in guesses
        if g.ttft_s is not None and g.ttft_high_s is not None and g.true_ttft_s is not None
    ]
    return Result(way, e2e, _score(first) if first else None)


def _score(of: Sequence[tuple[float, float, float]]) -> Score:
    """Of expected, 95 % and true seconds; at least one."""
    signed = sorted(expected / true - 1.0 for expected, _, true in of)
    errors = sorted(abs(error) for error in signed)
    count = len(of)
    within = sum(true <= high for _, high, true in of)
    return Score(
        count, errors[count // 2], errors[int(0.9 * count)], signed[count // 2], within / count
    )
