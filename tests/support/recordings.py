"""Recorded requests made by hand, and the files they would be in."""

from __future__ import annotations

from pathlib import Path

from ext_authz.model import Reason, Verdict, WorkEstimate
from ext_authz.recorded import Reader, Recording, Request, head_line, request_line


def request(at_s: float, tenant: str = "a", **changes: object) -> Request:
    """One that was let in, took 0.4 s of the second promised, and ended well."""
    values: dict[str, object] = {
        "at_s": at_s,
        "tenant": tenant,
        "type": "default",
        "path": "/v1/chat/completions",
        "model": "m",
        "cost": WorkEstimate(50, 50, 60),
        "slo_s": 1.0,
        "deadline_s": None,
        "stream": False,
        "verdict": Verdict.ADMIT,
        "would_be": Verdict.ADMIT,
        "reason": Reason.HEADROOM,
        "pool": "p",
        "seconds": 0.4,
        "status": 200,
        "made_tokens": None,
    }
    return Request(**{**values, **changes})  # type: ignore[arg-type]  # test builder


def refused(at_s: float, tenant: str = "a", **changes: object) -> Request:
    """One that was refused for want of capacity."""
    values: dict[str, object] = {
        "verdict": Verdict.REJECT, "would_be": Verdict.REJECT, "reason": Reason.AT_CAPACITY,
        "pool": None, "seconds": None, "status": 0,
    }  # fmt: skip
    return request(at_s, tenant, **{**values, **changes})


def recording(*requests: Request, sample_ratio: float = 1.0) -> Recording:
    """These, in order."""
    ordered = tuple(sorted(requests, key=lambda each: each.at_s))
    return Recording(ordered, (), sample_ratio)


HEAD = head_line(1000.0, 0.0, 1.0)


def written(path: Path, *requests: Request, sample_ratio: float = 1.0) -> Path:
    """A journal's file of them, whose clock is 1000 s behind the wall's."""
    lines = [head_line(1000.0, 0.0, sample_ratio), *map(request_line, requests)]
    path.write_text("".join(lines))
    return path


def taken(*lines: str) -> Recording:
    """What is read of one file of these lines."""
    reader = Reader()
    for number, line in enumerate(lines, start=1):
        reader.take(line, f"j:{number}")
    reader.end_file()
    return reader.recording()
