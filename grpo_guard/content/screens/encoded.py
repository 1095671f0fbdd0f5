"""Screens for text hidden as numbers, escapes or an unbroken run, and for overlong runs.

Lists of numbers, hashes and identifiers are honest, so a code is only reported if it decodes to
text. A single rule reads every list of bytes, in any notation.
"""

import base64
import binascii
import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

from grpo_guard.content.screens.view import LONG, Screen, View, shown, table_of
from grpo_guard.content.severity import CONFIRM_OR_REPORT, REJECT
from grpo_guard.core.verdict import Finding

_LOOKED_AT = 256
_DECODED = 64
# Long enough that no hash or key decodes to text by chance at one of several offsets.
_WINDOW = 48
# Minimum number of distinct characters: a word that a model repeats endlessly could decode to text,
# over and over.
_DISTINCT = 11
# Shorter runs are skipped: English has few words as long as `LONG`, and 12 bytes carry little.
_RUN = re.compile(rf"[A-Za-z0-9+/_-]{{{LONG},}}={{0,2}}")
_OF_RUNS = table_of(re.compile(r"[A-Za-z0-9+/_-]").match, others=False)
# Consecutive bytes: digits of some base, with prefixes and separators.
_OF_BYTES = table_of(re.compile(r"[0-9A-Fa-fxuUN\\+&#%={}(),;:_ \t-]").match, others=False)
_LONG_LIST = 24
_BYTE = re.compile(r"[0-9A-Fa-f]{2,8}(?![0-9A-Fa-f])|[01]{40,}")
_PLAIN_NUMBERS = re.compile(r"[0-9,;() \t]+")
_FEWEST_BYTES = 8
_URL = ("http://", "https://", "ftp://", "www.")
# Maximum length of a run of letters and digits, and of a run of any characters.
_LETTERS, _TOKEN, _FEW_LETTERS = 80, 1000, 24
# For a grid or a list written without spaces, such as [[0,1],[1,0]].
_CELL_END, _LONGEST_CELL = re.compile(r"[,;|\]]"), 8
_OVERLONG = re.compile(r"[^\W_]{81,}+(?!\S{1000})|\S{1001,}+")
_OF_LETTERS = table_of(str.isalnum, others=True)
_OF_ANY = table_of(lambda char: not char.isspace(), others=True)
# URLs, and scripts without spaces between words.
_EXCUSED = re.compile("^(?:https?|ftp|www)\\b|[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
                      "\u2e80-\ud7ff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003134f]")  # fmt: skip
# A task about codes gets codes for an answer.
_ASKED = re.compile(
    r"\bascii|decod|encod|cipher|hexadecimal|\bhex\b|\bbytes|base-?(?:32|64)|unicode|binary|\bjwt\b"
    r"|\bhash(?:es|ing)?\b",
    re.IGNORECASE,
)


def encoded(view: View) -> Iterator[Finding]:
    """Yield a finding for base64, or for bytes in any notation, that decode to text."""
    for what, start, end in _payloads(view):
        piece = view.text[start:end]
        # Checked last: prompts are only read if there is something to excuse.
        if _ASKED.search(view.prompt):
            return
        if not view.asked_for(piece):
            yield Finding("encoded", f"{what}: {shown(piece)}", char_span=(start, end))


def _payloads(view: View) -> Iterator[tuple[str, int, int]]:
    words = view.long_words if view.may_hold(_OF_RUNS, LONG) else []
    for at, word in words[:_LOOKED_AT]:
        for match in _RUN.finditer(word):
            what = _payload(match[0])
            # Shop URLs contain such runs, and nobody reads a message there.
            if what and not any(url in word for url in _URL):
                yield what, at + match.start(), at + match.end()
    for start, end in islice(view.runs(_OF_BYTES, _LONG_LIST), _LOOKED_AT):
        piece = view.text[start:end]
        tokens = _BYTE.findall(piece[:4096])
        several = len(tokens) >= _FEWEST_BYTES or len("".join(tokens[:1])) >= 40
        if several and _is_text_as_numbers(tokens, marked=not _PLAIN_NUMBERS.fullmatch(piece)):
            yield "text as numbers", start, end


def _is_text_as_numbers(tokens: list[str], marked: bool) -> bool:
    """Whether bytes written in one of the usual bases decode to text."""
    if len(tokens[0]) >= 40:
        tokens = [tokens[0][i : i + 8] for i in range(0, len(tokens[0]) - 7, 8)]
    for base in (16, 10, 8, 2):
        try:
            numbers = [int(token, base) for token in tokens[:_DECODED]]
        except ValueError:
            continue
        # Ages, squares and years can also be letters, but not words with spaces between them.
        if max(numbers) < 127 and _is_text(data := bytes(numbers), small=0.6):
            return marked or b" " in data.strip()
    return False


def _is_text(data: bytes, small: float = 0.0) -> bool:
    """Whether the data is printable ASCII, mostly letters. One in 10^5 ordinary words decodes to
    such data."""
    if len(data) < _FEWEST_BYTES or not all(32 <= byte < 127 or byte in b"\t\n\r" for byte in data):
        return False
    letters = sum(chr(byte).isalpha() or byte == 32 for byte in data)
    lower = sum(97 <= byte <= 122 for byte in data)
    return letters >= 0.6 * len(data) and lower >= small * len(data)


def _payload(run: str) -> str | None:
    """Return what a run hides if it decodes to text; None for others, such as keys and hashes."""
    if run.lower() == run.upper():
        return None  # 0.3333333: weak models write hundreds of them
    for piece in _windows(run):
        for decode in (_from_base64, _from_hex):
            try:
                if _is_text(decode(piece)):
                    return "a run that decodes to text"
            except (binascii.Error, ValueError):
                continue
    return None


def _windows(run: str) -> Iterator[str]:
    """Yield the start of a run, and windows of long runs at each of base64's four offsets.

    Otherwise a message could be hidden by preceding it with filler in the same alphabet.
    """
    yield run[:_DECODED]
    if len(run) >= 2 * _WINDOW:
        for at in range(0, len(run) - _WINDOW, _WINDOW):
            for start in range(at, min(at + 4, len(run) - _WINDOW)):
                window = run[start : start + _WINDOW]
                if len(set(window)) >= _DISTINCT:
                    yield window


def _from_base64(run: str) -> bytes:
    body = run.rstrip("=").replace("-", "+").replace("_", "/")
    body = body[:-1] if len(body) % 4 == 1 else body
    return base64.b64decode(body + "=" * (-len(body) % 4))


def _from_hex(run: str) -> bytes:
    body = run.removeprefix("0x")
    return bytes.fromhex(body[: len(body) - len(body) % 2])


def overlong_tokens(view: View) -> Iterator[Finding]:
    """Yield a finding for each overlong run of letters and digits, or of any other characters.

    URLs, numbers, gene sequences, grids and scripts without spaces between words are honest.
    """
    if not (view.may_hold(_OF_LETTERS, _LETTERS + 1) or view.may_hold(_OF_ANY, _TOKEN + 1)):
        return
    for at, word in view.long_words:
        for match in _OVERLONG.finditer(word) if len(word) > _LETTERS else ():
            if _is_overlong(match[0]) and not view.asked_for(match[0]):
                message = f"{len(match[0])} characters without a break: {shown(match[0])}"
                span = at + match.start(), at + match.end()
                yield Finding("overlong_token", message, char_span=span)


def _is_overlong(run: str) -> bool:
    # Digits do not count: a quotient that never ends is bad arithmetic, not a payload.
    if run.isdigit() or not (run.isalnum() or sum(not char.isdigit() for char in run) > _TOKEN):
        return False
    gene = run.isascii() and run.isupper() and len(set(run)) <= _FEW_LETTERS
    grid = len(_CELL_END.findall(run)) * _LONGEST_CELL >= len(run)
    return not (gene or grid or _EXCUSED.search(run[:_LETTERS]))


SCREENS: Final = (
    Screen("encoded", REJECT, encoded),
    Screen("overlong_token", CONFIRM_OR_REPORT, overlong_tokens),  # honest: an endless syllable
)
