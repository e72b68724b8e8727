"""What records of a simulation say of refusals, by hand."""

from __future__ import annotations

import pytest

from ext_authz.model import Reason
from ext_authz.simulation.clients import Client
from ext_authz.simulation.records import Records
from ext_authz.simulation.servers import Life

A, B = Client("a", 1.0), Client("b", 1.0)
LIMITS, WEIGHTS = {"p": 4.0}, {"a": 1.0, "b": 1.0}
WINDOW_S = (0, 60)


def life(client: Client, at_s: float) -> Life:
    return Life("r", client, 100, 400, at_s, at_s, pool="p")


def served(records: Records, client: Client, at_s: float, seconds: float = 2.0) -> None:
    """One that ran for so long, and counts for how long requests run."""
    one = life(client, at_s)
    one.ok, one.ended_s, one.e2e_s = True, at_s + seconds, seconds
    records.lives.append(one)


def refused(records: Records, client: Client, at_s: float, reason: Reason) -> None:
    records.came(life(client, at_s), at_s)
    records.turned_away(life(client, at_s), reason, at_s)


@pytest.mark.parametrize(
    ("inside", "later", "later_s", "early"),
    [
        # One below the limit for all its life of two seconds.
        (3, 0, 11.0, 1),
        # It was full when it was refused, or in its life, or only after that.
        (4, 0, 11.0, 0),
        (3, 1, 11.9, 0),
        (3, 1, 12.1, 1),
    ],
)
def test_a_refusal_is_premature_while_there_is_room(
    inside: int, later: int, later_s: float, early: int
) -> None:
    records = Records()
    served(records, A, 1.0)
    records.inside("p", "a", inside, 9.0)
    refused(records, A, 10.0, Reason.SLO_UNREACHABLE)
    records.inside("p", "a", later, later_s)
    assert records.premature(LIMITS, WEIGHTS, WINDOW_S) == (early, 1)


@pytest.mark.parametrize(("own", "there", "early"), [(1, True, 1), (2, True, 0), (2, False, 1)])
def test_beyond_its_share_no_refusal_is_premature(own: int, there: bool, early: int) -> None:
    """Half of four while another is there, all of it while that one sends nothing."""
    records = Records()
    served(records, A, 1.0)
    records.inside("p", "a", own, 9.0)
    refused(records, B, 10.5 if there else 14.0, Reason.TOO_LARGE)
    refused(records, A, 10.0, Reason.OVER_SHARE)
    assert records.premature(LIMITS, WEIGHTS, WINDOW_S) == (early, 1)


def test_what_is_refused_unread_counts_and_what_can_never_fit_does_not() -> None:
    records = Records()
    for reason in (Reason.HAMMERING, Reason.YIELDING, Reason.TOO_LARGE, Reason.TOKEN_RATE):
        refused(records, A, 10.0, reason)
    assert records.premature(LIMITS, WEIGHTS, WINDOW_S) == (2, 2)
    assert records.premature(LIMITS, WEIGHTS, (20, 30)) == (0, 0)


def test_within_its_share_what_was_served_of_what_came() -> None:
    """Three come with one inside, of which one is refused, one late; the fourth finds its share
    taken, and does not count."""
    records = Records()
    records.inside("p", "a", 1, 9.0)
    for at_s, late in ((10.0, False), (11.0, True)):
        one = life(A, at_s)
        records.came(one, at_s)
        one.slo_s, one.e2e_s, one.ok = 1.0, 2.0 if late else 0.5, True
        records.lives.append(one)
    refused(records, A, 12.0, Reason.AT_CAPACITY)
    records.inside("p", "a", 1, 13.0)
    refused(records, A, 14.0, Reason.OVER_SHARE)
    assert records.served_ratio("a", 2.0, WINDOW_S) == pytest.approx(1 / 3)
    assert records.served_ratio("a", 2.0, (20, 30)) == 1.0
