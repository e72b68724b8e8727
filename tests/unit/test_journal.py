"""The ring of recent decisions, and what an explanation says."""

from __future__ import annotations

from dataclasses import replace

from ext_authz.journal import Entry, Journal, explain
from ext_authz.model import (
    Decision,
    Evidence,
    LimitState,
    Reason,
    RetryHint,
    Verdict,
    WorkEstimate,
)
from ext_authz.overload import Mode

ADMITTED = Decision(
    Verdict.ADMIT,
    Reason.HEADROOM,
    Verdict.ADMIT,
    tenant="acme",
    type="chat",
    model="llama",
    pool="primary",
    endpoint="10.0.0.1:8000",
    reservation_id="d-1",
    estimate=WorkEstimate(120, 80),
    evidence=Evidence(5.0, 16, 0.1, 0.4, 0.975, 2, 7.5),
)
REFUSED = Decision(
    Verdict.REJECT,
    Reason.TOKEN_RATE,
    Verdict.REJECT,
    tenant="acme",
    retry=RetryHint(12.3456, 2.5),
    limit=LimitState("tokens", 1000.0, 60.0, 0.0),
)


def test_the_oldest_are_dropped() -> None:
    """The ring keeps the last entries, and gives them newest first."""
    journal = Journal(capacity=3)
    for number in range(5):
        journal.append(float(number), f"q{number}", ADMITTED)
    assert [entry.request_id for entry in journal.recent(10)] == ["q4", "q3", "q2"]
    assert [entry.request_id for entry in journal.recent(1)] == ["q4"]
    assert journal.recent(0) == ()
    assert journal.find("q1") is None


def test_found_by_request_or_reservation() -> None:
    """The newest decision of that name is found, by either id."""
    journal = Journal()
    journal.append(1.0, "q1", ADMITTED)
    journal.append(2.0, "q1", REFUSED)
    found = journal.find("q1")
    assert found is not None
    assert found.decision is REFUSED
    found = journal.find("d-1")
    assert found is not None
    assert found.at_s == 1.0
    assert journal.find("nobody") is None


def test_a_decision_without_ids_is_found_by_nothing() -> None:
    """An empty name is nobody's name."""
    journal = Journal()
    journal.append(1.0, "", REFUSED)
    assert journal.find("") is None


def test_an_admission_is_explained_with_its_numbers() -> None:
    """Who, where, what it costs, and what was seen."""
    text = explain(Entry(1.0, "q1", ADMITTED))
    for part in (
        "request q1 (tenant acme, type chat, model llama): admit (headroom)",
        "sent to primary at 10.0.0.1:8000",
        "120 prompt + 80 output tokens",
        "5.0 in flight of 16 slots",
        "2 in flight, may hold 7.5",
        "wait 0.100 s + execution 0.400 s, budget 0.975 s",
    ):
        assert part in text
    assert "shadow" not in text


def test_a_refusal_is_explained_with_its_limit_and_hint() -> None:
    """Which limit is used up, and when the client was asked to return."""
    text = explain(Entry(1.0, "q1", REFUSED))
    assert "reject (token_rate)" in text
    assert "limit tokens: 1000 per 60 s is used up" in text
    assert "come back in 12.35 s (2.50 s of it jitter)" in text


def test_shadow_mode_is_explained() -> None:
    """An admission that enforcement would have refused says so."""
    text = explain(Entry(1.0, "", replace(ADMITTED, would_be=Verdict.REJECT)))
    assert "would have been reject" in text
    assert text.startswith("request - ")


def test_predictions_that_did_not_decide_are_explained_as_such() -> None:
    """A reactive decision says so, and a prediction beside it is marked."""
    numbers = Evidence(1.0, 4, 0.0, 0.5, 1.0, 0, 4.0, predicted_s=0.7, mode=Mode.REACTIVE)
    text = explain(Entry(1.0, "q1", replace(ADMITTED, evidence=numbers)))
    assert "mode: reactive, gauges and means decided" in text
    assert "prediction (not acted on): 0.700 s" in text


def test_unknown_is_said_and_not_guessed() -> None:
    """Without a prediction, a promise or a limit the explanation says that there is none."""
    blind = Evidence(0.0, 4, None, None, None, 0, None)
    text = explain(Entry(1.0, "q1", replace(ADMITTED, evidence=blind)))
    assert "mean: none yet" in text
    assert "may hold unlimited" in text
    free = replace(blind, execution_s=0.5, wait_s=0.0)
    assert "no promise" in explain(Entry(1.0, "q1", replace(ADMITTED, evidence=free)))


def test_what_a_client_wrote_cannot_forge_lines() -> None:
    """Newlines and lone surrogates in a model's name or a request id stay visible and on their
    line, and the text can be sent."""
    forged = replace(ADMITTED, model="m\nsent to nowhere at 1.2.3.4\ud800")
    text = explain(Entry(1.0, "q1\r\n\x1b[31mx", forged))
    assert text.encode()
    assert sum(line.startswith("sent to") for line in text.splitlines()) == 1
    assert all(line.isprintable() for line in text.split("\n"))
