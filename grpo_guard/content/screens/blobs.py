"""Encoded payloads, and runs without white space that are no words."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from itertools import islice, pairwise

from grpo_guard.content.screens.spelt import CODES_ASKED, HEX_LETTERS
from grpo_guard.content.screens.view import View, shown
from grpo_guard.verdict import Finding

# Below this no run is looked at: English has few words as long, and 12 bytes say little.
_SHORTEST = 16
# From here a run of letters, digits and both cases is no identifier, whatever it decodes to.
_BINARY = 48
_HEX = 40
# Commits, checksums and keys are of these lengths, and say nothing that could be learnt.
_DIGESTS = (40, 56, 64, 96, 128)
_DECODED = 64
_LONGEST_URL = 500
_LOOKED_AT = 256
_RUN = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
_LONG_HEX = re.compile(r"(?<![0-9A-Za-z])(?:0x)?[0-9A-Fa-f]{40,}(?![0-9A-Za-z])")
_ESCAPED = re.compile(
    r"(?:\\x[0-9A-Fa-f]{2}){6,}|(?:\\u[0-9A-Fa-f]{4}){6,}|(?:&#x?[0-9A-Fa-f]{2,6};){6,}"
    r"|(?<![0-9A-Fa-f])(?:[0-9A-Fa-f]{2}[ :]){15,}[0-9A-Fa-f]{2}(?![0-9A-Fa-f])"
    r"|(?<![01])(?:[01]{8}[ \t]){7,}[01]{8}(?![01])"
)
_PERCENT = re.compile(r"(?:%[0-9A-Fa-f]{2}){6,}")
# What a URL never has to escape: letters, digits and four marks (RFC 3986, section 2.3).
_NEEDLESS = re.compile(r"%(?:4[1-9A-Fa-f]|5[0-9Aa]|6[1-9A-Fa-f]|7[0-9Aa]|3[0-9])")
_NEEDLESS_ALLOWED = 3
_LETTER_RUN = re.compile(r"[^\W_]+")
_URL = ("http://", "https://", "ftp://", "www.")
# Scripts that put no blanks between words.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ud7ff\uf900-\ufaff"
                       "\uff00-\uffef\U00020000-\U0003134f]")  # fmt: skip


def encoded_blobs(view: View) -> Iterator[Finding]:
    """Base64, hexadecimal, percent and escape sequences: text that hides from every other check."""
    for finding in _encoded(view):
        # Asked last: prompts are read only where there is something to excuse.
        if CODES_ASKED.search(view.prompt):
            return
        yield finding


def _encoded(view: View) -> Iterator[Finding]:
    if max(view.lengths) < _SHORTEST and not _may_be_bytes(view):
        return
    for run, at in _runs(view):
        what = _payload(run)
        if what and not view.asked_for(run) and not _in_url(view.text, at):
            yield Finding("encoded", f"{what}: {shown(run)}", char_span=(at, at + len(run)))
    if max(view.lengths) >= _SHORTEST and "%" in view.text:
        yield from _percent(view)
    text = view.text
    if "\\x" in text or "\\u" in text or "&#" in text or _may_be_bytes(view):
        for match in islice(_ESCAPED.finditer(text), _LOOKED_AT):
            if _says_more_than_digits(match[0]) and not view.asked_for(match[0]):
                message = f"escaped characters: {shown(match[0])}"
                yield Finding("encoded", message, char_span=match.span())


def _runs(view: View) -> Iterator[tuple[str, int]]:
    """Runs that could be a payload, and where they start.

    One pass: were each looked for from the start, those that a URL excuses would be looked for by
    the ten thousand.
    """
    at = 0
    for word in islice((w for w in view.words if len(w) >= _SHORTEST), _LOOKED_AT):
        at = view.text.index(word, at)
        for match in _RUN.finditer(word[:4096]):
            yield match[0], at + match.start()
        at += len(word)


def _payload(run: str) -> str | None:
    """What an unbroken run is, if it is an encoding of something."""
    if run.lower() == run.upper():
        return None  # 0.3333333: weak models write them by the hundred
    digits = sum(map(str.isdigit, run[:_LOOKED_AT]))
    for name, decode in _DECODERS:
        if _says_text(run, decode):
            return f"{name} that decodes to text"
    if _LONG_HEX.fullmatch(run) and digits:
        return None if len(run) in _DIGESTS else "hexadecimal data"
    if len(run) < _BINARY or "_" in run.strip("_") or run.count("/") > len(run) / 12:
        return None
    piece = run[:_LOOKED_AT]
    upper, lower = sum(map(str.isupper, piece)), sum(map(str.islower, piece))
    # Base64 of anything has all three kinds in fair shares; camel case has few capitals.
    if min(upper, lower) >= len(piece) / 8 and digits >= 2 and _mixed(piece):
        return "base64 data"
    return None


def _from_base64(run: str) -> bytes:
    body = run.rstrip("=").replace("-", "+").replace("_", "/")[:_DECODED]
    body = body[:-1] if len(body) % 4 == 1 else body
    return base64.b64decode(body + "=" * (-len(body) % 4)) if len(body) >= _SHORTEST - 2 else b""


def _from_base32(run: str) -> bytes:
    body = run.rstrip("=")[:_DECODED]
    fits = len(body) >= 20 and len(body) % 8 in (0, 2, 4, 5, 7)
    return base64.b32decode(body + "=" * (-len(body) % 8)) if fits else b""


def _from_hex(run: str) -> bytes:
    body = run.removeprefix("0x")[:_DECODED]
    return bytes.fromhex(body[: len(body) - len(body) % 2]) if len(body) >= 20 else b""


_DECODERS: tuple[tuple[str, Callable[[str], bytes]], ...] = (
    ("base64", _from_base64),
    ("base32", _from_base32),
    ("hexadecimal", _from_hex),
)


def _says_text(run: str, decode: Callable[[str], bytes]) -> bool:
    """Whether the run decodes to printable ASCII, mostly letters; a word does once in 10^5."""
    try:
        data = decode(run)
    except (binascii.Error, ValueError):
        return False
    if not data or not all(32 <= byte < 127 or byte in (9, 10, 13) for byte in data):
        return False
    return sum(chr(byte).isalpha() or byte == 32 for byte in data) >= 0.6 * len(data)


def _mixed(piece: str) -> bool:
    """Whether the kind of character changes as often as in random data."""
    kinds = [c.isupper() + 2 * c.isdigit() for c in piece]
    changes = sum(a != b for a, b in pairwise(kinds))
    return changes >= 0.35 * len(piece)


def _percent(view: View) -> Iterator[Finding]:
    for match in islice(_PERCENT.finditer(view.text), _LOOKED_AT):
        # Chinese in a URL has to be escaped; letters never have to.
        needless = sum(1 for _ in islice(_NEEDLESS.finditer(match[0]), _LOOKED_AT))
        in_url = _in_url(view.text, match.start())
        if (not in_url or needless > _NEEDLESS_ALLOWED) and not view.asked_for(match[0]):
            message = f"percent-encoded text: {shown(match[0])}"
            yield Finding("encoded", message, char_span=match.span())


def _in_url(text: str, at: int) -> bool:
    head = text[max(at - _LONGEST_URL, 0) : at]
    word = head.rsplit(maxsplit=1)[-1] if head and not head[-1].isspace() else ""
    return any(mark in word for mark in _URL)


def _may_be_bytes(view: View) -> bool:
    """Whether a list of bytes could be there at all: many words in a row of two, or of eight."""
    lengths = view.lengths
    row = bytes(lengths if max(lengths) < 256 else [min(n, 255) for n in lengths])
    return b"\x08" * 6 in row or (b"\2" * 14 in row and not HEX_LETTERS.isdisjoint(view.vocabulary))


def _says_more_than_digits(piece: str) -> bool:
    """Two-digit numbers in a row are a list of ages, not a list of bytes."""
    if piece[0] in "\\&" or set(piece) <= set("01 \t"):
        return True
    return sum(c in "abcdefABCDEF" for c in piece) >= 4


class OverlongTokens:
    """Runs without a break that are longer than words are.

    Args:
        letters: Longest run of letters and digits with a letter in it.
        token: Longest run without white space, whatever it holds; URLs get five times as much.
    """

    def __init__(self, letters: int = 64, token: int = 1000) -> None:
        self.letters = letters
        self.token = token

    def __call__(self, view: View) -> Iterator[Finding]:
        at = 0
        if max(view.lengths) <= self.letters:
            return
        for word in view.words:
            if len(word) <= self.letters:
                continue
            at = view.text.index(word, at)
            span = self._run(word)
            if span is not None and not view.asked_for(word[span[0] : span[1]]):
                start, end = span
                message = f"{end - start} characters without a break: {shown(word[start:end])}"
                yield Finding("overlong_token", message, char_span=(at + start, at + end))
            at += len(word)

    def _run(self, word: str) -> tuple[int, int] | None:
        url = word.startswith(_URL)
        for match in _LETTER_RUN.finditer(word):
            start, end = match.span()
            if end - start <= self.letters or (url and end - start <= _LONGEST_URL):
                continue
            if not match[0].isdigit() and not _UNSPACED.search(match[0][: self.letters]):
                return start, end
        # Without its digits: a quotient that never ends is bad arithmetic, not a payload.
        rest = len(word) - sum(map(str.isdigit, word)) if len(word) > self.token else 0
        if rest > self.token * (5 if url else 1) and not _UNSPACED.search(word):
            return 0, len(word)
        return None
