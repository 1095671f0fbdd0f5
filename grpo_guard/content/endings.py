"""End-of-text marks that are written out at the very end of a completion.

A server that does not know a model's stop token leaves it in the text, often many times. Nothing
follows these marks that they could turn into another turn, so all rules read the text before them.
The same mark in the middle of a text is a finding (`screens.markup`). More than `FEW` marks at the
end are reported, since padding with them is an attack, and only the last `MOST` are excused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from grpo_guard.core.verdict import Cause, Finding, Verdict, reject

FEW: Final = 8
"""Maximum number of marks at the end of a text that go unreported."""
MOST: Final = 512
"""Maximum number of marks at the end of a text that are excused. If a batch is padded to its
longest answer, shorter answers end with one mark per missing token: published answers have up to
147."""
_TAIL: Final = 64 * MOST
"""Number of characters at the end of a text that are searched for marks, which bounds the time."""
_MARKS: Final = (
    "</s>", "<eos>", "<end_of_turn>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>",
    "<|end_of_text|>", "<|end|>", "<|return|>", "<|endofturn|>", "<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>",
)  # fmt: skip


def without_end_marks(text: str) -> str:
    """Remove the marks at the end of a text, at most the last `MOST`. Returns the same object if
    the text ends with none."""
    return text[: _ending(text)[0]]


def end_marks_noted(verdict: Verdict, text: str) -> Verdict:
    """Add a finding to the verdict on a text without its end marks if there are more than `FEW`."""
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
    """Return where the last `MOST` marks at the end of a text begin, and how many there are."""
    tail, count = text[-_TAIL:], 0
    rest = tail
    while count < MOST:
        marked = rest.rstrip()
        mark = next(filter(marked.endswith, _MARKS), None)
        if mark is None:
            break
        rest, count = marked[: -len(mark)], count + 1
    return len(text) - len(tail) + len(rest), count
