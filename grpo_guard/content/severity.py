"""What a finding does to its completion.

Rules find and do not decide. Each rule declares its kinds of findings next to the code that makes
them, and what each kind does; the user's ``severity=`` overrides it. A finding whose weight depends
on its position gets two kinds.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class Severity(StrEnum):
    """What a finding does."""

    REJECT = "reject"
    """The form itself is proof."""
    CONFIRM = "confirm"
    """Rejects if a reader finds the span foreign in its context, else is only reported. Without
    a reader, `Kind.without_reader` decides."""
    COUNT = "count"
    """Rejects once its node has such findings more often than nodes that answered the same
    prompts, beyond chance."""
    REPORT = "report"


class Kind(NamedTuple):
    """What findings of one kind do, unless the user says otherwise."""

    severity: Severity
    without_reader: Severity = Severity.REPORT
    """What severity ``confirm`` does without a reader."""


REJECT: Final = Kind(Severity.REJECT)
COUNT: Final = Kind(Severity.COUNT)
REPORT: Final = Kind(Severity.REPORT)
CONFIRM_OR_REJECT: Final = Kind(Severity.CONFIRM, without_reader=Severity.REJECT)
CONFIRM_OR_REPORT: Final = Kind(Severity.CONFIRM, without_reader=Severity.REPORT)
