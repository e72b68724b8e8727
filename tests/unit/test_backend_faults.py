"""Bad calls and switched-on faults: clear JSON errors, and nothing left in flight."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace

import pytest

from loadtest.backend.profiles import PROFILES
from loadtest.backend.server import MAX_BODY_BYTES
from tests.support.gpu_backend import CHAT, FAST, ROW, STUCK, inside, running_backend


async def test_heat_is_felt_by_the_next_request() -> None:
    """With a factor of 4 every step takes four times as long."""
    async with running_backend(FAST) as (session, _):
        async with session.post("/control", json={"thermal_factor": 4}) as answer:
            assert (await answer.json())["thermal_factor"] == 4.0
        async with session.post("/v1/chat/completions", json=CHAT) as answer:
            timing = (await answer.json())["timing"]
    assert timing["e2e_ms"] == pytest.approx(80.0, abs=0.1)


async def test_metrics_can_freeze_and_vanish_and_come_back() -> None:
    """A frozen page does not see new work; a missing one is a 404; live sees it again."""
    async with running_backend(FAST) as (session, _):
        pages: dict[str, tuple[int, str]] = {}
        for mode in ("frozen", "missing", "live"):
            async with session.post("/control", json={"metrics": mode}) as answer:
                assert answer.status == 200
            async with session.post("/v1/chat/completions", json=CHAT) as answer:
                await answer.read()
            async with session.get("/metrics") as page:
                pages[mode] = (page.status, await page.text())
    served = 'vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} '
    assert f"{served}0.0" in pages["frozen"][1]
    assert pages["missing"][0] == 404
    assert f"{served}3.0" in pages["live"][1]


async def test_injected_errors_are_503_and_on_record() -> None:
    """An error ratio of 1 fails every arrival at once without touching the engine."""
    async with running_backend(STUCK) as (session, service):
        async with session.post("/control", json={"error_ratio": 1}):
            pass
        async with session.post("/v1/chat/completions", json=CHAT) as answer:
            body = await answer.json()
    assert answer.status == 503
    assert body["error"]["code"] == 503
    assert service.driver.peak_in_flight == 0


async def test_a_full_queue_is_a_503_and_is_counted() -> None:
    """Beyond max_waiting the answer is at once 503, and the page counts the refusal."""
    async with running_backend(replace(STUCK, max_waiting=1)) as (session, service):
        calls = []
        for count in (1, 2):
            calls.append(asyncio.create_task(session.post("/v1/chat/completions", json=CHAT)))
            await inside(service, count)
        async with session.post("/v1/chat/completions", json=CHAT) as answer:
            assert answer.status == 503
        async with session.get("/metrics") as page:
            text = await page.text()
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    assert 'rejections_total{model_name="m",reason="max_num_queued_reqs"} 1.0' in text


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", b"", 400),
        ("/v1/chat/completions", b"{", 400),
        ("/v1/chat/completions", b'{"messages": []}', 400),
        ("/v1/chat/completions", json.dumps({**CHAT, "model": "other"}).encode(), 404),
        ("/v1/chat/completions", json.dumps({**CHAT, "max_tokens": 5000}).encode(), 400),
        ("/v1/completions", b'{"prompt": "' + b"x" * 20_000 + b'"}', 400),
        ("/v1/completions", b"x" * (MAX_BODY_BYTES + 1), 413),
        ("/v1/embeddings", b'{"input": []}', 400),
        ("/v1/nothing", b"{}", 404),
        ("/metrics", b"{}", 405),
        ("/control", b'{"surprise": 1}', 400),
        ("/control", b'{"thermal_factor": 0}', 400),
        ("/v2/models/m/infer", b"{}", 404),
    ],
)
async def test_a_bad_call_gets_a_clear_json_error(path: str, body: bytes, status: int) -> None:
    """The status fits, the body is an OpenAI error, and nothing stays in flight."""
    async with running_backend(FAST) as (session, service):
        async with session.post(path, data=io.BytesIO(body)) as answer:
            document = await answer.json()
        assert answer.status == status
        if path.startswith("/v2/"):
            assert isinstance(document["error"], str)
        else:
            assert document["error"]["message"]
            assert document["error"]["code"] == status
        assert service.driver.in_flight == 0


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v2/models/m/infer", b"{}", 400),
        ("/v2/models/other/infer", json.dumps(ROW).encode(), 404),
        ("/v2/models/m/infer", b'{"inputs": [{"name": "x", "shape": [9, 1]}]}', 400),
    ],
)
async def test_a_bad_inference_gets_a_kserve_error(path: str, body: bytes, status: int) -> None:
    """KServe clients read a string under `error`."""
    async with (
        running_backend(PROFILES["fraud"]) as (session, _),
        session.post(path, data=body) as answer,
    ):
        document = await answer.json()
    assert answer.status == status
    assert isinstance(document["error"], str)
