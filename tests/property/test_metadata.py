"""The hand-written metadata means what protobuf itself would have written."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ext_authz.model import Decision, Reason, Verdict, WorkEstimate
from ext_authz.serving.metadata import MetadataWriter
from ext_authz.serving.wire import compile_messages

MESSAGES = compile_messages()
TEXT = st.none() | st.text(max_size=300)
COUNTS = st.integers(0, 2_000_000_000)
DECISIONS = st.builds(
    Decision,
    st.just(Verdict.ADMIT),
    st.just(Reason.HEADROOM),
    st.just(Verdict.ADMIT),
    tenant=TEXT,
    pool=TEXT,
    reservation_id=TEXT,
    estimate=st.none() | st.builds(WorkEstimate, COUNTS, COUNTS),
)


def by_protobuf(decision: Decision) -> bytes:
    response: Any = MESSAGES.check_response()
    fields = response.dynamic_metadata.fields
    texts = {
        "decision_id": decision.reservation_id,
        "tenant": decision.tenant,
        "pool": decision.pool,
    }
    for name, text in texts.items():
        if text is not None:
            fields[name].string_value = text
    if decision.estimate is not None:
        fields["prompt_tokens"].number_value = decision.estimate.prompt_tokens
        fields["output_tokens"].number_value = decision.estimate.output_tokens
    return bytes(response.SerializeToString(deterministic=True))


@given(st.lists(DECISIONS, min_size=1, max_size=4))
def test_reads_as_protobuf_would_have_written_it(decisions: list[Decision]) -> None:
    """Every combination of fields, lengths and repetitions has the same bytes."""
    writer = MetadataWriter()
    for decision in decisions:
        assert writer.write(decision) == by_protobuf(decision)


def test_remembers_a_bounded_number_of_tenants() -> None:
    """More tenants than are remembered are still written right."""
    writer = MetadataWriter()
    for number in range(3000):
        decision = Decision(
            Verdict.ADMIT, Reason.HEADROOM, Verdict.ADMIT, tenant=f"t{number}", pool="p"
        )
        assert writer.write(decision) == by_protobuf(decision)
    assert len(writer._known) <= 1024
