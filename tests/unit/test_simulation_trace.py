"""Trace files: what is read, and what is said about one that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_authz.simulation import trace as traces
from ext_authz.simulation.trace import Row, TraceError, load_trace, read_trace

DATA = Path(__file__).parents[1] / "data" / "traces"
HEAD = "arrived_s,prompt_bytes,output_tokens,ttft_s,e2e_s"


def test_everything_a_row_may_tell() -> None:
    """Columns in any order, with spaces, unknown ones and empty cells; sorted by arrival."""
    text = """\
# recorded on a Monday
# slots=8
e2e_s, output_cap_tokens ,tenant,endpoint,prompt_bytes,prompt_tokens,arrived_s,ttft_s,output_tokens
1.5,100,acme,gpu-1,400,99,2.0,0.25,60

0.5,,,,40,9,1.0,,0
"""
    trace = read_trace(text.splitlines(), "t")
    assert trace.slots == 8
    assert trace.rows == (
        Row(1.0, 40.0, 0.0, 0.5),
        Row(2.0, 400.0, 60.0, 1.5, 0.25, 100, "gpu-1", "acme"),
    )


def test_a_recording_by_another_client() -> None:
    """The recorded vLLM trace is read by the names its client wrote; all ran into their caps."""
    trace = load_trace(DATA / "vllm-0.32.0-cpu.csv")
    assert (len(trace.rows), trace.slots) == (1098, None)
    assert trace.rows[0] == Row(2202.77614, 73.0, 12.0, 0.10367, 0.0562, 12)
    assert all(row.capped for row in trace.rows)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "t:1: no column arrived_s; add it to the header"),
        (["arrived_s,prompt_bytes,e2e_s"], "t:1: no column output_tokens; add it to the header"),
        ([HEAD], "t:1: no requests below the header; record some"),
        (["# slots=3", HEAD, ""], "t:2: no requests below the header; record some"),
        ([HEAD + ",t"], "t:1: two columns arrived_s; leave one out"),
        ([HEAD, "1,2,3"], "t:2: 3 cells under 5 columns; quote or cut them"),
        (
            ["# slots=3", HEAD, "1,2,3,,4", "1,2,three,,4"],
            "t:4: output_tokens: 'three' is no number from 0 to 1e+12; mend the cell",
        ),
        ([HEAD, "1,2,3,,0"], "t:2: e2e_s: '0' is no number from 1e-06 to 1e+12; mend the cell"),
        ([HEAD, "1,2,3,-1,4"], "t:2: ttft_s: '-1' is no number from 1e-06 to 1e+12; mend the cell"),
        ([HEAD, "1,nan,3,,4"], "t:2: prompt_bytes: 'nan' is no number from 0 to 1e+12"),
        ([HEAD, "inf,2,3,,4"], "t:2: arrived_s: 'inf' is no number from -1e+12 to 1e+12"),
        ([HEAD, "1,,3,,4"], "t:2: prompt_bytes: '' is no number from 0 to 1e+12; mend the cell"),
        (["# slots=", HEAD], "t:1: slots: '' is no count; write # slots=8"),
        (["# slots=0", HEAD], "t:1: slots: '0' is no count; write # slots=8"),
        (["#", "# slots=" + "9" * 9000, HEAD], "t:2: slots: '9999"),
        ([HEAD, "x" * 200_000], "t:2: field larger than field limit"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(lines: list[str], problem: str) -> None:
    """Line, column and remedy of the first problem; never a long cell whole."""
    with pytest.raises(TraceError) as refused:
        read_trace(lines, "t")
    assert str(refused.value).startswith(problem)
    assert len(str(refused.value)) < 150


def test_a_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes, requests and endpoints have a bound each; at it all is well."""
    path = tmp_path / "t.csv"
    path.write_text(HEAD + ",endpoint\n" + "".join(f"{n},2,3,,4,e{n}\n" for n in range(6)))
    monkeypatch.setattr(traces, "MOST_ROWS", 6)
    monkeypatch.setattr(traces, "MOST_ENDPOINTS", 6)
    monkeypatch.setattr(traces, "MOST_BYTES", path.stat().st_size)
    assert len(load_trace(path).rows) == 6
    monkeypatch.setattr(traces, "MOST_ENDPOINTS", 5)
    with pytest.raises(TraceError, match=r"t.csv:7: endpoint: more than 5; leave some"):
        load_trace(path)
    monkeypatch.setattr(traces, "MOST_ROWS", 5)
    with pytest.raises(TraceError, match=r"t.csv:7: more than 5 requests; cut the file"):
        load_trace(path)
    monkeypatch.setattr(traces, "MOST_BYTES", path.stat().st_size - 1)
    with pytest.raises(TraceError, match=r"t.csv: over 0 MiB; cut it"):
        load_trace(path)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are said to be that."""
    path = tmp_path / "t.csv"
    path.write_bytes(HEAD.encode() + b"\n\xff\xfe\x00\n")
    with pytest.raises(TraceError, match="not text in UTF-8"):
        load_trace(path)


@settings(deadline=None)
@given(st.lists(st.text(max_size=40), max_size=6), st.booleans())
def test_any_text_is_read_or_refused(lines: list[str], headed: bool) -> None:
    """No text raises anything else, and what is read has usable numbers."""
    try:
        trace = read_trace([HEAD, *lines] if headed else lines, "t")
    except TraceError:
        return
    assert all(row.e2e_s > 0.0 and row.prompt_bytes >= 0.0 for row in trace.rows)
