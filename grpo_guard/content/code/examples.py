"""Doctest examples: text that runs where the program hands its docstrings to ``doctest``."""

from __future__ import annotations

import re
from typing import Final

from grpo_guard.content.code.program import Program
from grpo_guard.content.code.texts import Texts

_EXAMPLE: Final = re.compile(r"^[ \t]*(?:>>>|\.\.\.)(?:[ \t]([^\r\n]*)|$)", re.M)


def examples(program: Program, texts: Texts) -> str | None:
    """The lines that ``doctest.testmod()`` would run, as a program; None where it is not imported.

    Args:
        program: What `read` found.
        texts: Its strings, docstrings among them.
    """
    imported = "doctest" in program.aliases.values()
    imported = imported or any(module == "doctest" for module, _ in program.members.values())
    if not imported:
        return None
    lines = [
        match[1] or "" for _, text, _ in texts.strings if ">>>" in text
        for match in _EXAMPLE.finditer(text)
    ]  # fmt: skip
    return "\n".join(lines)
