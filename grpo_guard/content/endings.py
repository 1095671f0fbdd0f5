"""Marks of the end of a text that are written out at its very end.

A server that does not know a model's stop token leaves it in the text, often many times. Nothing
follows there that the mark could turn into another turn, so all rules read the text before it. The
same mark in the middle of a text is a finding (`screens.markup`).
"""

from __future__ import annotations

from typing import Final

_MARKS: Final = (
    "</s>", "<eos>", "<end_of_turn>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>",
    "<|end_of_text|>", "<|end|>", "<|return|>", "<|endofturn|>", "<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>",
)  # fmt: skip


def without_end_marks(text: str) -> str:
    """The text up to the marks with which it ends; the same object if it ends with none."""
    end = cut = len(text)
    while end:
        if text[end - 1].isspace():
            end -= 1
        elif mark := next((m for m in _MARKS if text.endswith(m, 0, end)), None):
            end -= len(mark)
            cut = end
        else:
            break
    return text[:cut]
