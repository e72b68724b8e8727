"""The measures as metrics and on the status page."""

from __future__ import annotations

import json
from functools import partial

from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from ext_authz.admission.measures import Count
from ext_authz.admission.scoreboard import READERS, page
from ext_authz.admission.view import PoolState
from ext_authz.admission.would_have import Fate, Spared
from ext_authz.metrics import TABLE, Metrics
from ext_authz.model import Reason, Verdict
from tests.support.settings import make_pool

NOW = 1000.0
WOULD_HAVE = (
    'ext_authz_would_have_total{pool="p",reason="over_share",result="%s",tenant="acme",'
    'would_be="reject"}'
)


def busy() -> PoolState:
    """97 of 102 promises kept within a minute, two servers' failures; some of everything else."""
    pool = PoolState(make_pool("p", "10.0.0.1:1"), ())
    measures = pool.measures
    for number in range(102):
        what = Count.KEPT if number < 97 else Count.BROKEN if number < 100 else Count.FAILED
        measures.ended(what, "acme" if number % 2 else "beta", NOW - 60.0 + number / 2)
    measures.worked("acme", 2.5)
    measures.worked("acme", 1.0)
    measures.count(Count.ADMITTED, NOW, 102)
    measures.count(Count.REFUSED, NOW, 8)
    measures.count(Count.REFUSAL_JUDGED, NOW, 5)
    measures.count(Count.REFUSAL_PREMATURE, NOW, 2)
    measures.count(Count.TRIED, NOW, 3)
    measures.count(Count.TRIED_KEPT, NOW)
    spared = Spared(Verdict.REJECT, Reason.OVER_SHARE)
    measures.would_have.let_in("acme", spared, NOW)
    measures.would_have.ended("acme", spared, Fate.PREMATURE)
    for true_s in (1.0, 2.0, 3.0, 4.0):
        measures.predicted(2.0, (2.0, 3.0, 4.0), true_s)
    return pool


def shown(pools: dict[str, PoolState]) -> dict[str, float]:
    """Every series that a scrape would get of the measures."""
    metrics = Metrics()
    for name, read in READERS.items():
        metrics.read_with(name, partial(read, pools, NOW))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    lines = generate_latest(registry).decode().splitlines()
    series = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    ours = tuple(f"ext_authz_{name}" for name in READERS)
    return {name: float(told) for name, told in series.items() if name.startswith(ours)}


def test_each_is_a_row_of_the_table_with_as_many_labels() -> None:
    """Names and labels agree, or a scrape would fail."""
    rows = {row.name: row for row in TABLE}
    for name, read in READERS.items():
        told = list(read({"p": busy()}, NOW))
        assert told
        assert {len(labels) for labels, _ in told} == {len(rows[name].labels)}


def test_what_a_scrape_shows() -> None:
    """Counts as they are, ratios worked out."""
    told = shown({"p": busy()})
    expected = {
        'ext_authz_pool_requests_total{pool="p",result="refused"}': 8.0,
        'ext_authz_promises_total{pool="p",result="kept",tenant="acme"}': 48.0,
        'ext_authz_promises_total{pool="p",result="failed",tenant="beta"}': 1.0,
        'ext_authz_device_seconds_total{pool="p",tenant="acme"}': 3.5,
        'ext_authz_refusals_judged_total{pool="p",result="premature"}': 2.0,
        'ext_authz_refusals_judged_total{pool="p",result="needed"}': 3.0,
        'ext_authz_refusals_tried_total{pool="p",result="kept"}': 1.0,
        'ext_authz_refusals_tried_total{pool="p",result="missed"}': 2.0,
        WOULD_HAVE % "let_in": 1.0,
        WOULD_HAVE % "premature": 1.0,
        WOULD_HAVE % "right": 0.0,
        'ext_authz_margin_seconds{pool="p"}': 0.0,
        'ext_authz_predicting{mode="predictive",pool="p"}': 1.0,
        'ext_authz_mode_switches_total{pool="p"}': 0.0,
        'ext_authz_efficiency_ratio{pool="p"}': 97 / 102,
        'ext_authz_efficiency_alarm{pool="p"}': 1.0,
        'ext_authz_goodput_per_second{pool="p"}': 97 / 60,
        'ext_authz_prediction_error_ratio{pool="p",quantile="0.9"}': 1.0,
        'ext_authz_prediction_bias_ratio{pool="p"}': 8.0 / 10.0 - 1.0,
        'ext_authz_prediction_coverage_ratio{pool="p",quantile="0.95"}': 0.75,
    }
    assert {name: round(told[name], 9) for name in expected} == {
        name: round(number, 9) for name, number in expected.items()
    }


def test_what_is_unknown_has_no_series() -> None:
    """A pool that did nothing yet shows counts of 0 and no ratio."""
    told = shown({"p": PoolState(make_pool("p", "10.0.0.1:1"), ())})
    assert not [name for name in told if "ratio" in name or "goodput" in name]
    assert told.pop('ext_authz_predicting{mode="predictive",pool="p"}') == 1.0
    assert set(told.values()) == {0.0}


def test_the_page_is_plain_json() -> None:
    """Both windows and the predictions, null where unknown."""
    got = json.loads(json.dumps(page(busy(), NOW), allow_nan=False))
    assert got["last_60_s"]["compliance_ratio"] == 0.97
    assert got["last_600_s"]["alarm"] is True
    assert got["predictions"]["predictions"] == 4
    assert got["mode"] == {
        "configured": "predictive", "predicting": True, "for_s": None, "switches": 0
    }  # fmt: skip
    (row,) = got["would_have"]
    assert (row["tenant"], row["would_be"], row["premature"]) == ("acme", "reject", 1)
    empty = page(PoolState(make_pool("p", "10.0.0.1:1"), ()), NOW)
    assert json.loads(json.dumps(empty))["predictions"] is None
