"""What teaches prices: requests sent, answers, engines' counters, single counts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.estimation.cost import ANSWER_PRIOR, STREAM_PRIOR, CostBook
from ext_authz.estimation.output_length import ENOUGH
from ext_authz.model import Api, InferenceRequest, Operation, Outcome, Usage, WorkEstimate
from ext_authz.settings import CostRules
from ext_authz.snapshot import EndpointSample

CHAT = InferenceRequest(Api.OPENAI, Operation.CHAT, "/v1/chat/completions", "m", 2000)
STREAM = replace(CHAT, stream=True)
EMBEDDING = replace(CHAT, operation=Operation.EMBEDDING)
DONE = Outcome("r", 200, 1.0, None)


class World:
    """One endpoint that is sent requests, each over at once, and scraped every second."""

    def __init__(self, rules: CostRules | None = None) -> None:
        self.book = CostBook(rules)
        self.now = 0.0
        self._prompts = 0.0
        self._generated = 0.0

    def serve(
        self,
        request: InferenceRequest,
        outcome: Outcome = DONE,
        prompt: float = 0.0,
        output: float = 0.0,
    ) -> float | None:
        """A request that the engine counted as so many tokens; what it was taken to put out."""
        estimate = self.book.estimate(request, "t", "m")
        self.book.sent("e", request, estimate, "m")
        self._prompts += prompt
        self._generated += output
        self.book.answered("e", request, estimate, "m", outcome)
        return self.book.ended(request, "t", "m", outcome, self.now)

    def scrape(self) -> None:
        self.now += 1.0
        sample = EndpointSample(
            "e",
            self.now,
            prompt_tokens_per_s=self._prompts,
            generation_tokens_per_s=self._generated,
        )
        self._prompts = self._generated = 0.0
        self.book.observed(sample, True)


def answered(size: int, **changes: object) -> Outcome:
    return replace(DONE, response_bytes=size, **changes)  # type: ignore[arg-type]  # any field


def test_prompts_are_priced_by_what_the_engine_counted() -> None:
    """2,000 bytes that are 1,000 tokens cost 500 at first and 1,000 after a minute; another kind
    of request, another model and other rules are not touched."""
    world = World()
    assert world.book.estimate(CHAT, "t", "m").prompt_tokens == 500
    for _ in range(60):
        for _ in range(10):
            world.serve(CHAT, prompt=1000)
        world.scrape()
    assert world.book.estimate(CHAT, "t", "m").prompt_tokens == pytest.approx(1000, rel=0.03)
    completion = replace(CHAT, operation=Operation.COMPLETION)
    assert world.book.estimate(completion, "t", "m").prompt_tokens == 500
    assert world.book.estimate(CHAT, "t", "other").prompt_tokens == 500
    world.book.rules = CostRules(bytes_per_token=2.0)
    assert world.book.estimate(CHAT, "t", "other").prompt_tokens == 1000


def test_prompts_are_priced_by_usage_where_there_is_no_counter() -> None:
    """Counts of single requests do it alone; the token ids in a prompt are not text."""
    book, request = CostBook(), replace(CHAT, token_ids=100)
    for second in range(300):
        usage = Usage(prompt_tokens=1100, output_tokens=50)
        book.ended(request, "t", "m", answered(250, usage=usage), float(second))
    assert book.estimate(request, "t", "m").prompt_tokens == pytest.approx(1100, rel=0.03)


@pytest.mark.parametrize(
    "odd",
    [
        {"opaque": True},
        {"partial": True},
        {"size_unknown": True},
        {"images": 1},
        {"sequences": 4},
    ],
)
def test_prompts_of_unknown_make_teach_nothing(odd: dict[str, int]) -> None:
    """Where the text is not what the tokens are made of, neither counter nor usage is believed."""
    world, request = World(), replace(CHAT, **odd)  # type: ignore[arg-type]  # any field
    for _ in range(60):
        for _ in range(10):
            usage = Usage(prompt_tokens=9000)
            world.serve(request, replace(DONE, usage=usage), prompt=9000)
        world.scrape()
    assert world.book.estimate(CHAT, "t", "m").prompt_tokens == 500


def test_a_batch_of_prompts_is_text_like_any_other() -> None:
    """Three prompts that get an answer each are counted once each."""
    world, batch = World(), replace(CHAT, prompts=3, sequences=3)
    for _ in range(60):
        for _ in range(10):
            world.serve(batch, prompt=1000)
        world.scrape()
    assert world.book.estimate(CHAT, "t", "m").prompt_tokens == pytest.approx(1000, rel=0.03)


def test_refused_requests_are_not_missing_tokens() -> None:
    """An engine that refuses every other request has counted only the rest."""
    world = World()
    for _ in range(60):
        for _ in range(10):
            world.serve(CHAT, prompt=500)
            world.serve(CHAT, replace(answered(300), status=400))
        world.scrape()
    assert world.book.estimate(CHAT, "t", "m").prompt_tokens == pytest.approx(500, rel=0.01)


def test_sizes_of_answers_are_calibrated_on_the_counter() -> None:
    """Streams of 300 bytes a token and whole answers of 6, in changing mixture: both are learned
    from one counter, and then the bytes of an answer tell its tokens."""
    world = World()
    for second in range(1200):
        streams = 8 if second // 30 % 2 else 2
        for number in range(10):
            one = number < streams
            size = 30_000 if one else 600
            world.serve(STREAM if one else CHAT, answered(size), prompt=500, output=100)
        world.scrape()
    assert world.serve(STREAM, answered(30_000)) == pytest.approx(100, rel=0.05)
    assert world.serve(CHAT, answered(600)) == pytest.approx(100, rel=0.05)


def test_sizes_tell_nothing_before_they_are_calibrated() -> None:
    """The priors are no knowledge: without a counter the tokens of an answer are unknown."""
    book = CostBook()
    assert book.ended(CHAT, "t", "m", answered(500), 0.0) is None
    assert book.ended(EMBEDDING, "t", "m", answered(50_000), 0.0) == 0.0
    usage = Usage(output_tokens=77)
    assert book.ended(CHAT, "t", "m", answered(500, usage=usage), 0.0) == 77.0
    assert (ANSWER_PRIOR, STREAM_PRIOR) == (5.0, 220.0)


def test_embeddings_and_errors_are_no_answers() -> None:
    """Large answers without generated tokens beside real ones of 5 bytes a token."""
    world = World()
    for _ in range(60):
        for _ in range(10):
            world.serve(EMBEDDING, answered(20_000), prompt=500)
            world.serve(CHAT, answered(2000, status=500))
            world.serve(CHAT, answered(1000), prompt=500, output=200)
        world.scrape()
    assert world.serve(CHAT, answered(1000)) == pytest.approx(200, rel=0.01)


def test_expected_output_follows_the_tenants_answers() -> None:
    """A cap of 4,000 is charged at first; then what this tenant's answers are like under it, with
    the cap as the most there can be. Without a cap, what 99 % do not exceed is the most."""
    book, capped = CostBook(), replace(CHAT, output_cap_tokens=4000)
    assert book.estimate(capped, "t", "m") == WorkEstimate(500, 4000, 4000)
    assert book.estimate(CHAT, "t", "m") == WorkEstimate(500, 256, 256)
    for number in range(200):
        usage = Usage(output_tokens=100 if number % 10 else 1000)
        book.ended(capped, "t", "m", answered(1, usage=usage), float(number))
    learned = book.estimate(capped, "t", "m")
    assert learned.output_tokens == pytest.approx(190, rel=0.1)
    assert (learned.most_output_tokens, learned.kv_tokens) == (4000, 4500)
    assert book.estimate(CHAT, "t", "m").most_output_tokens == pytest.approx(1000, rel=0.2)
    two = replace(capped, sequences=2)
    assert book.estimate(two, "t", "m").output_tokens == 2 * learned.output_tokens
    opaque = replace(capped, opaque=True)
    assert book.estimate(opaque, "t", "m").output_tokens == 4000


def test_an_answer_that_its_client_left_was_not_short() -> None:
    """Streams left after 50 tokens teach that answers are longer, not that they are so short."""
    book = CostBook()
    for number in range(20 * ENOUGH):
        left = number % 2 == 0
        usage = Usage(output_tokens=50 if left else 800)
        outcome = answered(1, usage=usage, client_left=left)
        book.ended(STREAM, "t", "m", outcome, float(number))
    assert book.estimate(STREAM, "t", "m").output_tokens == pytest.approx(800, rel=0.12)


def test_an_answer_near_its_cap_by_its_size_has_reached_it() -> None:
    """Sizes tell tokens to some per cent: 97 of at most 100 tokens is no answer that ended."""
    world, capped = World(), replace(CHAT, output_cap_tokens=100)
    for _ in range(60):
        for _ in range(10):
            world.serve(capped, answered(485), prompt=500, output=97)
        world.scrape()
    longer = replace(CHAT, output_cap_tokens=1000)
    assert world.book.estimate(longer, "t", "m").output_tokens > 300


def test_bytes_of_cache() -> None:
    """128 KiB a token: 500 of prompt and up to 100 of output fill 75 MiB; unknown is unknown."""
    capped = replace(CHAT, output_cap_tokens=100)
    assert CostBook().estimate(capped, "t", "m", 131_072.0).kv_bytes == 75 * 2**20
    assert CostBook().estimate(capped, "t", "m").kv_bytes is None


def test_meters_of_endpoints_that_went_are_dropped() -> None:
    """An endpoint that comes back begins anew, and one never heard of is ignored."""
    world = World()
    for _ in range(4):
        for _ in range(10):
            world.serve(CHAT, prompt=1000)
        world.scrape()
    world.book.keep(frozenset())
    for _ in range(4):
        world.scrape()
    assert world.book.estimate(CHAT, "t", "m").prompt_tokens == 500


def taught() -> World:
    world = World()
    for _ in range(60):
        for _ in range(10):
            world.serve(CHAT, answered(1000), prompt=1000, output=100)
            world.serve(STREAM, answered(30_000), prompt=1000, output=100)
        world.scrape()
    return world


def test_what_was_learned_survives() -> None:
    """Through plain JSON and back, the same prices and the same reading of sizes."""
    world, again = taught(), World()
    assert again.book.restore(json.loads(json.dumps(world.book.export())))
    for request in (CHAT, STREAM, replace(CHAT, output_cap_tokens=50)):
        before = world.book.estimate(request, "t", "m")
        after = again.book.estimate(request, "t", "m")
        assert after.prompt_tokens == before.prompt_tokens > 900
        assert after.output_tokens == pytest.approx(before.output_tokens, rel=0.02)
        assert again.book.ended(request, "t", "m", answered(1000), 0.0) == pytest.approx(
            world.book.ended(request, "t", "m", answered(1000), 0.0)
        )


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=20,
)
parts = st.sampled_from(["lengths", "prompts", "outputs"])
rows = st.lists(st.lists(json_like, max_size=3), max_size=3)


@given(json_like | st.dictionaries(parts, json_like | rows, min_size=3, max_size=3))
def test_anything_else_is_taken_up_whole_or_not_at_all(saved: object) -> None:
    """Restoring never raises; whatever is taken up still prices within bounds."""
    book = CostBook()
    before = book.export()
    if not book.restore(saved):
        assert book.export() == before
    priced = book.estimate(CHAT, "t", "m")
    assert 250 <= priced.prompt_tokens <= 2000
    assert 0 <= priced.output_tokens <= priced.most_output_tokens


@pytest.mark.parametrize("part", ["lengths", "prompts", "outputs"])
@pytest.mark.parametrize("damage", [None, {}, [[1]], [["t", "m", {"count": 9}]], [[{}, 1, 1]]])
def test_one_damaged_part_leaves_all_as_it_was(part: str, damage: object) -> None:
    """A file that is damaged in one place is not taken up by half."""
    saved = json.loads(json.dumps(taught().book.export()))
    saved[part] = damage
    book = CostBook()
    before = book.export()
    assert not book.restore(saved)
    assert book.export() == before


def test_a_table_that_claims_answers_it_does_not_hold_is_not_believed() -> None:
    """A count without weights behind it would price every answer at nothing."""
    book = CostBook()
    book.lengths.learn("t", "m", 100, None)
    saved = json.loads(json.dumps(book.export()))
    for _, _, table in saved["lengths"]:
        table["count"] = 10**6
        table["ended"] = [0.0] * len(table["ended"])
    assert book.restore(saved)
    assert book.estimate(CHAT, "t", "m").output_tokens == 256
