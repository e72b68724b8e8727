"""Things that have learned something."""

from __future__ import annotations

from random import Random

from ext_authz.estimation.cost import CostBook
from ext_authz.estimation.latency.features import Load, Work
from ext_authz.estimation.latency.level import Pace
from ext_authz.estimation.latency.predictor import Lesson, Predictor

SLOTS = 16


def teach(predictor: Predictor, lessons: int, seed: int = 1) -> None:
    """Requests of an engine with a pace of its own, with all loads and sizes mixed."""
    rng, pace = Random(seed), Pace()
    for _ in range(lessons):
        work = Work(rng.randint(10, 4000), rng.randint(2, 800))
        load = Load(rng.uniform(0, 40), rng.uniform(0, 1e5), rng.uniform(0, 0.2))
        ttft_s = (0.03 + 2e-4 * work.prompt_tokens) * rng.lognormvariate(0, 0.2)
        e2e_s = ttft_s + 0.012 * work.output_tokens * (1 + load.in_flight / SLOTS)
        forecast = predictor.ask(work, load, SLOTS, pace)
        lesson = Lesson(work, load, load, SLOTS, e2e_s, ttft_s, forecast)
        predictor.learn_first(lesson, pace)
        predictor.learn(lesson, pace)


def taught(lessons: int, seed: int = 1) -> Predictor:
    """A predictor that has seen so many requests."""
    predictor = Predictor()
    teach(predictor, lessons, seed)
    return predictor


def asked(predictor: Predictor) -> list[tuple[float, float, float]]:
    """What it says of some requests at some loads: first token, end, and 95 % of ends."""
    answers = []
    for in_flight in (0.0, 1.0, 7.5, 16.0, 40.0):
        for work in (Work(1, 1), Work(300, 100), Work(8000, 2000)):
            load = Load(in_flight, 300.0 * in_flight, 0.01 * in_flight)
            forecast = predictor.ask(work, load, SLOTS, Pace())
            answers.append((forecast.ttft_s, forecast.e2e_s, predictor.within_s(forecast, 0.95)))
    return answers


def teach_costs(costs: CostBook, answers: int, seed: int = 1) -> None:
    """Answers of about 80 tokens to one tenant, texts of 3 bytes a token."""
    rng = Random(seed)
    for number in range(answers):
        costs.lengths.learn("acme", "demo", rng.randint(40, 120), None)
        costs.prompts.saw(("demo", "chat"), 3000.0, 1000.0, 4.0, float(number))
        costs.outputs.saw(("demo", True), 20_000.0, 100.0, 220.0, float(number))
