"""No key and no prompt gets out, at the most talkative level, by any way there is to look."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
import yaml

from ext_authz.serving.services import AUTHORIZATION
from tests.support.processes import eventually
from tests.support.service import chat
from tests.support.stack import CHAT, KEYS, digest, engine_stack, make_config

pytestmark = pytest.mark.slow

CANARY = "sk-canary-5f1e7c0b9d"
UNKNOWN = "sk-canary-unknown-77"
PROMPT = "the-quick-prompt-of-4711"
PIECE = 8


def leaks(text: str, *secrets: str) -> list[str]:
    """The pieces of `secrets` that are in `text`."""
    pieces = {
        secret[at : at + PIECE] for secret in secrets for at in range(len(secret) - PIECE + 1)
    }
    return sorted(piece for piece in pieces if piece in text)


def test_leaks_are_found() -> None:
    """A piece in the middle of a line is a leak; the shortest piece counts."""
    assert leaks(f"a={CANARY}", CANARY)
    assert leaks("x5f1e7c0by", CANARY) == ["5f1e7c0b"]
    assert not leaks("sk-cana", CANARY)


async def test_keys_and_prompts_stay_inside(tmp_path: Path) -> None:
    """Logs at debug, metrics, debug pages, refusals and the access log's Envoy show no piece."""
    limits = {"requests_per_second": 1, "burst": 2}
    tenants = [{"name": "acme", "api_key_sha256": [digest(CANARY)], "limits": limits}]
    body = {**CHAT, "messages": [{"role": "user", "content": PROMPT}]}
    async with engine_stack(tmp_path, "debug", tenants=tenants) as up:
        stack = up.stack
        url = f"{stack.envoy.url}/v1/chat/completions"
        seen: list[str] = []
        statuses: set[int] = set()
        for key in (CANARY, UNKNOWN):
            for headers in (
                {"authorization": f"Bearer {key}"},
                {"authorization": key},
                {"authorization": f"Basic {key}"},
                {"x-api-key": key},
                {"x-api-key": key, "authorization": f"Bearer {UNKNOWN}"},
                {"x-api-key": f"{key}\u00ff"},
            ):
                for content in (body, {"model": PROMPT}, [PROMPT]):
                    async with stack.client.post(url, json=content, headers=headers) as reply:
                        statuses.add(reply.status)
                        if reply.status != 200:  # the upstream here echoes what it gets
                            seen += [await reply.text(), str(reply.headers)]
            async with stack.client.post(f"{url}?api_key={key}", json=body) as reply:
                seen += [await reply.text(), str(reply.headers)]
        assert {200, 401, 429} <= statuses
        async with grpc.aio.insecure_channel(stack.grpc_address) as channel:
            check = channel.unary_unary(f"/{AUTHORIZATION}/Check")
            for request in (chat(key=CANARY), chat(key=UNKNOWN), chat(key=CANARY)[:-20]):
                seen.append((await check(request, timeout=5)).decode(errors="replace"))
        for page in ("/metrics", "/debug/decisions?count=1000", "/debug/status"):
            seen.append((await stack.admin(page))[1])
        seen.append((await stack.admin(f"/debug/explain/{UNKNOWN}"))[1])
        await stack.idle(within_s=4.0)
        log = stack.gate.output()
    # The model's name is kept, and the client chose to put there what it did.
    told = "\n".join(seen).replace(f'"model": "{PROMPT}"', "")
    assert "unknown_key" in told
    assert "request_rate" in told
    assert leaks(told, CANARY, UNKNOWN) == []
    assert leaks(told, PROMPT) == []
    assert "DEBUG" in log
    assert leaks(log, CANARY, UNKNOWN, PROMPT) == []


@pytest.mark.parametrize(
    "broken",
    [
        {"name": "acme", "api_key_sha256": [CANARY]},
        {"name": "acme", "api_key_sha256": CANARY},
        {"name": "acme", "api_key": CANARY},
        {"name": "acme", "api_key_sha256": [{CANARY: CANARY}]},
        {"name": "acme", "limits": {"burst": CANARY}},
        {"name": "acme", "weight": CANARY},
    ],
)
async def test_config_errors_quote_no_key(tmp_path: Path, broken: dict[str, object]) -> None:
    """A key in the wrong place is told by its place."""
    path = tmp_path / "gate.yaml"
    config = make_config(["127.0.0.1:1"], tenants=[broken])
    path.write_text(yaml.safe_dump(config))
    for command in (["check", str(path)], ["serve", "--log-level", "debug", "--config", str(path)]):
        told = await asyncio.to_thread(_run, command)
        assert told.returncode == 1
        assert "tenants[0]" in told.stderr
        assert leaks(told.stdout + told.stderr, CANARY) == []


def _run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ext_authz", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


async def test_a_key_file_is_taken_in_unseen(tmp_path: Path) -> None:
    """A key added to a key file works after the reload, and is shown nowhere."""
    keys = tmp_path / "keys.txt"
    keys.write_text(f"{KEYS['acme']}\n")
    tenants = [{"name": "acme", "api_key_files": ["keys.txt"]}]
    async with engine_stack(tmp_path, "debug", tenants=tenants) as up:
        stack = up.stack
        assert (await stack.post()).status == 200
        assert (await stack.post(key=CANARY)).status == 401
        keys.write_text(f"{KEYS['acme']}\n{CANARY}\n")

        async def known() -> bool:
            return (await stack.post(key=CANARY)).status == 200

        await eventually(known, within_s=10)
        await stack.idle()
        seen = stack.gate.output() + (await stack.admin("/debug/status"))[1]
        assert leaks(seen, CANARY, KEYS["acme"]) == []
