r"""Decode the escapes of JSON inside a completion without moving anything.

Some tasks ask for answers as JSON, in which each line break is written ``\n`` and each LaTeX
command has two backslashes. Rules must see the text that a consumer of the JSON sees. Each run of
escapes is replaced by the characters it encodes, padded with blanks to its old length, so that
finding spans still refer to the original completion.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from grpo_guard.content.endings import without_end_marks
from grpo_guard.core.completion import Completion

# At the start of a text or of a fence. A key, or a text that is one string, is enough to count as
# JSON: models forget to escape something or are cut off, and a strict parser would refuse that.
_BEGIN: Final = re.compile(
    r'(?:\A|```(?:json|JSON)?(?=[ \t\r]*\n))\s*+(?=(?:[\[{]\s*+)++"[^"\\\n]{1,80}"\s*+:)'
    r'|\A\s*+(?="(?s:.*)"\s*\Z)'
)
# Skips LaTeX commands whose backslash was not escaped: "\neq" is not a line break before "eq".
_ESCAPES: Final = re.compile(
    r"(?:\\(?:[\"/\\]|u[0-9a-fA-F]{4}|t(?![a-z])|r(?![a-z])|n(?!(?:"
    r"e|eq|eg|u|i|abla|ot|otin|mid|parallel|subseteq|ewline|onumber|cong|leq|geq)(?![a-z]))))++"
)
_ONE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_MEANT: Final = {"n": "\n", "t": "\t", "r": "\n"}


def json_parts(text: str) -> Iterator[tuple[int, int]]:
    """Yield spans of JSON in a text: all of it, or the content of its fences; linear time."""
    end = 0
    for begin in _BEGIN.finditer(text):
        if begin.end() >= end:
            close = text.find("```", begin.end())
            end = len(text) if close < 0 else close
            yield begin.end(), end


def as_read(completion: Completion) -> Completion:
    """The completion without marks of its end, with the escapes in its JSON decoded.

    The same object if nothing changes.
    """
    text = without_end_marks(completion.text)
    if "\\" not in text or '"' not in text:
        return completion if text == completion.text else replace(completion, text=text)
    pieces, at = [], 0
    for start, end in json_parts(text):
        pieces += [text[at:start], _ESCAPES.sub(_meant, text[start:end])]
        at = end
    read = "".join([*pieces, text[at:]])
    return completion if read == completion.text else replace(completion, text=read)


def _meant(run: re.Match[str]) -> str:
    """Decode a run of escapes and pad the result with blanks on the left to the same length."""
    decoded = "".join(_character(one) for one in _ONE.finditer(run[0]))
    decoded = decoded.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return decoded.rjust(len(run[0]))


def _character(one: re.Match[str]) -> str:
    return chr(int(one[1], 16)) if one[1] else _MEANT.get(one[2], one[2])
