"""Marks of the end of a text that are written out at its very end.

A server that does not know a model's stop token leaves it in the text, often many times. Nothing
follows there that the mark could turn into another turn, so all rules read the text before it. The
same mark in the middle of a text is a finding (`screens.markup`). More than `FEW` marks at the end
are reported, since padding with them is an attack, and none are excused beyond `MOST`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from grpo_guard.core.verdict import Cause, Finding, Verdict, reject

FEW: Final = 8
"""Marks at the end of a text that are not worth mentioning."""
MOST: Final = 512
"""Marks at the end of a text that are excused. A batch that is padded to its longest answer leaves
as many as the others are shorter: published answers have up to 147."""
_TAIL: Final = 64 * MOST
"""Characters at the end of a text in which marks are looked for, which bounds the time."""
_MARKS: Final = (
    "</s>", "<eos>", "<end_of_turn>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>",
    "<|end_of_text|>", "<|end|>", "<|return|>", "<|endofturn|>", "<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>",
)  # fmt: skip


def without_end_marks(text: str) -> str:
    """The text up to the last `MOST` marks with which it ends; the same object if it ends with
    none."""
    return text[: _ending(text)[0]]


def end_marks_noted(verdict: Verdict, text: str) -> Verdict:
    """The verdict of a rule on a text without its end marks, with a finding if they are many."""
    start, count = _ending(text)
    if count <= FEW or not (verdict.accepted or verdict.findings):
        return verdict
    least = "at least " if count == MOST else ""
    message = f"ends with {least}{count} marks of the end of a text"
    finding = Finding("end_marks", message, char_span=(start, len(text)))
    if verdict.rejected:
        return replace(verdict, findings=(*verdict.findings, finding))
    return reject(verdict.verifier, Cause.SCREENED, findings=(*verdict.findings, finding))


def _ending(text: str) -> tuple[int, int]:
    """Where the last `MOST` marks with which a text ends begin, and how many there are."""
    tail, count = text[-_TAIL:], 0
    rest = tail
    while count < MOST:
        marked = rest.rstrip()
        mark = next(filter(marked.endswith, _MARKS), None)
        if mark is None:
            break
        rest, count = marked[: -len(mark)], count + 1
    return len(text) - len(tail) + len(rest), count
