"""What a finding does to its completion.

Rules make findings but decide nothing. Each rule declares its kinds of findings, and what each of
them does, next to the code that makes them; the user's ``severity=`` overrides this. A finding
whose weight depends on its position has two kinds.
"""

from enum import StrEnum
from typing import Final, NamedTuple


class Severity(StrEnum):
    """What a finding does to its completion."""

    REJECT = "reject"
    """Rejects the completion: the form of such a finding is proof on its own."""
    CONFIRM = "confirm"
    """Rejects the completion if a reader finds the span foreign to its context; otherwise the
    finding is only reported. Without a reader, `Kind.without_reader` decides."""
    COUNT = "count"
    """Rejects the completion once its node has such findings more often, beyond chance, than the
    other nodes that answered the same prompts."""
    REPORT = "report"


class Kind(NamedTuple):
    """What findings of a kind do, unless the user overrides it."""

    severity: Severity
    without_reader: Severity = Severity.REPORT
    """The severity used in place of ``confirm`` if there is no reader."""
    meaning: str = ""
    """What a report says about an accepted completion with such a finding, if that is not clear
    from the severity."""


REJECT: Final = Kind(Severity.REJECT)
COUNT: Final = Kind(Severity.COUNT)
REPORT: Final = Kind(Severity.REPORT)
CONFIRM_OR_REJECT: Final = Kind(Severity.CONFIRM, without_reader=Severity.REJECT)
CONFIRM_OR_REPORT: Final = Kind(Severity.CONFIRM, without_reader=Severity.REPORT)
