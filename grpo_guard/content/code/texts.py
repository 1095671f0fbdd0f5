"""The comments and strings of a block, and which of the costly searches they call for."""

from __future__ import annotations

import ast
import re
from functools import cached_property
from typing import Final

from grpo_guard.content.code.instructions import may_instruct, plain, vocabulary
from grpo_guard.content.code.names import words
from grpo_guard.content.code.program import Program
from grpo_guard.content.code.source import Source

MAX_COMMENTS: Final = 5000
_CODE_WORDS: Final = words(
    "import builtins subclasses globals class eval exec compile os subprocess sys importlib open"
)
_LONG_RUN: Final = re.compile(r"\S{24}")
_BASE: Final = re.compile(r"\b([^\W\d]\w{0,80})\.\w")
_BETWEEN: Final = re.compile(r"[ \t]*(?:\r\n|\r|\n)[ \t]*")


class Texts:
    """What a block says, apart from its code.

    The words of all of it are gathered once; a search that needs one of a few words is left out
    where the whole block has none of them.

    Args:
        program: None where the block does not parse: then there are comments only.
        source: The block.
    """

    def __init__(self, program: Program | None, source: Source) -> None:
        text = source.text
        self.comments = [(a, b, text[a:b]) for a, b in source.comments[:MAX_COMMENTS]]
        self.strings: list[tuple[ast.Constant, str, bool]] = []
        for node in program.texts if program is not None else ():
            value = node.value
            if isinstance(value, bytes):
                self.strings.append((node, value.decode("latin-1"), True))
            elif isinstance(value, str):
                self.strings.append((node, value, False))
        everything = "\n".join(
            [comment for _, _, comment in self.comments] + [string for _, string, _ in self.strings]
        )
        looks = plain(everything)
        known = vocabulary(looks)
        self.may_instruct = may_instruct(looks, known)
        self.may_hold_code = not _CODE_WORDS.isdisjoint(known)
        self.may_encode = _LONG_RUN.search(everything) is not None

    @cached_property
    def bases(self) -> set[str]:
        """Names that comments use with a dot behind them: ``calc`` in ``# calc.add(2, 3)``."""
        return {name for _, _, text in self.comments for name in _BASE.findall(text)}

    def paragraphs(self, source: Source) -> list[tuple[int, int, str]]:
        """Comments on lines that follow each other, as one text: an instruction may be wrapped."""
        found: list[tuple[int, int, str]] = []
        lines: list[str] = []
        first = last = 0
        for start, end, text in self.comments:
            follows = (
                bool(lines) and start - last < 200 and _BETWEEN.fullmatch(source.text, last, start)
            )
            if not follows:
                if len(lines) > 1:
                    found.append((first, last, " ".join(lines)))
                lines, first = [], start
            lines.append(text.strip("# \t"))
            last = end
        if len(lines) > 1:
            found.append((first, last, " ".join(lines)))
        return found
