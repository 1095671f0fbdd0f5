"""Encoded payloads, code inside strings, and work that only stalls the sandbox."""

from __future__ import annotations

import ast
import re
import sys
import unicodedata
from itertools import islice, pairwise
from typing import Final

from grpo_guard.content.code.character_codes import check_character_codes
from grpo_guard.content.code.fold import integers_of
from grpo_guard.content.code.modules import REACHING, Modules
from grpo_guard.content.code.names import words
from grpo_guard.content.code.note import Note
from grpo_guard.content.code.program import Program
from grpo_guard.content.code.source import Source
from grpo_guard.content.code.texts import Texts

_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{32,}+={0,2}")
_RUN: Final = re.compile(r"\S{32,}+")
# Regular expressions, format strings, addresses and alphabets are long without being encoded.
_PATTERN: Final = re.compile(r"\(\?|\\[dws]|%[0-9.]*[sdf]|\{\w*[:!}]|://|abcdef|ABCDEF")
_HEX: Final = re.compile(
    r"\b(?=[0-9]{0,24}[a-fA-F])(?=[a-fA-F]{0,24}[0-9])(?:[0-9a-fA-F]{2}){16,}+\b"
    r"|(?:\\x[0-9a-fA-F]{2}){6,}+"
)
_CODE: Final = re.compile(
    r"__import__|__builtins__|__subclasses__|__globals__"
    r"|__class__\s{0,4}\.(?!__name__)|\b(?:eval|exec|compile)"
    r"(?:\(\s{0,4}[^)\s]|\s{1,4}\(\s{0,4}['\"])|\bos\s{0,4}\.\s{0,4}(?:system|popen|environ|remove)|\bsubprocess\s{0,4}\."
    r"|\bsys\.modules|\bimportlib\b|\bopen\s{0,4}\(\s{0,4}['\"]"
)
_IMPORTS: Final = re.compile(
    r"(?:^|[\n;]|\\n)[ \t]{0,40}(?:>>> )?(?:from[ \t]+(\.*[A-Za-z_][\w.]*+)[ \t]+import[ \t]+[\w*(]"
    r"|import[ \t]+([A-Za-z_][\w.]*+)[ \t]*(?:$|[\n;,]|\\n|[ \t]as[ \t]))"
)
_FORMAT_WALK: Final = re.compile(
    r"\{[^{}\n]{0,80}(?:\.__(?!(?:class__\.__)?(?:name|qualname|doc)__)|\[__)"
)
# Half of such a field, to be ended by what no literal shows: ("{0." + name + "}").format(x).
_OPEN_FIELD: Final = re.compile(
    r"\{(?:\w{1,40}+\[|\w{0,40}+\.(?=[^\d{}]|\Z))[^{}:!\s%]{0,80}+(?:\Z|%s)"
)
_FORMATS: Final = words("format format_map")
_WORDS: Final = words(
    "eval exec import system open print input compile getattr os sys calc builtins globals "
    "subprocess socket code pickle addition __import__"
)
# Standard modules that a docstring's example may import; those that reach further may not.
# Nor does a package that everybody knows give an attacker's library a name.
_QUIET: Final = (frozenset(sys.stdlib_module_names) - REACHING) | words(
    "scipy pandas matplotlib networkx mpmath statsmodels sklearn seaborn xarray numba pytest tqdm"
)
MIN_ARRAY: Final = 64
_FULL_WIDTH: Final = ("\uff01", "\U0001d7ff")


def check_payloads(
    program: Program, texts: Texts, source: Source, modules: Modules, shift: int
) -> list[Note]:
    """Strings, numbers and sequences that carry more than a value of the question."""
    notes = _strings(texts, source, modules, shift) + _built(program, source, modules, shift)
    if not _FORMATS.isdisjoint(program.read_attributes):
        for node, text, _ in texts.strings:
            if "{" in text and _OPEN_FIELD.search(text):
                message = "a format string is completed with a name that is not shown"
                notes.append(Note("format_trick", message, *source.span(node, shift)))
    notes += _decoded(program, source, shift)
    for sequence in program.sequences:
        if len(sequence.elts) < 4:
            continue
        numbers = integers_of(sequence)
        if numbers and (problem := _array(numbers, modules)):
            notes.append(Note("encoded_payload", problem, *source.span(sequence, shift)))
    for node in program.integers:
        value = int(node.value)  # type: ignore[arg-type]
        text = _spelled(abs(value).to_bytes((value.bit_length() + 7) // 8, "big"))
        if len(text) >= 10:
            message = f"an integer that spells {text[:40]!r}"
            notes.append(Note("encoded_payload", message, *source.span(node, shift)))
    return notes


def _strings(texts: Texts, source: Source, modules: Modules, shift: int) -> list[Note]:
    notes: list[Note] = []
    for node, text, is_bytes in texts.strings:
        if problem := _in_text(text, is_bytes, texts, modules):
            notes.append(Note(problem[0], problem[1], *source.span(node, shift)))
    return notes


def _in_text(text: str, is_bytes: bool, texts: Texts, modules: Modules) -> tuple[str, str] | None:
    if texts.may_hold_code and (code := hidden_code(text, modules)):
        return "code_in_string", code
    if "__" in text and _FORMAT_WALK.search(text):
        return "format_trick", "a format string reads private attributes"
    if is_bytes and sum(not (32 <= ord(c) < 127 or c in "\n\r\t") for c in text) >= 4:
        return "encoded_payload", f"{len(text)} bytes that are no text"
    if not text.isascii() and any(_FULL_WIDTH[0] <= c <= _FULL_WIDTH[1] for c in text):
        # Full-width letters are letters to the parser: as a string they wait to be made plain.
        shown = unicodedata.normalize("NFKC", text)
        if hidden_code(shown, modules) or shown.strip("_ ") in _WORDS:
            return "built_string", f"a string disguises {shown[:40]!r}"
    encoded = encoded_text(text) if texts.may_encode else None
    return ("encoded_payload", encoded) if encoded else None


def encoded_text(text: str) -> str | None:
    """What a string or comment may be the encoding of; None where it reads as words."""
    if match := _HEX.search(text):
        return f"{len(match[0])} characters of hexadecimal"
    for match in islice(_RUN.finditer(text), 100):
        run = match[0]
        if _BASE64.fullmatch(run.strip("'\"b,;:()[]#")) and _random_looking(run):
            return f"{len(run)} characters that look like base64"
        if len(run) >= 48 and len(set(run)) >= 32 and not _PATTERN.search(run):
            return f"{len(run)} characters that are no words"
    return None


def hidden_code(text: str, modules: Modules) -> str | None:
    """What a string or comment would do if it were executed; None where it reads as words."""
    if match := _CODE.search(text):
        return f"a string holds code: {match[0][:40]!r}"
    for match in _IMPORTS.finditer(text):
        module = match[1] or match[2]
        if not modules.allows(module) and module.partition(".")[0] not in _QUIET:
            return f"a string holds an import of {module[:40]}"
    return None


def _random_looking(text: str) -> bool:
    """Base64 mixes cases and digits within short stretches; words and identifiers do not."""
    if "abcdef" in text.lower() or not any(c.isdigit() for c in text):
        return False
    kinds = [(c.isupper(), c.isdigit()) for c in text if c.isalnum()]
    changes = sum(a != b for a, b in pairwise(kinds))
    return len(set(kinds)) >= 2 and changes >= len(text) * 0.25


def _built(program: Program, source: Source, modules: Modules, shift: int) -> list[Note]:
    """Strings put together so that they cannot be read: chr(), joins, reversal, bytes."""
    notes: list[Note] = []
    if not program.spelling:
        return notes
    folder = program.folder
    covered: set[int] = set()
    seen: set[str] = set()
    for node in reversed(program.spelling):
        text = None if id(node) in covered else folder.text(node)
        if isinstance(node, ast.BinOp) and (text is not None or id(node) in covered):
            covered.add(id(node.left))  # "a" + "b" + "c" says what its beginning says
        if text is None or len(text) < 3 or text in seen:
            continue
        seen.add(text)
        # What stands in the program as it is was not put together: status = "open"; f"{status}!".
        code = hidden_code(text, modules) or text.strip("_ ") in _WORDS
        if (code or (len(text) >= 24 and encoded_text(text))) and text not in source.text:
            message = f"puts together the string {text[:40]!r}"
            notes.append(Note("built_string", message, *source.span(node, shift)))
        elif (
            "__" in text
            and text not in source.text
            and (_FORMAT_WALK.search(text) or text.strip().strip("_").isidentifier())
        ):
            message = f"puts together the name {text[:40]!r}"
            notes.append(Note("built_string", message, *source.span(node, shift)))
    if folder.spent:
        # What is left unread may spell anything.
        message = "puts strings together in more steps than can be followed"
        notes.append(Note("built_string", message, 0, len(source.text)))
    return notes


def _decoded(program: Program, source: Source, shift: int) -> list[Note]:
    """Calls that turn data into text."""
    notes: list[Note] = []
    for call, _ in () if _DECODERS.isdisjoint(program.read_attributes) else program.calls:
        name = _method(call)
        if name not in _DECODERS:
            continue
        argument = call.args[0] if call.args else None
        encoding = argument.value if isinstance(argument, ast.Constant) else None
        if name not in ("encode", "decode"):
            message = f"decodes data with {name}"
        elif name == "decode" and _bytes_behind(call):
            message = "turns bytes into text"
        elif isinstance(encoding, str) and encoding.lower() in _CODECS:
            message = f"uses the codec {encoding}"
        else:
            continue
        notes.append(Note("encoded_payload", message, *source.span(call, shift)))
    return notes + check_character_codes(program, source, shift)


_DECODERS: Final = words("fromhex b64decode unhexlify decompress encode decode")
_CODECS: Final = words(
    "rot13 rot_13 rot-13 hex hex_codec base64 base64_codec zlib bz2 uu quopri unicode_escape "
    "unicode-escape raw_unicode_escape utf-7 utf7 utf_7 punycode idna"
)


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _bytes_behind(call: ast.Call) -> bool:
    value = call.func.value if isinstance(call.func, ast.Attribute) else call
    if isinstance(value, ast.Constant):
        return isinstance(value.value, bytes)
    if not isinstance(value, ast.Call):
        return False
    named = isinstance(value.func, ast.Name) and value.func.id in ("bytes", "bytearray")
    return named or _method(value) == "to_bytes"


def _array(numbers: list[int], modules: Modules) -> str | None:
    small = all(0 <= n < 256 for n in numbers)
    if small:
        text = "".join(map(chr, numbers))
        if hidden_code(text, modules) or text.strip() in _WORDS:
            return f"{len(numbers)} numbers that spell {text[:40]!r}"
        printable = sum(32 <= n < 127 or n in (9, 10, 13) for n in numbers)
        letters = sum(chr(n).islower() or n == 32 for n in numbers if n < 128)
        if len(numbers) >= 16 and printable == len(numbers) and letters > 0.7 * len(numbers):
            spaces = numbers.count(32)
            return f"{len(numbers)} numbers that spell {text[:40]!r}" if spaces else None
    if len(numbers) >= MIN_ARRAY and small and len(set(numbers)) > 24:
        return f"{len(numbers)} numbers that may be bytes"
    return None


def _spelled(data: bytes) -> str:
    text = data[:200].decode("latin-1")
    return text if all(32 <= ord(c) < 127 or c in "\t\n\r" for c in text) else ""
