"""`Block`, a stretch that could be Python, and programs that share a line with what precedes them.

A program after a JSON quote, a tag, a label or the mark of a diff starts a new line when it is run,
so it has to start one here too. All functions preserve the length of the text, so that spans refer
to the completion.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from grpo_guard.content.json_text import Span
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
    "sol css scss vue svelte rust c cpp c++ ruby php lua codeql ql csharp c# fsharp f# r matlab "
    "sql elixir erlang clojure zig crystal gdscript"
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
    r"fn[ \t]++\w++[ \t]*+[<(]|func[ \t]++\w++[ \t]*+\(|package[ \t]++[\w.]++;?[ \t]*+$|"
    r"import[ \t]++(?:static[ \t]++)?\w++(?:\.[\w*]++)++;[ \t]*+$|"
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
    def foreign(self) -> bool:
        """Whether the block is in another language with imports like Python's; if it does not parse
        either, nobody runs it as Python."""
        if self.label:
            return self.label in IMPORT_ALIKE
        return not self.bare and self.language is not None

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


# A single line is as often a sentence or a search as a program, except under one of these keys.
_KEYED: Final = re.compile(
    r'"\s*+(?:code|source|source_code|script|python|python_code|program|cell|snippet)\s*+"\s*+:'
    r'[\s\[]*+"\Z'
)
# The separator between two lines of a notebook cell.
_SEAM: Final = re.compile(r'\n"\s{0,80}+,\s{0,80}+"')
_FENCE: Final = re.compile(r"^[ \t]*+(?:`{3,}+|~{3,}+)", re.M)
# Not Python: statements that end in a semicolon or a brace, and declarations.
_OTHER: Final = re.compile(
    r"[;{][ \t]*+$|^[ \t]*+(?:#include|<\?php|(?:export|const|let|var|val|func|fun|fn|pub|public"
    r"|private|namespace|using|struct|module|object|package|interface|impl|use|echo|proc|theorem|lemma"
    r"|example|inductive|structure|open)[ \t]++[\w{*:\"']"
    r"|import[ \t]++(?:type|static|qualified)\b|import\b[^\r\n]{1,200}\bfrom[ \t]++['\"])",
    re.M,
)
# What can directly precede an import: a tag, the label of a call, a notebook prompt.
_LEAD: Final = re.compile(
    r"(?:<[^<>\n]{1,60}(>)|^[ \t*]{0,8}+(?:Action(?: Input)?|(?:Tool )?Input|Code|Arguments"
    r"|In \[\d{1,4}\])[ \t*]{0,4}+(:))(?=[ \t]{0,8}+(?:import[ \t]|from[ \t]"
    r"|(?:\w{1,30}+[ \t]{0,4}+=[ \t]{0,4}+)?+(?:exec[ \t]{0,4}+\(|__import__|importlib\.)))",
    re.M | re.I,
)
_NEXT_LINE: Final = re.compile(r"^[ \t]{1,12}+\.\.\.:", re.M)
_TAIL: Final = re.compile(r"(?<=[^\s<>])(<)(?=/(?:parameter|arg|code|invoke|function)\w*>)")
_HUNK: Final = re.compile(
    r"^@@ -\d[^\n]{0,200}\n(?:(?!@@|---[ ]|\+\+\+[ ])[-+ \\][^\n]*+(?:\n|\Z)|\n){1,100000}+", re.M
)
_HEADER: Final = re.compile(r"^\+\+\+[ \t]++([^\s]{1,200})", re.M)
_MARK: Final = re.compile(r"^(?:[+ ](?!\+\+[ ])|-|\+|@|diff |index |\\)", re.M)


def in_strings(text: str, strings: Sequence[Span]) -> list[Block]:
    """Return the programs among the JSON strings of a completion.

    If there are too many programs, the last block holds the rest of the text.
    """
    blocks: list[Block] = []
    for start, end in _joined(text, strings):
        if len(blocks) > 8 * MAX_BLOCKS:
            return [*blocks, Block(text[start:], start, False, bare=True)]
        piece = _as_lines(text[start:end])
        fence = _FENCE.search(piece)
        # Fenced code is found separately.
        piece = piece[: fence.start()] if fence else piece
        score = 0
        for line in piece.splitlines():
            score += reads_like_python(line[:2000])
            if score >= 2:
                break
        if score >= 2 or (score and _KEYED.search(text, max(0, start - 80), start)):
            label = UNNAMED if _OTHER.search(piece) else ""
            label = "lean" if "import Mathlib" in piece else label
            blocks.append(Block(piece, start, False, label, bare=True))
    return blocks


def _joined(text: str, strings: Sequence[Span]) -> list[Span]:
    """Join consecutive list strings that end in line breaks, because they form a notebook cell."""
    spans: list[Span] = []
    for start, end in strings:
        if spans and _SEAM.fullmatch(text, spans[-1][1] - 1, start):
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans


def _as_lines(piece: str) -> str:
    """Return the lines of a notebook cell, with the quotes and commas between them blanked out."""
    return _SEAM.sub(lambda seam: " " * (len(seam[0]) - 1) + "\n", piece)


def unwrapped(text: str) -> str:
    """Return the text with embedded programs at line starts, and with diffs as their new version.

    A line break is put at the end of any tag or label directly followed by an import.
    """
    if "import" in text or "exec" in text:
        text = _LEAD.sub(lambda lead: lead[0][:-1] + "\n", text)
        text = _TAIL.sub("\n", text) if "</" in text else text
    if "...:" in text:
        text = _NEXT_LINE.sub(lambda lead: lead[0][:-1].replace(".", " ") + "\n", text)
    return _HUNK.sub(_added, text) if "\n@@ -" in text or text.startswith("@@ -") else text


def _added(hunk: re.Match[str]) -> str:
    at = hunk.string.rfind("+++ ", max(0, hunk.start() - 300), hunk.start())
    header = _HEADER.match(hunk.string, at) if at >= 0 else None
    return _new(hunk[0]) if _is_python(header[1] if header else "", hunk[0]) else hunk[0]


def _is_python(name: str, lines: str) -> bool:
    ending = name.rpartition("/")[2].rpartition(".")[2].lower() if "." in name else ""
    return ending in ("py", "pyi", "ipynb") if ending else _OTHER.search(_new(lines)) is None


def _new(lines: str) -> str:
    """Return the new version of a diff's lines.

    The mark of each line that is kept becomes a line break, and the marks of all other lines become
    comment signs.
    """
    return _MARK.sub(lambda m: ("\n" if m[0] in ("+", " ") else "#").ljust(len(m[0])), lines)


def plain_diff(source: str) -> str:
    """Return a fenced diff with its Python files as their new version."""
    edges = [m.start() for m in _HEADER.finditer(source)]
    pieces = []
    for start, end in zip([0, *edges], [*edges, len(source)], strict=True):
        piece = source[start:end]
        header = _HEADER.match(piece)
        python = _is_python(header[1] if header else "", piece) if piece.strip() else False
        pieces.append(_new(piece) if python else piece)
    return "".join(pieces)
