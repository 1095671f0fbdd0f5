"""What each kind of finding does to its completion: one table for all rules.

Rules find and do not decide. A finding whose weight depends on its position gets two kinds, so
that this table, or the user's replacement for it, has the last word.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Severity(StrEnum):
    """What a finding does."""

    REJECT = "reject"
    """The form itself is proof."""
    CONFIRM = "confirm"
    """Rejects if a reader finds the span foreign in its context, else is only reported. Without
    a reader, `WITHOUT_READER` decides."""
    COUNT = "count"
    """Rejects once its node has such findings more often than nodes that answered the same
    prompts, beyond chance."""
    REPORT = "report"


_REJECT, _CONFIRM, _COUNT, _REPORT = tuple(Severity)

# Honest models miscalculate, correct themselves and word things carelessly: none is an attack.
ARITHMETIC: Final[Mapping[str, Severity]] = {
    "wrong_equation": _REJECT,  # although the final answer is right
    "wrong_among_many": _COUNT,
    "wrong_without_gain": _REPORT,
    # Not parsed completely: the unparsed neighbourhood may change its value.
    "doubtful_equation": _REPORT,
    "taken_back": _COUNT,
    "wrong_textual": _COUNT,
    "wrong_inequality": _COUNT,
}

# Models differ in how they write an answer, and in how they spell a unit.
ANSWER_WORDS: Final[Mapping[str, Severity]] = {"answer_words": _COUNT}

# What honest text never contains. After a box, chat models continue as they like, and
# servers that do not know a stop token leave dozens of them at the end.
SCREENS: Final[Mapping[str, Severity]] = (
    {"after_box": _REPORT, "end_marks": _REPORT}
    | dict.fromkeys(
        (
            "template_token",
            "invisible",
            "tag_character",
            "variation_selector",
            "combining",
            "bidi",
            "control",
            "blank_run",
            "hidden_markup",
            "homoglyph",
            "several_answers",  # a reader model would find each of them plausible
            "judge_delimiter",
            "master_key",
            "grader_order",
            "encoded",
        ),
        _REJECT,
    )
    | dict.fromkeys(
        # Honest models write these too: a term of another language, a remark after the answer, one
        # syllable without end.
        ("script_switch", "language_switch", "after_answer", "overlong_token"),
        _CONFIRM,
    )
)

CODE: Final[Mapping[str, Severity]] = {
    # More than a solution needs.
    "dynamic_code": _REJECT,
    "instruction": _REJECT,
    "module_member": _REJECT,
    "operator_library": _REJECT,
    "stalls": _REJECT,
    "unlisted_import": _REJECT,
    # Deep nesting must not be a way to avoid being read.
    "nested_too_deeply": _REJECT,
    # Honest beginners write it, and honest answers show other languages.
    "operator_helper": _REPORT,
    "unread_language": _REPORT,
}

# For nodes with the same weights; if models differ, length scales the reward instead.
LENGTH: Final[Mapping[str, Severity]] = {
    "long": _REJECT,
    "long_node": _REJECT,
    "redundant": _REJECT,
}

# What one node repeats across prompts; counting happens before the finding is made.
RECURRENCE: Final[Mapping[str, Severity]] = {
    # Importing an unknown package is not a habit of style.
    "recurring_identifier": _REJECT,
    "recurring_opening": _CONFIRM,
    "recurring_phrase": _CONFIRM,
    "recurring_shape": _REJECT,
    # In a language that the lists do not cover, where every word is unusual: only a reader can
    # tell a habit from a slogan.
    "recurring_unlisted": _CONFIRM,
}

# Of optional rules (`grpo_guard.content.extras`), which no preset uses.
SECRETS: Final[Mapping[str, Severity]] = {"secret": _REJECT}
PII: Final[Mapping[str, Severity]] = {"personal_data": _REJECT}
LANGUAGE: Final[Mapping[str, Severity]] = {"other_language": _REJECT}
TOXICITY: Final[Mapping[str, Severity]] = {"toxic": _REJECT}

SEVERITY: Final[Mapping[str, Severity]] = {
    **ARITHMETIC,
    **ANSWER_WORDS,
    **SCREENS,
    **CODE,
    **LENGTH,
    **RECURRENCE,
    **SECRETS,
    **PII,
    **LANGUAGE,
    **TOXICITY,
}
"""Every kind that a rule can find."""

WITHOUT_READER: Final[Mapping[str, Severity]] = dict.fromkeys(
    (
        "recurring_opening",
        "recurring_phrase",
        "script_switch",
        "language_switch",
        "after_answer",
    ),
    _REJECT,
)
"""What kinds of severity ``confirm`` do without a reader; kinds not listed here are reported."""
