"""What each kind of finding does to the completion that has it: one table for all rules.

Rules find and do not decide. A kind whose weight depends on where it stands is two kinds, so that
this table, or what a user puts in its place, has the last word.
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
    """Rejects where a reader finds the span foreign in its place, else is reported. Without a
    reader the kind does what `WITHOUT_READER` says."""
    COUNT = "count"
    """Rejects once its node has such findings more often than those who answered the same prompts,
    beyond chance."""
    REPORT = "report"


_REJECT, _CONFIRM, _COUNT, _REPORT = tuple(Severity)

# Honest models miscalculate, correct themselves and are careless in words: each alone is no attack.
ARITHMETIC: Final[Mapping[str, Severity]] = {
    "wrong_equation": _REJECT,  # and the answer is right all the same
    "wrong_among_many": _COUNT,
    "wrong_without_gain": _REPORT,
    # Not read whole: what stands beside it may change its value.
    "doubtful_equation": _REPORT,
    "taken_back": _COUNT,
    "wrong_textual": _COUNT,
    "wrong_inequality": _COUNT,
}

# Models differ in how they write an answer, and a unit that the question spells otherwise is none.
ANSWER_WORDS: Final[Mapping[str, Severity]] = {"answer_words": _COUNT}

# What honest text never has. Behind a box chat models go on as they like.
SCREENS: Final[Mapping[str, Severity]] = (
    {"after_box": _REPORT}
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
            "several_answers",  # a reader would find each of them in its place
            "judge_delimiter",
            "master_key",
            "grader_order",
            "encoded",
            "overlong_token",
        ),
        _REJECT,
    )
    | dict.fromkeys(
        # Honest models write these, too: a term of another language, a remark behind the answer.
        ("script_switch", "language_switch", "after_answer"),
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
    # Deep nesting must not be a way out of being read.
    "nested_too_deeply": _REJECT,
    # Honest beginners write it, and honest answers show other languages.
    "operator_helper": _REPORT,
    "unread_language": _REPORT,
}

# For nodes of the same weights; where models differ, length costs a factor of the reward.
LENGTH: Final[Mapping[str, Severity]] = {
    "long": _REJECT,
    "long_node": _REJECT,
    "redundant": _REJECT,
}

# What one node repeats from prompt to prompt; it is counted before it is found.
RECURRENCE: Final[Mapping[str, Severity]] = {
    # An import of an unknown package is no habit of words.
    "recurring_identifier": _REJECT,
    "recurring_opening": _CONFIRM,
    "recurring_phrase": _CONFIRM,
    "recurring_shape": _REJECT,
}

SEVERITY: Final[Mapping[str, Severity]] = {
    **ARITHMETIC,
    **ANSWER_WORDS,
    **SCREENS,
    **CODE,
    **LENGTH,
    **RECURRENCE,
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
"""What kinds of severity ``confirm`` do where no reader is asked; those left out are reported."""
