"""Text that hides as numbers, escapes or an unbroken run, and runs that are no words at all.

Lists of numbers, hashes and identifiers are honest work, so a code counts where what it decodes to
is text. One rule reads every list of bytes, whatever they are written in.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from itertools import islice, pairwise

from grpo_guard.content.screens.view import View, shown
from grpo_guard.verdict import Finding

# Below this no run is looked at: English has few words as long, and 12 bytes say little.
_SHORTEST = 16
# From here a run of letters, digits and both cases is no identifier, whatever it decodes to.
_BINARY = 48
_LOOKED_AT = 256
_DECODED = 64
_RUN = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
# Bytes one after the other: digits of a base, and what marks or parts them.
_BYTES = re.compile(r"[0-9A-Fa-fxuUN\\+&#%={}(),;:_ \t-]{24,}+")
_BYTE = re.compile(r"[0-9A-Fa-f]{2,8}(?![0-9A-Fa-f])|[01]{40,}")
_PLAIN_NUMBERS = re.compile(r"[0-9,;() \t]+")
_FEWEST_BYTES = 8
_LETTER_RUN = re.compile(r"[^\W_]+")
_URL = ("http://", "https://", "ftp://", "www.")
# Longest run of letters and digits, and of anything; proteins and genes are written in long ones.
_LETTERS, _TOKEN, _FEW_LETTERS = 80, 1000, 24
# Scripts that put no blanks between words.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ud7ff\uf900-\ufaff"
                       "\uff00-\uffef\U00020000-\U0003134f]")  # fmt: skip
# A task about codes is answered in them.
_ASKED = re.compile(
    r"\bascii|decod|encod|cipher|hexadecimal|\bhex\b|\bbytes|base-?(?:32|64)|unicode|binary|\bjwt\b"
    r"|\bhash|token|\bkey\b",
    re.IGNORECASE,
)


def encoded(view: View) -> Iterator[Finding]:
    """Base64, base32, and bytes in any notation, that say something."""
    for what, start, end in _payloads(view):
        piece = view.text[start:end]
        # Asked last: prompts are read only where there is something to excuse.
        if _ASKED.search(view.prompt):
            return
        if not view.asked_for(piece):
            yield Finding("encoded", f"{what}: {shown(piece)}", char_span=(start, end))


def _payloads(view: View) -> Iterator[tuple[str, int, int]]:
    text, at = view.text, 0
    if view.longest >= _SHORTEST:
        for word in islice((w for w in view.words if len(w) >= _SHORTEST), _LOOKED_AT):
            at = text.index(word, at)
            for match in _RUN.finditer(word[:4096]):
                what = _payload(match[0])
                # A shop's address has such a run in it, and a message is not read there.
                if what and not any(url in word for url in _URL):
                    yield what, at + match.start(), at + match.end()
            at += len(word)
    for match in islice(_BYTES.finditer(text), _LOOKED_AT):
        tokens = _BYTE.findall(match[0][:4096])
        if len(tokens) >= _FEWEST_BYTES or len("".join(tokens[:1])) >= 40:
            if _say(tokens, marked=not _PLAIN_NUMBERS.fullmatch(match[0])):
                yield "text as numbers", *match.span()


def _say(tokens: list[str], marked: bool) -> bool:
    """Whether bytes in one of the usual bases are text."""
    if len(tokens[0]) >= 40:
        tokens = [tokens[0][i : i + 8] for i in range(0, len(tokens[0]) - 7, 8)]
    for base in (16, 10, 8, 2):
        try:
            numbers = [int(token, base) for token in tokens[:_DECODED]]
        except ValueError:
            continue
        # Ages, squares and years are letters too, but never words with blanks between.
        if max(numbers) < 127 and _is_text(data := bytes(numbers), small=0.6):
            return marked or b" " in data.strip()
    return False


def _is_text(data: bytes, small: float = 0.0) -> bool:
    """Whether it is printable ASCII, mostly letters; a word of ordinary text is once in 10^5."""
    if len(data) < _FEWEST_BYTES or not all(32 <= byte < 127 or byte in b"\t\n\r" for byte in data):
        return False
    letters = sum(chr(byte).isalpha() or byte == 32 for byte in data)
    lower = sum(97 <= byte <= 122 for byte in data)
    return letters >= 0.6 * len(data) and lower >= small * len(data)


def _payload(run: str) -> str | None:
    """What an unbroken run is, if it is an encoding of something."""
    if run.lower() == run.upper():
        return None  # 0.3333333: weak models write them by the hundred
    for name, decode in _DECODERS:
        try:
            if _is_text(decode(run)):
                return f"{name} that decodes to text"
        except (binascii.Error, ValueError):
            continue
    if len(run) < _BINARY or "_" in run.strip("_") or run.count("/") > len(run) / 12:
        return None
    piece = run[:_LOOKED_AT]
    kinds = [c.isupper() + 2 * c.isdigit() for c in piece]
    changes = sum(a != b for a, b in pairwise(kinds))
    cases = (sum(map(str.isupper, piece)), sum(map(str.islower, piece)))
    # Base64 of anything has all three kinds in fair shares; camel case has few capitals.
    random = min(cases) >= len(piece) / 8 and sum(map(str.isdigit, piece)) >= 2
    return "base64 data" if random and changes >= 0.35 * len(piece) else None


def _from_base64(run: str) -> bytes:
    body = run.rstrip("=").replace("-", "+").replace("_", "/")[:_DECODED]
    body = body[:-1] if len(body) % 4 == 1 else body
    return base64.b64decode(body + "=" * (-len(body) % 4))


def _from_base32(run: str) -> bytes:
    body = run.rstrip("=")[:_DECODED]
    return base64.b32decode(body + "=" * (-len(body) % 8))


def _from_hex(run: str) -> bytes:
    body = run.removeprefix("0x")[:_DECODED]
    return bytes.fromhex(body[: len(body) - len(body) % 2])


_DECODERS: tuple[tuple[str, Callable[[str], bytes]], ...] = (
    ("base64", _from_base64),
    ("base32", _from_base32),
    ("hexadecimal", _from_hex),
)


def overlong_tokens(view: View) -> Iterator[Finding]:
    """Runs without a break that are longer than words are."""
    at = 0
    if view.longest <= _LETTERS:
        return
    for word in view.words:
        if len(word) <= _LETTERS:
            continue
        at = view.text.index(word, at)
        span = _overlong(word)
        if span is not None and not view.asked_for(word[span[0] : span[1]]):
            start, end = span
            message = f"{end - start} characters without a break: {shown(word[start:end])}"
            yield Finding("overlong_token", message, char_span=(at + start, at + end))
        at += len(word)


def _overlong(word: str) -> tuple[int, int] | None:
    if word.startswith(_URL):
        return (0, len(word)) if len(word) > 5 * _TOKEN else None
    for match in _LETTER_RUN.finditer(word):
        start, end = match.span()
        run = match[0][:_LETTERS]
        if end - start <= _LETTERS or match[0].isdigit() or _UNSPACED.search(run):
            continue
        if not (run.isupper() and run.isalpha() and len(set(run)) <= _FEW_LETTERS):
            return start, end
    # Without its digits: a quotient that never ends is bad arithmetic, not a payload.
    rest = len(word) - sum(map(str.isdigit, word)) if len(word) > _TOKEN else 0
    return (0, len(word)) if rest > _TOKEN and not _UNSPACED.search(word) else None
