"""The text of a conversation, against adding it up one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ext_authz.estimation.shapes.content import FORM, SCALAR_BYTES, add_text
from ext_authz.estimation.shapes.tally import MAX_ITEMS, Tally

texts = st.text(st.characters(codec=None), max_size=12)
names = st.sampled_from(["role", "content", "text", "name", "tool_calls"])
messages = st.one_of(
    st.fixed_dictionaries({"role": texts, "content": texts}),
    st.dictionaries(names, texts | st.none() | st.booleans() | st.lists(texts, max_size=3)),
)


def slow_bytes(value: object) -> int:
    """All text, what gives a document its form left out."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, list):
        return sum(map(slow_bytes, value))
    if isinstance(value, dict):
        named = sum(slow_bytes(name) for name in value if name not in FORM)
        return named + sum(map(slow_bytes, value.values()))
    return 0 if value is None else SCALAR_BYTES


@given(st.lists(messages, max_size=8))
def test_every_text_of_a_conversation_counts_once(conversation: list[dict[str, object]]) -> None:
    """Plain messages, which are looked at in one go, and any others among them."""
    tally = Tally()
    add_text(conversation, tally)
    assert tally.text_bytes == slow_bytes(conversation)
    assert tally.items >= 1 + len(conversation)


def test_a_conversation_of_too_many_messages_is_overfull() -> None:
    """Plain ones are counted as any others are."""
    for count, overfull in ((MAX_ITEMS - 1, False), (MAX_ITEMS, True), (MAX_ITEMS + 5, True)):
        tally = Tally()
        add_text([{"role": "user", "content": "hello"}] * count, tally)
        assert tally.overfull is overfull
