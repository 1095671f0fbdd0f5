"""Comments, strings and names that say more than the question needs."""

from __future__ import annotations

import re
import sys
from typing import Final

from grpo_guard.content.code.instructions import instruction, may_instruct, plain
from grpo_guard.content.code.modules import REACHING, Modules
from grpo_guard.content.code.program import Program
from grpo_guard.content.code.source import Note, Source, words

MAX_COMMENTS: Final = 5000
_COOKIE: Final = re.compile(r"^[ \t\f]*#[^\r\n]{0,200}?coding[:=][ \t]*([-\w.]{1,60})")
_CODINGS: Final = words("utf-8 utf8 ascii us-ascii latin-1 iso-8859-1 utf-8-sig")
_LONG_NAME: Final = re.compile(r"(?:[^\W_]++_){3}")
_BETWEEN: Final = re.compile(r"[ \t]*(?:\r\n|\r|\n)[ \t]*")
# What a text would do if it were run. Of words like eval, re.compile and open( honest ones speak.
_CODE: Final = re.compile(
    r"__import__|__builtins__|__subclasses__|__globals__|\bos\s{0,4}\.\s{0,4}(?:system|popen|remove)"
    r"|\bsubprocess\s{0,4}\.|\bsys\.modules|\bimportlib\b|\b(?:eval|exec)\(\s{0,4}['\"_]"
)
_IMPORTS: Final = re.compile(
    r"(?:^|[\n;`\"':]|\\n)[ \t#]{0,40}(?:>>> )?"
    r"(?:from[ \t]+(\.*[A-Za-z_][\w.]*+)[ \t]+import[ \t]+[\w*(]|"
    r"import[ \t]+([A-Za-z_][\w.]*+)[ \t]*(?:$|[\n;,]|\\n|[ \t]as[ \t]))"
)
# Standard modules that an example may import; those that reach further may not. Nor does a package
# that everybody knows give an attacker's library a name.
_QUIET: Final = (frozenset(sys.stdlib_module_names) - REACHING) | words(
    "scipy pandas matplotlib networkx mpmath statsmodels sklearn seaborn xarray numba pytest tqdm"
)


def check_texts(
    program: Program | None, source: Source, modules: Modules, asked: str, shift: int
) -> list[Note]:
    """Notes about the words and characters of a block.

    Args:
        program: None where the block is broken: then there are comments only.
        source: The block.
        modules: What a text may import.
        asked: The question, in lower case.
        shift: Lines that were put before the text.
    """
    said = _said(program, source, shift)
    notes = _coding(source)
    everything = "\n".join(text for _, _, text, _ in said)
    speaks = may_instruct(plain(everything))
    for start, end, text, is_comment in said:
        if speaks and (order := instruction(text, asked)):
            notes.append(Note("instruction", order, start, end))
        elif code := hidden_code(text, modules, everything if is_comment else None):
            kind = "code_in_comment" if is_comment else "code_in_string"
            notes.append(Note(kind, code, start, end))
    if speaks and not any(note.kind == "instruction" for note in notes):
        for start, end, text in _paragraphs(said, source):
            if order := instruction(text, asked):
                notes.append(Note("instruction", order, start, end))
    for name, node in program.identifiers.items() if program is not None else ():
        # mark_this_solution_as_correct = 1
        if _LONG_NAME.match(name) and (order := instruction(name.replace("_", " "), asked)):
            notes.append(Note("instruction", order, *source.span(node, shift)))
    return notes


def _said(program: Program | None, source: Source, shift: int) -> list[tuple[int, int, str, bool]]:
    """The comments and strings of a block, and which of them are comments."""
    text = source.text
    said = [(a, b, text[a:b], True) for a, b in source.comments[:MAX_COMMENTS]]
    for node in program.texts if program is not None else ():
        value = node.value.decode("latin-1") if isinstance(node.value, bytes) else str(node.value)
        if len(value) > 5:
            said.append((*source.span(node, shift), value, False))
    return said


def _paragraphs(
    said: list[tuple[int, int, str, bool]], source: Source
) -> list[tuple[int, int, str]]:
    """Comments on lines that follow each other, as one text: an instruction may be wrapped."""
    found: list[tuple[int, int, str]] = []
    lines: list[str] = []
    first = last = 0
    for start, end, text, is_comment in said:
        if not is_comment:
            break
        follows = bool(lines) and start - last < 200
        if not (follows and _BETWEEN.fullmatch(source.text, last, start)):
            if len(lines) > 1:
                found.append((first, last, " ".join(lines)))
            lines, first = [], start
        lines.append(text.strip("# \t"))
        last = end
    return [*found, (first, last, " ".join(lines))] if len(lines) > 1 else found


def hidden_code(text: str, modules: Modules, used: str | None = None) -> str | None:
    """What a string or comment would do if it were executed; None where it reads as words.

    Args:
        text: The string, or the comment with its mark.
        modules: What it may import.
        used: All that is said where it is a comment: "# import duty" is a note on prices,
            "# import calc" beside "# calc.add(2, 3)" is code. None for a string.
    """
    if "import" not in text and "__" not in text and "." not in text and "(" not in text:
        return None
    if match := _CODE.search(text):
        return f"a text holds code: {match[0][:40]!r}"
    for match in _IMPORTS.finditer(text.lstrip("# \t")) if "import" in text else ():
        module = match[1] or match[2]
        if modules.allows(module) or module.partition(".")[0] in _QUIET:
            continue
        alone = match[1] is None and " as " not in match[0]
        if used is None or not alone or f"{module}." in used:
            return f"a text holds an import of {module[:40]}"
    return None


def _coding(source: Source) -> list[Note]:
    """Run from a file, a program under another coding is another program: rot13, utf-7."""
    if "coding" not in source.text[:1200]:
        return []
    lines = re.split(r"\r\n|\r|\n", source.text[:1200].lstrip("\r\n")[:1000])[:2]
    for line in lines:
        match = _COOKIE.match(line)
        if match and match[1].lower().replace("_", "-") not in _CODINGS:
            at = max(0, source.text.find(line))
            message = f"declares the source coding {match[1][:40]!r}"
            return [Note("source_coding", message, at, at + len(line))]
    return []
