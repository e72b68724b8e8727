"""What is recorded to be replayed: how it is written, and what it means."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator

from ext_authz.config.pipelines import Part
from ext_authz.config.scalars import as_text, number, whole
from ext_authz.settings import JournalSettings

if TYPE_CHECKING:
    from ext_authz.config.report import Report
    from ext_authz.config.schema import AdmissionControl


class JournalBody(Part):
    """The file, its bytes, and the part of all requests that is recorded."""

    file: Annotated[str, BeforeValidator(as_text)] | None = None
    max_bytes: Annotated[int, whole(8 << 20, 16 << 30)] = 64 << 20
    sample: Annotated[float, number(0, 1, above=True)] = 1.0


def journal_settings(body: JournalBody, base: Path) -> JournalSettings:
    """What `body` means; its file is relative to `base`."""
    file = None if body.file is None else str(base / body.file)
    return JournalSettings(file, body.max_bytes, body.sample)


def check_journal(config: AdmissionControl, report: Report) -> None:
    """Note bounds of what is not written, and a file that learned state is kept in."""
    journal = config.journal
    if not report.whole("journal", "learning"):
        return
    if journal.file is None and journal.model_fields_set:
        report.warn(("journal",), "is of no use without a file", "write `file:`, or delete it")
    if journal.file is not None and journal.file == config.learning.state_file:
        report.problem(
            ("journal", "file"), "is learning.state_file as well", "give each a file of its own"
        )
