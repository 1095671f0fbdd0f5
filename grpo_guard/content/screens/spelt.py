"""Text spelt in codes: bytes as numbers, Morse, letters set apart, alphabets turned round.

Each is read by any model and by few filters. A list of numbers is honest work, so a code counts
only when what it decodes to is text; escapes and Morse have no other use.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Set
from itertools import islice, pairwise

from grpo_guard.content.screens.view import MAX_FINDINGS, View, shown, word_set
from grpo_guard.verdict import Finding

_LOOKED_AT = 64
_SHOWN_BYTES = 200
_NUMBERS = re.compile(r"(?<![0-9.,])(?:[0-9]{2,3}(?:,[ ]?|[ ]|;[ ]?)){11,}[0-9]{2,3}(?![0-9])")
_HEX_LIST = re.compile(r"(?:\b0x[0-9A-Fa-f]{2}(?:, ?| )){7,}0x[0-9A-Fa-f]{2}\b"
                       r"|\b(?:[0-9A-Fa-f]{2},[ ]?){9,}[0-9A-Fa-f]{2}\b")  # fmt: skip
_BITS = re.compile(r"(?<![01])[01]{48,}(?![01])|(?<![01])(?:[01]{7}[ \t]){7,}[01]{7}(?![01])")
_ESCAPES = re.compile(
    r"(?:\\[0-7]{2,3}){6,}|(?:U\+[0-9A-Fa-f]{4,6}[ ,]{0,2}){6,}"
    r"|(?:&[A-Za-z]{2,12};[ ]?){6,}|(?:\\u\{[0-9A-Fa-f]{1,6}\}){6,}|(?:\\N\{[A-Za-z ]{1,40}\}){4,}"
    r"|\bxn--[a-z0-9]{2,}|\bdata:[a-z]{2,20}/[a-z0-9.+-]{1,40}[;,]|\nbegin [0-7]{3} \S"
)
_GZIP = re.compile(r"\bH4sI[A-Za-z0-9+/]{20,}")
_QUOTED = re.compile(r"(?:=[0-9A-F]{2}){6,}")
_QUOTED_RUN = re.compile(rb"(?:=[0-9A-F]{2}){6}")
# All codes of a row are taken and none given back: a row that ends in a letter would be walked to
# its end from each of its codes. Where it has to end earlier is found by one more look.
_MORSE = re.compile(r"(?<![^ /|\n])[.\-·−–•]{1,6}(?:[ /|]{1,3}[.\-·−–•]{1,6}){9,}+")
_LAST_CODE = re.compile(r".*[.\-·−–•](?= )")
_MORSE_LEAST = 10
_BETWEEN_CODES = re.compile(r"[ /|]+")
_DOT = re.compile(r"[.·•]")
_DASH = re.compile(r"[\-−–]")
_APART = re.compile(r"(?<![^\W\d_])(?:[A-Za-z][ .\-_*]{1,3}){15,}[A-Za-z](?![^\W\d_])")
_VOWEL = re.compile(r"[aeiou]", re.IGNORECASE)
_CHUNK = re.compile(r"[A-Za-z0-9+/]{4,76}={0,2}")
_INNER_CAPITAL = re.compile(r"[a-z0-9][A-Z]")
_Find = Callable[[str], Iterator[tuple[int, int]]]
_Gate = Callable[[bytes, Set[str]], bool]
_BASE85_LEAST = 20
_INNER_CAPITALS = 3
_LETTERS_APART = 8
# The commonest words in ROT13 and written backwards; the first of each are no words of English.
_TURNED_ROUND = (
    ("ROT13", word_set("gur naq gung jvgu uvf"), word_set("gb bs vf ur ner nyy unvy fb sbe")),
    ("reversed text", word_set("eht taht htiw erew"), word_set("ot fo si lla liah os rof eno")),
)
_SINGLE = frozenset("abcdefghijklmnopqrstuvwxyz")
HEX_LETTERS = frozenset("bcdefx")
_SMALL, _DIGITS = b"abcdefghijklmnopqrstuvwxyz", b"0123456789"


def _byte_classes(default: bytes, *groups: tuple[bytes, bytes]) -> bytes:
    """A table for ``bytes.translate``: each byte to the one that names its class."""
    table = bytearray(default * 256)
    for members, name in groups:
        for byte in members:
            table[byte] = name[0]
    return bytes(table)


_NUMBER_BYTES = _byte_classes(b".", (_DIGITS + b",;: \t", b"n"))
# Dots and dashes of typography are of several bytes.
_HEX_BYTES = _byte_classes(b".", (_DIGITS + b"abcdefABCDEFx,;: \t", b"n"))
_MORSE_BYTES = _byte_classes(b".", (b".- /|" + bytes(range(128, 256)), b"m"))
_CASE_BYTES = _byte_classes(b" ", (_SMALL + _DIGITS, b"a"), (_SMALL.upper(), b"A"))
_QUOTED_BYTES = _byte_classes(b".", (_DIGITS + b"=ABCDEF", b"q"))
# A task about codes is answered in them.
CODES_ASKED = re.compile(
    r"morse|\bascii|decod|encod|cipher|caesar|\brot-?13|hexadecimal|\bbytes|base-?(?:32|64|85)"
    r"|\bdata:|punycode|unicode",
    re.IGNORECASE,
)
_NO_LETTERS = bytes(
    b for b in range(256) if not (chr(b).isascii() and chr(b).isalpha()) and b != 64
)
_SPELLING_ASKED = re.compile(r"\bspell|acronym|letters|revers|backward|binary", re.IGNORECASE)


def spelt_out(view: View) -> Iterator[Finding]:
    """Codes in which each letter is written as something else."""
    for what, start, end in islice(_spans(view), MAX_FINDINGS):
        piece = view.text[start:end]
        asked = CODES_ASKED.search(view.prompt) or view.asked_for(piece)
        if not asked and not (what in _SPELLINGS and _SPELLING_ASKED.search(view.prompt)):
            yield Finding("encoded", f"{what}: {shown(piece)}", char_span=(start, end))


def _spans(view: View) -> Iterator[tuple[str, int, int]]:
    text = view.text
    data, words = text.encode("utf-8", "replace"), view.vocabulary
    for what, find, may_be, is_text in _CODES:
        if may_be(data, words):
            for start, end in islice(find(text), _LOOKED_AT):
                if is_text(text[start:end]):
                    yield what, start, end
    yield from _turned_round(view)
    if _has_inner_capitals(data, words):
        yield from _chunks(text)
    if max(view.lengths) >= _BASE85_LEAST:
        yield from _base85(view)


def _has_numbers(data: bytes, words: Set[str]) -> bool:
    classes = data.translate(_NUMBER_BYTES)
    # Every fourth first: a run of 26 holds six of them, and most texts end here.
    return b"n" * 6 in classes[::4] and b"n" * 26 in classes


def _has_hexadecimals(data: bytes, words: Set[str]) -> bool:
    # The letter in "6c" stands alone, and so does the one in "0x61".
    if HEX_LETTERS.isdisjoint(words):
        return False
    classes = data.translate(_HEX_BYTES)
    return b"n" * 8 in classes[::3] and b"n" * 26 in classes


def _has_morse(data: bytes, words: Set[str]) -> bool:
    return b"m" * 19 in data.translate(_MORSE_BYTES)


def _has_letters_apart(data: bytes, words: Set[str]) -> bool:
    return len(_SINGLE & words) >= _LETTERS_APART


def _has_inner_capitals(data: bytes, words: Set[str]) -> bool:
    """Whether a capital follows a small letter or a digit, more often than in names."""
    return data.translate(_CASE_BYTES).count(b"aA") >= _INNER_CAPITALS


def _has_quoted(data: bytes, words: Set[str]) -> bool:
    if data.count(b"=") < 6 or b"q" * 18 not in data.translate(_QUOTED_BYTES):
        return False
    return _QUOTED_RUN.search(data) is not None


def _has_escapes(data: bytes, words: Set[str]) -> bool:
    # Single characters first: looking for one is ten times as fast as for two.
    if b"\\" in data and data.count(b"\\") >= 4:
        return True
    if b"&" in data and data.count(b";") >= 6:
        return True
    if b"U" in data and b"U+" in data:
        return True
    if b":" in data and b"data:" in data:
        return True
    return (b"--" in data and b"xn--" in data) or (b"\nb" in data and b"\nbegin " in data)


def _has_gzip(data: bytes, words: Set[str]) -> bool:
    # Longer than any word: its length shows it to whoever asks before.
    return b"H4sI" in data


def _turned_round(view: View) -> Iterator[tuple[str, int, int]]:
    for name, sure, more in _TURNED_ROUND:
        found = sure & view.vocabulary
        if found and len((sure | more) & view.vocabulary) >= 2:
            at = max(view.lower.find(min(found)), 0)
            yield name, at, min(at + 3, len(view.text))


def _chunks(text: str) -> Iterator[tuple[str, int, int]]:
    """Base64 cut into pieces too short to be seen one by one."""
    row, end = list[str](), 0
    first = 0
    for match in islice(_CHUNK.finditer(text), 20_000):
        mixed = _INNER_CAPITAL.search(match[0]) is not None
        near = match.start() - end <= 2
        if row and mixed and near:
            row.append(match[0])
        else:
            if len(row) > 1 and _is_base64("".join(row)):
                yield "base64 in pieces", first, end
            row, first = ([match[0]], match.start()) if mixed else ([], 0)
        end = match.end()
    if len(row) > 1 and _is_base64("".join(row)):
        yield "base64 in pieces", first, end


def _may_be_base85(word: str) -> bool:
    """Whether a run could be text in base85: a fifth of its characters then stand for the first
    letter of four, and are letters themselves. "$<<12*216=2592>>2592" has none."""
    if len(word) < _BASE85_LEAST:
        return False
    data = word.encode("utf-8", "replace")
    return 10 * len(data.translate(None, _NO_LETTERS)) >= len(data)


def _base85(view: View) -> Iterator[tuple[str, int, int]]:
    at = 0
    for word in islice(filter(_may_be_base85, view.words), _LOOKED_AT):
        at = view.text.find(word, at)
        for decode in (base64.b85decode, base64.a85decode):
            piece = word[: _SHOWN_BYTES - _SHOWN_BYTES % 5]
            try:
                data = decode(piece)
            except ValueError:
                continue
            if len(data) >= 12 and _is_text(data):
                yield "base85", at, at + len(word)
                break
        at += len(word)


def _is_text(data: bytes) -> bool:
    """Printable ASCII, nearly all of it letters and blanks."""
    data = data[:_SHOWN_BYTES]
    letters = sum(chr(byte).isalpha() or byte == 32 for byte in data)
    return all(32 <= byte < 127 for byte in data) and letters >= 0.8 * len(data)


def _is_prose(data: bytes) -> bool:
    """Words: mostly small letters with blanks between; a list of numbers rarely makes them."""
    small = sum(97 <= byte <= 122 for byte in data)
    return _is_text(data) and small >= 0.65 * len(data) and b" " in data.strip()


def _is_base64(run: str) -> bool:
    body = run.rstrip("=")[:_SHOWN_BYTES]
    body = body[: len(body) - (len(body) % 4 == 1)]
    try:
        data = base64.b64decode(body + "=" * (-len(body) % 4))
    except ValueError:
        return False
    return len(data) >= 12 and _is_text(data)


def _numbers_say(piece: str) -> bool:
    numbers = [int(x) for x in re.findall("[0-9]{2,3}", piece)][:_SHOWN_BYTES]
    return max(numbers) < 127 and _is_prose(bytes(numbers))


def _hex_says(piece: str) -> bool:
    pairs = re.findall(r"[0-9A-Fa-f]{2}(?![0-9A-Fa-fx])", piece)[:_SHOWN_BYTES]
    return _is_text(bytes(int(pair, 16) for pair in pairs))


def _bits_say(piece: str) -> bool:
    size = 8 if " " not in piece and "\t" not in piece else 7
    bits = re.sub(r"\s", "", piece)[: _SHOWN_BYTES * size]
    rows = [int(bits[i : i + size], 2) for i in range(0, len(bits) - size + 1, size)]
    return _is_text(bytes(rows))


def _all_of(pattern: re.Pattern[str]) -> _Find:
    return lambda text: (match.span() for match in pattern.finditer(text))


def _rows_of_morse(text: str) -> Iterator[tuple[int, int]]:
    """Rows of codes with white space behind the last: "./././x" is no Morse."""
    for match in _MORSE.finditer(text):
        start, end = match.span()
        if end < len(text) and not text[end].isspace():
            last = _LAST_CODE.match(text, start, end)
            end = last.end() if last else start
        if len(_BETWEEN_CODES.split(text[start:end])) >= _MORSE_LEAST:
            yield start, end


def _is_morse(piece: str) -> bool:
    codes = set(_BETWEEN_CODES.split(piece[:2000]))
    both = sum(bool(_DOT.search(code) and _DASH.search(code)) for code in codes)
    return len(codes) >= 5 and both >= 3


def _letters_say(piece: str) -> bool:
    letters = [char for char in piece[:400] if char.isalpha()]
    vowels = sum(bool(_VOWEL.match(letter)) for letter in letters)
    steps = sum(ord(b) - ord(a) == 1 for a, b in pairwise(letters))
    # Truth tables have few letters, alphabets go in steps.
    if len(set(map(str.lower, letters))) < _LETTERS_APART or steps >= len(letters) / 4:
        return False
    return 0.2 * len(letters) <= vowels <= 0.6 * len(letters)


def _always(piece: str) -> bool:
    return True


# What it is called, where it stands, whether it can be there at all, whether it says something.
_Code = tuple[str, _Find, _Gate, Callable[[str], bool]]
_CODES: tuple[_Code, ...] = (
    ("bytes as numbers", _all_of(_NUMBERS), _has_numbers, _numbers_say),
    ("bytes in hexadecimal", _all_of(_HEX_LIST), _has_hexadecimals, _hex_says),
    ("bytes in binary", _all_of(_BITS), _has_numbers, _bits_say),
    ("escaped characters", _all_of(_ESCAPES), _has_escapes, _always),
    ("escaped characters", _all_of(_QUOTED), _has_quoted, _always),
    ("compressed data", _all_of(_GZIP), _has_gzip, _always),
    ("Morse code", _rows_of_morse, _has_morse, _is_morse),
    ("letters set apart", _all_of(_APART), _has_letters_apart, _letters_say),
)
_SPELLINGS = ("bytes in binary", "letters set apart", "reversed text")
