"""Comments, strings, names and characters that say or hide more than the question needs."""

from __future__ import annotations

import base64
import builtins
import re
import sys
import unicodedata
from collections.abc import Callable
from itertools import islice
from typing import Final

from grpo_guard.content.code.instructions import (
    address,
    instruction,
    may_instruct,
    plain,
)
from grpo_guard.content.code.modules import REACHING, Modules
from grpo_guard.content.code.note import Note, words
from grpo_guard.content.code.program import Program, integer_of
from grpo_guard.content.code.source import Source

MAX_COMMENTS: Final = 5000
_COOKIE: Final = re.compile(r"^[ \t\f]*#[^\r\n]{0,200}?coding[:=][ \t]*([-\w.]{1,60})")
_CODINGS: Final = words("utf-8 utf8 ascii us-ascii latin-1 iso-8859-1 utf-8-sig")
_INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\u2028\u2029\ufe00-\ufe0e\ufeff\uffa0\U000e0000-\U000e01ef]|(?<![\U0001f000-\U0001faff\u2600-\u27bf])\ufe0f"
)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f\x1b]")
_LONG_NAME: Final = re.compile(r"(?:[^\W_]++_){3}")
_BETWEEN: Final = re.compile(r"[ \t]*(?:\r\n|\r|\n)[ \t]*")
_RUN: Final = re.compile(r"[A-Za-z0-9+/=_!#$%&()*;<>?@^`{|}~-]{24,}+")
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
        asked: The question.
        shift: Lines that were put before the text.
    """
    said = _said(program, source, shift)
    notes = _characters(source, said) + _coding(source)
    everything = "\n".join(text for _, _, text, _ in said)
    speaks = may_instruct(plain(everything))
    for start, end, text, is_comment in said:
        if speaks and (order := instruction(text, asked)):
            notes.append(Note("instruction", order, start, end))
        elif code := hidden_code(text, modules, everything if is_comment else None):
            kind = "code_in_comment" if is_comment else "code_in_string"
            notes.append(Note(kind, code, start, end))
        elif encoded := _encoded(text):
            notes.append(Note("encoded_payload", encoded, start, end))
        elif speaks and (link := address(text)):
            notes.append(Note("address", link, start, end))
    if speaks and not any(note.kind == "instruction" for note in notes):
        for start, end, text in _paragraphs(said, source):
            if order := instruction(text, asked):
                notes.append(Note("instruction", order, start, end))
    if program is not None:
        notes += _numbers(program, source, modules, shift)
        notes += _identifiers(program, source, asked, shift)
    return notes


def _said(program: Program | None, source: Source, shift: int) -> list[tuple[int, int, str, bool]]:
    """The comments and strings of a block, and which of them are comments."""
    text = source.text
    said = [(a, b, text[a:b], True) for a, b in source.comments[:MAX_COMMENTS]]
    for node in program.texts if program is not None else ():
        value = node.value.decode("latin-1") if isinstance(node.value, bytes) else str(node.value)
        if len(value) > 5 or not value.isascii():
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


def _encoded(text: str) -> str | None:
    """What a text spells that only a decoder reads: hexadecimal, base64 or base85 of a text. A
    checksum or an identifier decodes to no text."""
    if len(text) < 24:
        return None
    for match in islice(_RUN.finditer(text), 20):
        run = match[0][:2000]
        for decode in _DECODERS:
            try:
                spelled = decode(run)
            except ValueError:
                continue
            if len(spelled) >= 12 and _is_text(spelled):
                return f"{len(run)} characters that spell {spelled[:30].decode('latin-1')!r}"
    return None


def _base64(run: str) -> bytes:
    body = run.rstrip("=")
    return base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)


def _standard64(run: str) -> bytes:
    body = run.rstrip("=")
    return base64.b64decode(body + "=" * (-len(body) % 4), validate=True)


_DECODERS: Final[tuple[Callable[[str], bytes], ...]] = (
    bytes.fromhex,
    _standard64,
    _base64,
    base64.b85decode,
    base64.a85decode,
)


def _is_text(data: bytes) -> bool:
    """Whether bytes are words or code: printable all, and nearly all letters and blanks."""
    data = data.rstrip(b"\0")
    if not all(32 <= byte < 127 or byte in (9, 10, 13) for byte in data):
        return False
    plain_letters = sum(chr(byte).islower() or byte in (32, 10, 40, 41, 46) for byte in data)
    return bool(data) and plain_letters >= 0.75 * len(data)


def _numbers(program: Program, source: Source, modules: Modules, shift: int) -> list[Note]:
    """Lists of numbers, and large integers, that spell a text."""
    notes = []
    for sequence in program.sequences:
        if len(sequence.elts) < 6:
            continue
        values = [integer_of(element) for element in sequence.elts[:2000]]
        codes = [v for v in values if v is not None and 0 <= v < 256]
        if len(codes) == len(values) and _spells(bytes(codes), modules):
            message = f"{len(codes)} numbers that spell {bytes(codes[:30]).decode('latin-1')!r}"
            notes.append(Note("encoded_payload", message, *source.span(sequence, shift)))
    for node in program.integers:
        value = abs(int(node.value))  # type: ignore[arg-type]
        data = value.to_bytes((value.bit_length() + 7) // 8, "big")[:200]
        if len(data) >= 10 and _is_text(data):
            message = f"an integer that spells {data[:40].decode('latin-1')!r}"
            notes.append(Note("encoded_payload", message, *source.span(node, shift)))
    return notes


def _spells(data: bytes, modules: Modules) -> bool:
    text = data.decode("latin-1")
    if hidden_code(text, modules):
        return True
    return len(data) >= 16 and 32 in data and _is_text(data)


def _characters(source: Source, said: list[tuple[int, int, str, bool]]) -> list[Note]:
    notes = []
    text = source.text
    first = 1 if text.startswith("\ufeff") else 0
    if not text.isascii() and (match := _INVISIBLE.search(text, first)):
        message = f"holds the invisible character U+{ord(match[0]):04X}"
        notes.append(Note("invisible_character", message, *match.span()))
    if control := _CONTROL.search(text):
        message = f"holds the control character U+{ord(control[0]):04X}"
        notes.append(Note("control_character", message, *control.span()))
    for start, end, string, is_comment in said:
        # Behind an escape: "a\u202eb".
        if not is_comment and not string.isascii() and (hidden := _INVISIBLE.search(string)):
            message = f"a string holds the invisible character U+{ord(hidden[0]):04X}"
            notes.append(Note("invisible_character", message, start, end))
    return notes


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


def _identifiers(program: Program, source: Source, asked: str, shift: int) -> list[Note]:
    """Names that look like other names, and names that are a sentence. The parser already reads
    full-width letters as plain."""
    notes = []
    for name, node in program.identifiers.items():
        if name.isascii():
            if _LONG_NAME.match(name) and (said := instruction(name.replace("_", " "), asked)):
                notes.append(Note("instruction", said, *source.span(node, shift)))
            continue
        skeleton = plain(name)
        mixed = any("a" <= c.lower() <= "z" for c in name)
        mixed = mixed and any(unicodedata.name(c, "").startswith(_LOOKALIKE) for c in name)
        known = skeleton in program.identifiers or hasattr(builtins, skeleton)
        if mixed or (known and skeleton != name):
            message = f"the name {name[:40]!r} looks like {skeleton[:40]!r}"
            notes.append(Note("homoglyph", message, *source.span(node, shift)))
    return notes


_LOOKALIKE: Final = ("CYRILLIC", "ARMENIAN")
