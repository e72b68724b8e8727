"""How a Prometheus server is asked: with which credentials, and within what bounds."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ext_authz.errors import TelemetryError
from ext_authz.telemetry.sources.prometheus import http as prometheus_http
from ext_authz.telemetry.sources.prometheus.settings import PrometheusTarget
from tests.contracts.test_scrape import make_certificate, tls_of
from tests.support.prometheus import PrometheusRig, answers, prometheus_rig
from tests.support.scrape_rig import one, until


@pytest.fixture
async def rig() -> AsyncIterator[PrometheusRig]:
    async with prometheus_rig() as made:
        yield made


async def test_credentials_are_sent_and_read_anew(rig: PrometheusRig, tmp_path: Path) -> None:
    """A token that is renewed on disk is the one sent next; nothing shows it."""
    token = tmp_path / "token"
    token.write_text("first\n")
    rig.configure(bearer_token_file=token, headers={"X-Scope-OrgID": "t1"}, basic_auth=None)
    rig.healthy(1)
    await rig.source.poll(1.0)
    token.write_text("second\n")
    await rig.source.poll(2.0)
    seen = [(r.headers["Authorization"], r.headers["X-Scope-OrgID"]) for r in rig.requests]
    assert seen == [("Bearer first", "t1"), ("Bearer second", "t1")]
    token.unlink()
    with pytest.raises(TelemetryError, match="token file cannot be read"):
        await rig.source.poll(3.0)


async def test_passwords_stay_inside(rig: PrometheusRig) -> None:
    """Neither the name, nor the settings as printed, nor an error shows one."""
    rig.configure(url="http://u:geheim@127.0.0.1:1", basic_auth=("u", "geheim"))
    with pytest.raises(TelemetryError) as caught:
        await rig.source.poll(1.0)
    assert rig.source.name == "prometheus/127.0.0.1:1"
    assert "geheim" not in f"{caught.value} {rig.settings!r} {rig.source.name}"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
async def test_certificates_are_verified(tmp_path: Path) -> None:
    """A certificate nobody vouches for is refused; with its issuer in `ca_file` all is well."""
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    make_certificate(key, certificate)
    async with prometheus_rig(tls_of(key, certificate)) as rig:
        url = rig.settings.url.replace("http:", "https:")
        rig.healthy(2)
        rig.configure(url=url, timeout_s=5.0)
        with pytest.raises(TelemetryError, match="request failed: SSLError"):
            await rig.source.poll(1.0)
        rig.configure(ca_file=certificate)
        assert one(await rig.source.poll(1.0)).running == 2.0
        rig.configure(ca_file=tmp_path / "nowhere.pem")
        with pytest.raises(TelemetryError, match="request failed"):
            await rig.source.poll(1.0)


async def test_polls_that_hang_are_given_up_and_few(
    rig: PrometheusRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that nothing ends cost a poll its time, then none at all, and heal by themselves."""
    released = threading.Event()

    def hang(*_: object) -> object:
        released.wait(30)
        raise TelemetryError("late")

    rig.configure(timeout_s=0.05)
    with monkeypatch.context() as patch:
        patch.setattr(prometheus_http.Client, "query", hang)
        for _ in range(prometheus_http.MAX_HANGING):
            with pytest.raises(TelemetryError, match="no answer in time"):
                await rig.source.poll(1.0)
        started = time.monotonic()
        with pytest.raises(TelemetryError, match="still hang"):
            await rig.source.poll(1.0)
        assert time.monotonic() - started < 0.04
        await rig.source.close()
    released.set()
    await until(lambda: not any(t.name == rig.source.name for t in threading.enumerate()))
    rig.configure(timeout_s=2.0)
    rig.healthy(2)
    assert one(await rig.source.poll(2.0)).running == 2.0


async def test_the_loop_runs_on_while_a_poll_waits(rig: PrometheusRig) -> None:
    """The client blocks; what else the process does, does not."""
    rig.fail("slow")
    poll = asyncio.create_task(rig.source.poll(1.0))
    turns = 0
    while not poll.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert isinstance(poll.exception(), TelemetryError)
    assert turns > 10


async def test_many_targets_are_asked_for_in_pieces(rig: PrometheusRig) -> None:
    """No question grows with the fleet, and no endpoint is left out."""
    targets = tuple(PrometheusTarget(f"10.0.{n}.200:8000", "vllm") for n in range(250))
    rig.configure(targets=targets)
    asked = answers(rig, {})
    report = await rig.source.poll(1.0)
    assert report.missing >= {"running", "waiting"}
    assert len(asked) > 1
    assert all(len(query) < 100_000 for query in asked)
    assert all(not request.query_string for request in rig.requests)
    assert all(any(f"10\\\\.0\\\\.{n}\\\\.200" in query for query in asked) for n in range(250))
