"""Comments, strings, names and characters that say or hide more than the question needs."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from grpo_guard.content.code.instructions import SKELETON, address, instruction
from grpo_guard.content.code.modules import Modules
from grpo_guard.content.code.note import Note
from grpo_guard.content.code.payloads import encoded_text, hidden_code
from grpo_guard.content.code.program import Program
from grpo_guard.content.code.source import Source
from grpo_guard.content.code.texts import Texts

_COOKIE: Final = re.compile(r"^[ \t\f]*#[^\r\n]{0,200}?coding[:=][ \t]*([-\w.]{1,60})")
_COMMENTED_IMPORT: Final = re.compile(
    r"(?:#|[:;`\"'])[ \t#]{0,20}(?:from[ \t]{1,4}(\.{0,4}[^\W\d][\w.]{0,80})[ \t]{1,4}import"
    r"[ \t]{1,4}[\w*]|import[ \t]{1,4}(?:([^\W\d][\w.]{0,80})[ \t]{1,4}as[ \t]{1,4}\w{1,80}|"
    r"([^\W\d][\w.]{0,80}))[ \t]*$)"
)
_INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\u2028\u2029\ufe00-\ufe0e\ufeff\uffa0\U000e0000-\U000e01ef]|(?<![\U0001f000-\U0001faff\u2600-\u27bf])\ufe0f"
)
# Blanks and tabs by turns at the end of a line are bits; nobody types them.
_TRAILING: Final = re.compile(r"(?<![ \t])[ \t]{8,}+(?=[\r\n]|\Z)")
# O0O0OO and lI1lI1 are made to be mistaken for each other.
_LOOKALIKES: Final = re.compile(r"(?<!\S)(?:[O0oQ_]{5,}+|[lI1i_]{5,}+)(?!\S)")
_LONG_NAME: Final = re.compile(r"(?<!\S)(?:[^\W_]++_){3}")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f\x1b]")


def check_words(
    program: Program | None, texts: Texts, source: Source, modules: Modules, shift: int
) -> list[Note]:
    """Notes about the words and characters of a block; ``program`` is None where it is broken."""
    notes = _characters(source)
    searched = texts.may_instruct or texts.may_encode or texts.may_hold_code
    for start, end, text in texts.comments if searched else ():
        notes += _comment(text, start, end, texts, modules)
    if texts.may_instruct and not any(note.kind == "instruction" for note in notes):
        for start, end, text in texts.paragraphs(source):
            if said := instruction(text):
                notes.append(Note("instruction", said, start, end))
    if program is not None:
        notes += _strings(program, texts, source, shift)
        notes += _identifiers(program, source, shift)
    return notes + _coding(source)


def _strings(program: Program, texts: Texts, source: Source, shift: int) -> list[Note]:
    notes: list[Note] = []
    for node, text, _ in texts.strings:
        if not text.isascii() and (invisible := _INVISIBLE.search(text)):
            message = f"a string holds the invisible character U+{ord(invisible[0]):04X}"
            notes.append(Note("invisible_character", message, *source.span(node, shift)))
        if not texts.may_instruct:
            continue
        if said := instruction(text):
            notes.append(Note("instruction", said, *source.span(node, shift)))
        elif link := address(text):
            span = source.span(node, shift)
            notes.append(Note("address", link, *span))
    if texts.may_instruct and not notes:
        # "Please ignore " + "the previous instructions"
        for operation in program.operations[:500]:
            spelled = program.folder.text(operation)
            if spelled and len(spelled) > 12 and (said := instruction(spelled)):
                notes.append(Note("instruction", said, *source.span(operation, shift)))
                break
    return notes


def _comment(text: str, start: int, end: int, texts: Texts, modules: Modules) -> list[Note]:
    if texts.may_instruct and (said := instruction(text)):
        return [Note("instruction", said, start, end)]
    if texts.may_encode and (encoded := encoded_text(text)):
        return [Note("encoded_payload", encoded, start, end)]
    if texts.may_instruct and (link := address(text)):
        return [Note("address", link, start, end)]
    if not texts.may_hold_code:
        return []
    if match := _COMMENTED_IMPORT.search(text):
        module = match[1] or match[2] or match[3]
        # "# import duty" is a note on prices; "# import calc" beside calc.add(...) is code.
        used = match[3] is None or module in texts.bases
        if used and not modules.allows(module):
            message = f"a comment holds an import of {module[:40]}"
            return [Note("code_in_comment", message, start, end)]
    body = text.lstrip("# ")
    if "import" in body or "__" in body or "(" in body:
        code = hidden_code(body, modules)
        if code and "import of" not in code:
            return [Note("code_in_comment", code.replace("string", "comment"), start, end)]
    return []


def _characters(source: Source) -> list[Note]:
    notes = []
    text = source.text
    first = 1 if text.startswith("\ufeff") else 0
    if not text.isascii() and (match := _INVISIBLE.search(text, first)):
        message = f"holds the invisible character U+{ord(match[0]):04X}"
        notes.append(Note("invisible_character", message, *match.span()))
    if "\t " in text:
        for blanks in _TRAILING.finditer(text):
            if blanks[0].count("\t ") + blanks[0].count(" \t") > 5:
                message = "ends a line in blanks and tabs by turns"
                notes.append(Note("invisible_character", message, *blanks.span()))
                break
    if control := _CONTROL.search(text):
        message = f"holds the control character U+{ord(control[0]):04X}"
        notes.append(Note("control_character", message, *control.span()))
    return notes


def _coding(source: Source) -> list[Note]:
    """Run from a file, a program under another coding is another program: rot13, utf-7."""
    if "coding" not in source.text[:1200]:
        return []
    lines = re.split(r"\r\n|\r|\n", source.text[:1200].lstrip("\r\n")[:1000])[:2]
    for line in lines:
        match = _COOKIE.match(line)
        if match and match[1].lower().replace("_", "-") not in (
            "utf-8", "utf8", "ascii", "us-ascii", "latin-1", "iso-8859-1", "utf-8-sig",
        ):  # fmt: skip
            at = max(0, source.text.find(line))
            message = f"declares the source coding {match[1][:40]!r}"
            return [Note("source_coding", message, at, at + len(line))]
    return []


def _identifiers(program: Program, source: Source, shift: int) -> list[Note]:
    """Names that look like other names. The parser already reads full-width letters as plain."""
    notes = []
    listed = " ".join(program.identifiers)
    if _LOOKALIKES.search(listed) or _LONG_NAME.search(listed):
        notes += _odd_names(program, source, shift)
    if source.text.isascii():
        return notes
    for name, node in program.identifiers.items():
        if name.isascii():
            continue
        skeleton = unicodedata.normalize("NFKC", name).translate(SKELETON)
        mixed = any("CYRILLIC" in _name(c) or "ARMENIAN" in _name(c) for c in name) and any(
            "LATIN" in _name(c) for c in name
        )
        if mixed or (skeleton.isascii() and (len(skeleton) > 2 or skeleton in program.identifiers)):
            message = f"the name {name[:40]!r} looks like {skeleton[:40]!r}"
            notes.append(Note("homoglyph", message, *source.span(node, shift)))
    disguised = re.search(r"[\uff21-\uff3a\uff41-\uff5a\U0001d400-\U0001d7ff]", source.text)
    if disguised and _in_code(disguised.start(), program, source, shift):
        message = "writes a name in letters that only look plain"
        notes.append(Note("homoglyph", message, *disguised.span()))
    return notes


def _odd_names(program: Program, source: Source, shift: int) -> list[Note]:
    """Names of letters that look alike, and names that are a sentence."""
    notes = []
    for name, node in program.identifiers.items():
        if _LOOKALIKES.fullmatch(name) and len(set(name.strip("_"))) > 1:
            message = f"the name {name[:40]!r} is made of letters that look alike"
            notes.append(Note("homoglyph", message, *source.span(node, shift)))
        elif name.count("_") > 2 and (said := instruction(name.replace("_", " ")[:500])):
            notes.append(Note("instruction", said, *source.span(node, shift)))
    return notes


def _in_code(at: int, program: Program, source: Source, shift: int) -> bool:
    """Whether a character stands outside comments and strings."""
    if any(start <= at < end for start, end in source.comments):
        return False
    return not any(a <= at < b for a, b in (source.span(node, shift) for node in program.texts))


def _name(character: str) -> str:
    return unicodedata.name(character, "")
