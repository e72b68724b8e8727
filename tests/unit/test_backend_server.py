"""The HTTP shell: real sockets on loopback, real time, short work."""

from __future__ import annotations

import asyncio
import json
import time

import aiohttp
import pytest

from loadtest.backend.profiles import PROFILES
from tests.support.gpu_backend import CHAT, FAST, ROW, STUCK, inside, running_backend, until


async def _events(response: aiohttp.ClientResponse) -> list[str]:
    text = (await response.read()).decode()
    assert text.endswith("\n\n")
    return [event.removeprefix("data: ") for event in text.split("\n\n")[:-1]]


async def test_a_chat_takes_the_time_the_engine_says() -> None:
    """The answer carries usage and timing, and the client waited as long as the timing claims."""
    async with running_backend(PROFILES["demo-primary"]) as (session, _):
        begun = time.monotonic()
        async with session.post("/v1/chat/completions", json={**CHAT, "model": "alias"}) as answer:
            body = await answer.json()
        waited_ms = (time.monotonic() - begun) * 1000
    assert answer.status == 200
    assert body["model"] == "alias"
    assert body["usage"] == {"prompt_tokens": 20, "completion_tokens": 20, "total_tokens": 40}
    assert body["choices"][0]["finish_reason"] == "length"
    assert len(body["choices"][0]["message"]["content"].split()) == 20
    expected_ms = 7.5 + 20 * 0.016 + 19 * 5.33  # one prefill and nineteen decode steps
    assert body["timing"]["e2e_ms"] == pytest.approx(expected_ms, rel=0.05)
    assert body["timing"]["e2e_ms"] <= waited_ms < body["timing"]["e2e_ms"] + 2000


async def test_a_stream_sends_all_tokens_then_usage_then_the_end() -> None:
    """Several chunks, as many words as tokens, one finish reason, a first-token time stamp."""
    async with running_backend(PROFILES["demo-primary"]) as (session, _):
        begun_ms = time.time() * 1000
        async with session.post("/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
            assert answer.content_type == "text/event-stream"
            events = await _events(answer)
        ended_ms = time.time() * 1000
    assert events[-1] == "[DONE]"
    *chunks, last = [json.loads(event) for event in events[:-1]]
    assert len(chunks) >= 3
    words = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks).split()
    assert len(words) == 20
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 20
    assert begun_ms - 1 <= last["timing"]["first_token_unix_ms"] <= ended_ms + 1
    assert last["timing"]["ttft_ms"] < last["timing"]["e2e_ms"]


async def test_stream_headers_leave_before_the_first_token() -> None:
    """A client learns nothing about the queue from headers: they come at once."""
    async with (
        running_backend(STUCK) as (session, service),
        session.post("/v1/completions", json={"prompt": "x", "stream": True}) as answer,
    ):
        assert answer.status == 200
        assert service.driver.gauges().steps == 0


async def test_several_choices_end_together() -> None:
    """n sequences run as n and come back as n choices of one answer."""
    async with running_backend(FAST) as (session, service):
        body = {"prompt": ["aaaa", "bbbb"], "n": 2, "max_tokens": 3, "ignore_eos": True}
        async with session.post("/v1/completions", json=body) as answer:
            document = await answer.json()
        async with session.post("/v1/completions", json={**body, "stream": True}) as answer:
            events = await _events(answer)
    assert [choice["index"] for choice in document["choices"]] == [0, 1, 2, 3]
    assert document["usage"]["completion_tokens"] == 12
    assert service.driver.in_flight == 0
    chunks = [json.loads(event) for event in events[:-1]]
    ends = [one["index"] for chunk in chunks for one in chunk["choices"] if one["finish_reason"]]
    assert sorted(ends) == [0, 1, 2, 3]


async def test_embeddings_are_prefill_only() -> None:
    """One vector per input, no completion tokens."""
    async with (
        running_backend(FAST) as (session, _),
        session.post("/v1/embeddings", json={"input": ["aaaa", "bbbb"]}) as answer,
    ):
        body = await answer.json()
    assert len(body["data"]) == 2
    assert body["usage"] == {"prompt_tokens": 2, "completion_tokens": 0, "total_tokens": 2}


@pytest.mark.parametrize(
    "path", ["/v2/models/m/infer", "/v2/models/alias/versions/3/infer"], ids=["plain", "version"]
)
async def test_an_inference_by_the_kserve_protocol(path: str) -> None:
    """Outputs have a row per input row; the batch waited and ran as the profile says."""
    async with running_backend(PROFILES["fraud"]) as (session, _):
        async with session.post(path, json={**ROW, "id": "a7"}) as answer:
            body = await answer.json()
        async with session.get("/metrics") as page:
            text = await page.text()
    assert body["id"] == "a7"
    assert body["outputs"][0]["shape"] == [2, 1]
    assert body["parameters"]["e2e_ms"] == pytest.approx(5 + 20 + 2 * 2.5, abs=0.01)
    assert 'nv_inference_count{model="m",version="1"} 2' in text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_place(stream: bool) -> None:
    """Disconnecting cancels: in flight falls to zero and the record says 499."""
    async with running_backend(STUCK) as (session, service):
        call = asyncio.create_task(
            session.post("/v1/chat/completions", json={**CHAT, "stream": stream})
        )
        await inside(service, 1)
        if stream:
            (await call).close()
        else:
            call.cancel()
        await inside(service, 0)
        assert service.driver.gauges().running == 0
        await until(lambda: service.record.summary(1)["by_status"] == {"499": 1})
        aborted = 'finished_reason="abort",model_name="m"} 1.0'
        assert aborted in service.live_page()


async def test_the_page_and_the_log_show_who_isinside() -> None:
    """Two run, one waits: the gauges, the log and /metrics agree."""
    async with running_backend(STUCK) as (session, service):
        calls = [
            asyncio.create_task(session.post("/v1/chat/completions", json=CHAT)) for _ in range(3)
        ]
        await inside(service, 3)
        async with session.get("/metrics") as page:
            text = await page.text()
        async with session.get("/log") as log:
            record = await log.json()
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    # the first arrival began a step alone, so the two others still wait for the next one
    assert 'vllm:num_requests_running{engine="0",model_name="m"} 1.0' in text
    assert 'vllm:num_requests_waiting{engine="0",model_name="m"} 2.0' in text
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert (record["in_flight"], record["running"], record["waiting"]) == (3, 1, 2)


async def test_served_requests_are_on_record() -> None:
    """Each entry has its id, its share of the load and its timing; the list obeys its limit."""
    async with running_backend(FAST) as (session, _):
        for number in range(3):
            headers = {"x-request-id": f"r{number}", "x-loadtest-id": f"solo/{number}/1"}
            async with session.post("/v1/chat/completions", json=CHAT, headers=headers) as answer:
                await answer.read()
        async with session.get("/log", params={"limit": "2"}) as log:
            record = await log.json()
    assert record["by_status"] == {"200": 3}
    assert [entry["request_id"] for entry in record["latest"]] == ["r2", "r1"]
    assert [entry["sent_id"] for entry in record["latest"]] == ["solo/2/1", "solo/1/1"]
    last = record["latest"][0]
    assert last["timing"]["e2e_ms"] > 0
    assert last["ended_unix_ms"] - last["arrived_unix_ms"] >= last["timing"]["e2e_ms"] - 0.01
    assert record["peak_in_flight"] == 1


async def test_what_was_asked_is_on_record_but_for_what_the_load_test_asks() -> None:
    """Each path with its count, also one that is not there; many paths are no memory leak."""
    async with running_backend(FAST) as (session, _):
        for path in ("/metrics", "/metrics", "/nowhere"):
            async with session.get(path) as answer:
                await answer.read()
        async with session.get("/log", headers={"x-loadtest-harness": "1"}) as log:
            assert (await log.json())["asked"] == {"/metrics": 2, "/nowhere": 1}
        for number in range(100):
            async with session.get(f"/nowhere/{number}") as answer:
                await answer.read()
        async with session.get("/log") as log:
            asked = (await log.json())["asked"]
    assert len(asked) == 65
    assert asked["other"] == 100 - 62 + 1  # the last one is /log itself


async def test_health_says_yes() -> None:
    """Every health path of both APIs answers 200."""
    async with running_backend(FAST) as (session, _):
        for path in ("/health", "/v2/health/ready", "/v2/health/live"):
            async with session.get(path) as answer:
                assert answer.status == 200


async def test_many_at_once_are_all_answered_and_the_books_close() -> None:
    """Two hundred mixed calls: every one gets its tokens, and nothing is left inside."""
    async with running_backend(FAST) as (session, service):

        async def call(number: int) -> int:
            body = {**CHAT, "stream": number % 2 == 0, "max_tokens": 1 + number % 20}
            async with session.post("/v1/chat/completions", json=body) as answer:
                text = await answer.text()
            return text.count("word ")

        words = await asyncio.gather(*(call(number) for number in range(200)))
        assert list(words) == [1 + number % 20 for number in range(200)]
        gauges = service.driver.gauges()
    assert (service.driver.in_flight, gauges.running, gauges.waiting) == (0, 0, 0)
    assert service.record.summary(0)["by_status"] == {"200": 200}
