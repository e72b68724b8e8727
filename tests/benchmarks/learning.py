"""Microseconds to price a request and to predict its time, and of what teaches that; and whether a
stream of large bodies keeps other Checks waiting.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import cycle
from math import exp
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import grpc

from ext_authz.estimation.cost import CostBook
from ext_authz.estimation.latency.features import Load, Work, whole
from ext_authz.estimation.latency.level import Pace
from ext_authz.estimation.latency.predictor import Lesson, Predictor
from ext_authz.estimation.parsing import parse
from ext_authz.model import HttpCall
from ext_authz.settings import CostRules
from tests.benchmarks.capture import chat
from tests.benchmarks.load import open_loop, quantile
from tests.benchmarks.names import CHECK_PATH, DATA
from tests.benchmarks.outcomes import Outcomes
from tests.benchmarks.servers import configuration, start_gate
from tests.benchmarks.stages import mean_us
from tests.support.ports import free_port

SIZES = {"1k": 1_000, "8k": 8_000, "64k": 64_000}
SLOTS = 64
LESSONS = 600
# Small Checks, and large ones beside them; turns of so many seconds with large and without.
CHECK_RPS, BIG_RPS, TURN_S, SPAN_S, ROUNDS = 500.0, 20.0, 1.0, 8.0, 3

LEARNING = ("ask_us", "learn_us", "learn_with_tap_us", "big_body_p99_added_ms")
"""The plain numbers of `learning_costs`."""


def learning_costs(folder: Path) -> dict[str, Any]:
    """All of this module; `estimate_us` is by the size of the body."""
    added_ms = big_body_costs(folder)
    return {"estimate_us": estimate_us(), **predictor_us(), "big_body_p99_added_ms": added_ms}


def estimate_us() -> dict[str, float]:
    """Parsing a chat of some size and pricing it."""
    book = CostBook(CostRules())
    headers = {"content-type": "application/json"}

    def priced(call: HttpCall) -> Callable[[], object]:
        return lambda: book.estimate(parse(call), "acme", "m")

    out = {}
    for name, size in SIZES.items():
        body = chat(size)
        call = HttpCall("POST", "/v1/chat/completions", headers, body, len(body), False)
        out[name] = round(mean_us(priced(call)), 1)
    return out


def predictor_us() -> dict[str, float]:
    """One question, and one lesson: by ends alone, and with first tokens."""
    predictor, pace = Predictor(), Pace()
    lessons = cycle(_lessons(first_tokens=False))
    for _ in range(LESSONS):
        predictor.learn(next(lessons), pace)
    learn_us = mean_us(lambda: predictor.learn(next(lessons), pace))
    tapped = cycle(_lessons(first_tokens=True))

    def learn_both() -> None:
        lesson = next(tapped)
        predictor.learn_first(lesson, pace)
        predictor.learn(lesson, pace)

    for _ in range(LESSONS):
        learn_both()
    asked = cycle(_lessons(first_tokens=False))

    def ask() -> None:
        lesson = next(asked)
        predictor.ask(lesson.work, lesson.met, SLOTS, pace)

    return {
        "ask_us": round(mean_us(ask), 2),
        "learn_us": round(learn_us, 2),
        "learn_with_tap_us": round(mean_us(learn_both), 2),
    }


def _lessons(first_tokens: bool) -> list[Lesson]:
    chance, found = Random(1), []
    true_s = (0.03, 0.15, 0.004, 0.02, 0.05, 0.9, 7.0, 5.0, 3.0, 1.0)
    asked = Predictor()
    for _ in range(LESSONS):
        in_flight = float(chance.randrange(24))
        load = Load(in_flight, 200.0 * in_flight, chance.uniform(0.0, 0.1))
        work = Work(chance.lognormvariate(5.0, 0.5), chance.lognormvariate(4.0, 0.5))
        parts = zip(true_s, whole(work, load, SLOTS), strict=True)
        e2e_s = sum(a * b for a, b in parts) * exp(chance.gauss(0.0, 0.1))
        forecast = asked.ask(work, load, SLOTS, Pace())
        ttft_s = 0.1 * e2e_s if first_tokens else None
        found.append(Lesson(work, load, load, SLOTS, e2e_s, ttft_s, forecast))
    return found


def big_body_costs(folder: Path) -> float:
    """By how many milliseconds the p99 of small Checks is higher in seconds with `BIG_RPS` of 64 kB
    than in those between, when as many small ones come on the same connection."""
    config = configuration(free_port(), free_port(), free_port(), ("127.0.0.1",), "15s")
    # Without telemetry, so that nothing but slots limits them, and those are many.
    config["admission_control"]["fallback_action"] = "admit_all"
    for pool in config["admission_control"]["pools"]:
        pool["max_concurrency"] = 20_000
    with ExitStack() as stack:
        server = start_gate(folder / "big.yaml", config, stack)
        with server.awake():
            return round(1e3 * median(_added_s(server.port, seed) for seed in range(ROUNDS)), 2)


def _added_s(port: int, seed: int) -> float:
    outcomes, over = Outcomes(port), threading.Event()
    began_s = time.monotonic()
    sender = threading.Thread(target=_send_beside, args=(port, began_s, over))
    sender.start()
    try:
        run = open_loop(port, outcomes, CHECK_RPS, SPAN_S, seed)
    finally:
        over.set()
        sender.join()
    outcomes.finish()
    times: dict[bool, list[float]] = {True: [], False: []}
    for due_s, latency_s in zip(run.due_s, run.latencies_s, strict=True):
        times[_is_big(due_s - began_s)].append(latency_s)
    return quantile(times[True], 0.99) - quantile(times[False], 0.99)


def _send_beside(port: int, began_s: float, over: threading.Event) -> None:
    """Checks on a connection of their own, large and small in turns."""
    messages = {
        True: (DATA / "check_chat_64k.bin").read_bytes(),
        False: (DATA / "check_chat_1k3.bin").read_bytes(),
    }
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = channel.unary_unary(CHECK_PATH)
        while not over.wait(1.0 / BIG_RPS):
            check(messages[_is_big(time.monotonic() - began_s)], timeout=5.0)


def _is_big(since_s: float) -> bool:
    return int(since_s / TURN_S) % 2 == 1
