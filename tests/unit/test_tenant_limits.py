"""Explicit limits: looked at without effect, charged all at once, kept over reloads."""

from __future__ import annotations

from dataclasses import replace

from ext_authz.admission.ledger import Ledger
from ext_authz.admission.tenant_limits import Breach, TenantLimitBook
from ext_authz.model import Reason, WorkEstimate
from ext_authz.serving.retry_headers import limit_headers
from ext_authz.settings import Tenant, TenantLimits
from tests.support.world import request_type, tenant

TYPE = request_type("default", max_concurrent=3)
LEDGER = Ledger()


def limited(name: str = "a", **limits: float) -> Tenant:
    return tenant(name, limits=TenantLimits(**limits))  # type: ignore[arg-type]  # names are checked by the class


def look(book: TenantLimitBook, who: Tenant, now: float, tokens: int = 10) -> Breach | None:
    return book.look(who, TYPE, WorkEstimate(tokens, 0), LEDGER, now)


def take_all(book: TenantLimitBook, who: Tenant, now: float, tokens: int = 10) -> int:
    """How many requests the limits let in at one instant."""
    count = 0
    while look(book, who, now, tokens) is None:
        book.charge(who.name, WorkEstimate(tokens, 0), now)
        count += 1
    return count


def test_without_limits_nothing_is_refused() -> None:
    """A tenant without limits passes, and charging it is no fault."""
    who = tenant("a")
    book = TenantLimitBook({"a": who}, 0.0)
    for _ in range(1000):
        assert look(book, who, 0.0, tokens=10**9) is None
        book.charge("a", WorkEstimate(10**9, 0), 0.0)


def test_a_rate_says_when_and_how_much() -> None:
    """The breach names the limit, the wait, the pace of its drain, and what a client may plan."""
    who = limited(requests_per_second=2.0, request_burst=4.0)
    book = TenantLimitBook({"a": who}, 0.0)
    assert take_all(book, who, 0.0) == 4
    breach = look(book, who, 0.0)
    assert breach is not None
    assert (breach.reason, breach.prospect.wait_s) == (Reason.REQUEST_RATE, 0.5)
    assert (breach.prospect.per_s, breach.prospect.work) == (2.0, 1.0)
    assert (breach.limit.name, breach.limit.limit, breach.limit.window_s) == ("requests", 4.0, 2.0)
    assert breach.limit.remaining == 0.0


def test_tokens_are_charged_by_size() -> None:
    """A large request waits longer; one larger than the bucket waits for a full one."""
    who = limited(tokens_per_minute=600.0, token_burst=100.0)
    book = TenantLimitBook({"a": who}, 0.0)
    assert take_all(book, who, 0.0, tokens=50) == 2
    waits = [look(book, who, 0.0, tokens) for tokens in (10, 100, 10**6)]
    assert [b and b.prospect.wait_s for b in waits] == [1.0, 10.0, 10.0]
    assert [b and (b.prospect.per_s, b.prospect.work) for b in waits] == [
        (10.0, 10.0),
        (10.0, 100.0),
        (10.0, 100.0),
    ]
    assert all(b is not None and b.reason is Reason.TOKEN_RATE for b in waits)


def test_a_refusal_by_one_limit_consumes_nothing_of_another() -> None:
    """Out of tokens, a tenant's request rate stays untouched."""
    who = limited(
        requests_per_second=1.0, request_burst=5.0, tokens_per_minute=60.0, token_burst=10.0
    )
    book = TenantLimitBook({"a": who}, 0.0)
    assert take_all(book, who, 0.0, tokens=10) == 1
    for _ in range(100):
        assert look(book, who, 0.0, tokens=10) is not None
    generous = replace(who, limits=replace(who.limits, tokens_per_minute=None))
    book.reconfigure({"a": generous}, 0.0)
    assert take_all(book, generous, 0.0) == 4


def test_fifty_reloads_give_only_what_time_gives() -> None:
    """1/s with a burst of 10, drained; 50 reloads in 5 s, reordered and with others: five more."""
    who = limited(requests_per_second=1.0, request_burst=10.0)
    other = limited("b", requests_per_second=1.0)
    book = TenantLimitBook({"a": who}, 0.0)
    assert take_all(book, who, 0.0) == 10
    admitted = 0
    for step in range(1, 51):
        now = step * 0.1
        tenants = [("a", who), ("b", other)] if step % 2 else [("b", other), ("a", who)]
        book.reconfigure(dict(tenants[: 1 + step % 2] if step % 3 == 1 else tenants), now)
        admitted += take_all(book, who, now)
    assert admitted in {4, 5}


def test_a_tenant_that_is_removed_and_put_back_keeps_its_level() -> None:
    """Taking a tenant out and putting it back in is no way to a fresh burst."""
    who = limited(requests_per_second=1.0, request_burst=10.0)
    book = TenantLimitBook({"a": who}, 0.0)
    assert take_all(book, who, 0.0) == 10
    for step in range(25):
        book.reconfigure({}, step * 0.2)
        book.reconfigure({"a": who}, step * 0.2 + 0.1)
    assert take_all(book, who, 5.0) in {4, 5}


def test_a_limit_that_was_lifted_starts_anew() -> None:
    """A tenant that was without a limit in between gets a full bucket with the new one."""
    who = limited(requests_per_second=1.0, request_burst=10.0)
    book = TenantLimitBook({"a": who}, 0.0)
    assert take_all(book, who, 0.0) == 10
    book.reconfigure({"a": tenant("a")}, 1.0)
    book.charge("a", WorkEstimate(10, 0), 1.0)
    book.reconfigure({"a": who}, 2.0)
    assert take_all(book, who, 2.0) == 10


def test_accounts_of_removed_tenants_do_not_pile_up() -> None:
    """A thousand tenants that came and went leave nothing behind once they are forgotten."""
    book = TenantLimitBook({}, 0.0)
    for number in range(1000):
        who = limited(f"t{number}", requests_per_second=1.0)
        book.reconfigure({who.name: who}, float(number))
    assert len(book._accounts) < 700


def test_a_smaller_burst_cuts_and_a_larger_one_gives_nothing() -> None:
    """A reload that raises the burst leaves the level where it was."""
    who = limited(requests_per_second=1.0, request_burst=4.0)
    book = TenantLimitBook({"a": who}, 0.0)
    larger = limited(requests_per_second=1.0, request_burst=100.0)
    book.reconfigure({"a": larger}, 0.0)
    assert take_all(book, larger, 0.0) == 4


def test_a_bound_on_how_many_run_names_no_window() -> None:
    """Three at once is not three a second, which a client that plans by it would take it for."""
    who = limited(max_concurrent=2)
    book = TenantLimitBook({"a": who}, 0.0)
    full = Ledger()
    full.by_tenant["a"] = 2
    mine = book.look(who, TYPE, WorkEstimate(10, 0), full, 0.0)
    full.by_tenant["a"], full.by_type["default"] = 1, 3
    of_type = book.look(who, TYPE, WorkEstimate(10, 0), full, 0.0)
    assert [b and b.reason for b in (mine, of_type)] == [
        Reason.TENANT_CONCURRENCY,
        Reason.TYPE_CONCURRENCY,
    ]
    assert [b and limit_headers(b.limit, 1.0)[0][1] for b in (mine, of_type)] == [
        '"concurrency";q=2',
        '"concurrency";q=3',
    ]


def test_counted_tokens_settle_what_was_charged() -> None:
    """Requests that put out half of what was expected leave room for twice as many; who is gone
    from the configuration for good is nobody's fault."""
    who = limited(tokens_per_minute=600.0, token_burst=100.0)
    book = TenantLimitBook({"a": who}, 0.0)
    assert take_all(book, who, 0.0, tokens=20) == 5
    for _ in range(5):
        book.settle("a", 20, 10, 0.0)
    assert take_all(book, who, 0.0, tokens=20) == 2
    book.settle("nobody", 20, 10, 0.0)
