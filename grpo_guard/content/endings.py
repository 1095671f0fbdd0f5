"""End-of-text marks written out at the very end of a completion.

A server that does not know a model's stop token leaves it in the text, often many times over.
Nothing follows these marks, so they cannot start another turn, and all rules read the text without
them. In the middle of the text, the same mark is a finding (`screens.markup`). More than `FEW`
marks at the end are reported, because padding with them is an attack, and only the last `MOST` are
stripped.
"""

from dataclasses import replace
from typing import Final

from grpo_guard.core.verdict import Cause, Finding, Verdict, reject

FEW: Final = 8
"""Maximum number of marks at the end of the text that go unreported."""
MOST: Final = 512
"""Maximum number of marks stripped from the end of the text. If a batch is padded to its longest
answer, shorter answers end with one mark per missing token; published answers have up to 147.
"""
_TAIL: Final = 64 * MOST
"""Number of characters at the end of the text that are searched for marks, to bound the time."""
_MARKS: Final = (
    "</s>", "<eos>", "<end_of_turn>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>",
    "<|end_of_text|>", "<|end|>", "<|return|>", "<|endofturn|>", "<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>", "<eoa>", "<eod>", "<eom>", "<eot>", "<|EOT|>", "<|eos|>",
)  # fmt: skip


def without_end_marks(text: str) -> str:
    """Strip up to `MOST` marks from the end of the text; returns the same object if none."""
    return text[: _ending(text)[0]]


def end_marks_noted(verdict: Verdict, text: str) -> Verdict:
    """Add a finding to the verdict if the text ends with more than `FEW` marks.

    The verdict is for the text with its end marks stripped.
    """
    start, count = _ending(text)
    if count <= FEW or not (verdict.accepted or verdict.findings):
        return verdict
    least = "at least " if count == MOST else ""
    message = f"ends with {least}{count} end tokens"
    finding = Finding("end_marks", message, char_span=(start, len(text)))
    if verdict.rejected:
        return replace(verdict, findings=(*verdict.findings, finding))
    return reject(verdict.verifier, Cause.SCREENED, findings=(*verdict.findings, finding))


def _ending(text: str) -> tuple[int, int]:
    """Return where the last `MOST` marks at the end of the text begin, and how many there are."""
    tail, count = text[-_TAIL:], 0
    rest = tail
    while count < MOST:
        marked = rest.rstrip()
        mark = next(filter(marked.endswith, _MARKS), None)
        if mark is None:
            break
        rest, count = marked[: -len(mark)], count + 1
    return len(text) - len(tail) + len(rest), count
