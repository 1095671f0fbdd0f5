r"""JSON in a completion, with its escapes read, place by place.

Tasks ask for answers as JSON, in which each line break is written ``\n`` and each LaTeX command has
two backslashes. Rules have to read the text that a consumer of the JSON reads. Each escape becomes
blanks and the character that it means, as long as the escape was, so that the spans of findings
stay those of the completion.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from grpo_guard.completion import Completion

# At the beginning of a text or of a fence. What holds a key counts as JSON, or one string does:
# models forget to escape something, or are cut off, and no strict parser forgives that.
_BEGIN: Final = re.compile(
    r'(?:\A|```(?:json|JSON)?(?=[ \t\r]*\n))\s*+(?=(?:[\[{]\s*+)++"[^"\\\n]{1,80}"\s*+:)'
    r'|\A\s*+(?="(?s:.*)"\s*\Z)'
)
# Commands of LaTeX whose backslash was not escaped: "\neq" is no line break before "eq".
_ESCAPES: Final = re.compile(
    r"(?:\\(?:[\"/\\]|u[0-9a-fA-F]{4}|t(?![a-z])|r(?![a-z])|n(?!(?:"
    r"e|eq|eg|u|i|abla|ot|otin|mid|parallel|subseteq|ewline|onumber|cong|leq|geq)(?![a-z]))))++"
)
_ONE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_MEANT: Final = {"n": "\n", "t": "\t", "r": "\n"}


def json_parts(text: str) -> Iterator[tuple[int, int]]:
    """Where JSON begins and ends in a text: all of it, or what its fences hold; linear time."""
    end = 0
    for begin in _BEGIN.finditer(text):
        if begin.end() >= end:
            close = text.find("```", begin.end())
            end = len(text) if close < 0 else close
            yield begin.end(), end


def as_read(completion: Completion) -> Completion:
    """The completion as one reads it: itself, but for JSON, whose escapes are read."""
    text = completion.text
    if "\\" not in text or '"' not in text:
        return completion
    pieces, at = [], 0
    for start, end in json_parts(text):
        pieces += [text[at:start], _ESCAPES.sub(_meant, text[start:end])]
        at = end
    read = "".join([*pieces, text[at:]])
    return completion if read == text else replace(completion, text=read)


def _meant(run: re.Match[str]) -> str:
    """What a run of escapes means, behind as many blanks as it is shorter."""
    said = "".join(_character(one) for one in _ONE.finditer(run[0]))
    said = said.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return said.rjust(len(run[0]))


def _character(one: re.Match[str]) -> str:
    return chr(int(one[1], 16)) if one[1] else _MEANT.get(one[2], one[2])
