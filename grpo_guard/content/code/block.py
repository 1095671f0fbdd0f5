"""`Block`: a stretch of a completion that could be Python, and what a line of Python looks like."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from grpo_guard.content.word_set import word_set

MAX_BLOCKS: Final = 64
MAX_FOREIGN: Final = 20_000

_SHELL: Final = word_set(
    "bash sh shell zsh fish console terminal powershell ps1 cmd bat shell-session"
)
# Labels of fences that hold output or data rather than a program.
_SHOWN: Final = word_set(
    "text txt plaintext plain output out result results stdout stdin input log none markdown md "
    "latex tex math json jsonl yaml yml toml ini cfg csv tsv xml svg diff mermaid requirements "
    "requirements.txt pseudo pseudocode algorithm"
)
UNNAMED: Final = "an unnamed language"
# Languages with imports like Python's. If such a block does not parse, nobody runs it as Python.
IMPORT_ALIKE: Final = word_set(
    "java kotlin kt scala groovy swift haskell hs d dart elm julia jl nim js jsx javascript ts tsx "
    "typescript go golang lean lean4 coq agda idris purescript ocaml perl proto protobuf solidity "
    "sol css scss vue svelte rust c cpp c++ ruby php lua"
) | {UNNAMED}
# Modules of these languages whose import could be a line of Python: "import Mathlib".
OWN_IMPORTS: Final = {
    **dict.fromkeys(("lean", "lean4"), word_set("Mathlib Std Init Lean Batteries Aesop")),
    **dict.fromkeys(("haskell", "hs"), word_set("Control Data Numeric Prelude System Text")),
    **dict.fromkeys(("kotlin", "kt"), word_set("java kotlin kotlinx")),
    **dict.fromkeys(("java", "groovy"), word_set("java javax")),
    "scala": word_set("java scala"),
    "swift": word_set("Combine Foundation SwiftUI UIKit"),
    "elm": word_set("Browser Html"),
}
# An unlabelled foreign language: starts of lines that are neither Python nor a sentence.
_FOREIGN: Final = re.compile(
    r"^[ \t]{0,40}+(?:#include[ \t]*+[<\"]|(?:const|let|var)[ \t]++[\w{\[][^\r\n]{0,80}?=|"
    r"(?:export[ \t]++|async[ \t]++)?function[ \t]*+\w*+[ \t]*+\(|public[ \t]++(?:static|class)\b|"
    r"fn[ \t]++\w++[ \t]*+[<(]|func[ \t]++\w++[ \t]*+\(|package[ \t]++\w++;?[ \t]*+$|"
    r"console\.log\(|SELECT\b[^\r\n]{1,200}\bFROM\b|<\?php|using[ \t]++namespace\b)",
    re.M,
)
IMPORT: Final = re.compile(
    r"(?:\s|>){0,40}+(?:import[ \t]++[A-Za-z_][\w.]*+(?:[ \t]++as[ \t]++\w++)?+"
    r"(?:[ \t]*+,[ \t]*+[\w.]++(?:[ \t]++as[ \t]++\w++)?+)*+"
    r"|from[ \t]++\.*+[\w.]*+[ \t]++import[ \t]++(?:\*|\(.*+"
    r"|[A-Za-z_]\w*+(?:[ \t]++as[ \t]++\w++)?+"
    r"(?:[ \t]*+,[ \t]*+\w++(?:[ \t]++as[ \t]++\w++)?+)*+))[ \t]*+(?:[#;\\].*+)?+\s*+\Z"
)
_STATEMENT: Final = re.compile(
    r"(?:\s|>){0,40}+(?:(?:async[ \t]++)?def[ \t]++\w++[ \t]*+[\[(]|class[ \t]++\w++[ \t]*+[:(]"
    r"|@\w[\w.]*|print[ \t]*+\(|(?:for|while|if|elif|with|match)\b.*:[ \t]*+(?:#.*+)?+$|"
    r"(?:else|try|finally)[ \t]*+:|except\b.*:|return\b|raise\b|yield\b|"
    r"(?:[A-Za-z_]\w*+,[ \t]*+){0,8}+"
    r"[A-Za-z_][\w.]*+(?:\[[^\]]{0,80}\])?[ \t]*+(?::[\w\[\], .\t]++)?(?:[-+*/%]|//|\*\*)?="
    r"(?!=)[ \t]*+[^\s=]|[A-Za-z_][\w.]*+\(.*\)[ \t]*+;?$|__import__|exec[ \t]*+\()"
)


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of a completion that could be Python.

    Args:
        text: The source, as written in the completion.
        start: Offset of the first character in the completion.
        explicit: Whether the author marked the block as Python.
        label: The author's label, in lower case; empty for Python or if there is no label.
        bare: Whether the block consists of lines that read like Python but are not marked as code.
    """

    text: str
    start: int
    explicit: bool
    label: str = ""
    bare: bool = False

    @property
    def shell(self) -> bool:
        """Whether the block holds shell commands, which are only searched for words."""
        return self.label in _SHELL

    @property
    def shown(self) -> bool:
        """Whether the author labelled the block as output or data."""
        return self.label in _SHOWN

    @property
    def language(self) -> str | None:
        """The block's language if not Python; None for Python and for blocks without a program."""
        if self.label:
            return None if self.shown else self.label
        foreign = not self.explicit and _FOREIGN.search(self.text[:MAX_FOREIGN])
        return UNNAMED if foreign else None


def reads_like_python(line: str) -> int:
    """Score a line as Python; an import that continues after ``;`` scores 2, enough for a block."""
    if "import" in line and IMPORT.match(line):
        return 2 if ";" in line else 1
    return 1 if _STATEMENT.match(line) else 0
