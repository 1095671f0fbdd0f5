"""Messages without secrets: what configurations, servers and clients say goes into logs, verdicts
and files that are passed on, and any of them may quote a key."""

from __future__ import annotations

import base64
import html
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus, unquote, urlsplit

HIDDEN = "***"
# Characters that a message may have in common with a secret before they are hidden, so that a part
# of it, or one between two escaped characters, is found as well.
_SHARED = 8
# What is shorter is no secret, and hiding it would spoil every message.
_SHORTEST = 4
_LOWER = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")
_NAMES_A_SECRET = re.compile(r"(?:key|token|secret|passw\w*|credential|auth\w*)s?$", re.IGNORECASE)
# How options are called. What is called otherwise may be a value that has slipped into a name.
OPTION = re.compile("[a-z_][a-z0-9_]{0,39}")
# Words joined by hyphens or begun with capitals, as people misspell names. Keys have digits, or
# capitals inside a word.
_WORD = "(?:[a-z]{1,14}|[A-Z][a-z]{1,13}|[A-Z]{1,14})"
_WORDS = re.compile(f"{_WORD}(?:[-_]{_WORD}){{0,4}}")
# What is a key by its looks, under whatever name somebody has put it.
_LOOKS_SECRET = re.compile(
    r"(?:sk|pk|rk|hf|gsk|xai|gh[a-z]|nvapi|r8|pplx)[-_][\w\-]{12,}|AIza[\w\-]{20,}"
    r"|(?<![\w/.\-])(?=[a-zA-Z_]*\d)(?=\d*[a-zA-Z_])\w{32,}(?![\w/.\-])"
)
# Two fields that a missing space or a quotation mark has made one string.
_SAYS_A_SECRET = re.compile(
    r"(?:key|token|secret|passw\w{0,8}|credentials?|auth\w{0,12})[\"']?\s{0,9}[:=]\s{0,9}(\S+)",
    re.IGNORECASE,
)


def is_name(text: str) -> bool:
    """Whether a text can be quoted as the name of an option: it is one, or one misspelt, and does
    not look like a key."""
    if OPTION.fullmatch(text):
        return True
    return _WORDS.fullmatch(text) is not None and _LOOKS_SECRET.search(text) is None


def hidden(text: str, secrets: Iterable[str]) -> str:
    """Text in which no secret stands, raw, escaped or encoded.

    A text that holds one in a way that cannot be told apart from the rest is withheld altogether:
    with other characters in between, backwards, or escaped several times. Whoever knows a secret
    can still disguise it further than anybody searches.
    Time is linear in both; cut long texts beforehand.

    Args:
        text: A message from outside.
        secrets: Keys and the like; those of fewer than 4 characters are left alone.
    """
    secrets = list(secrets)
    pieces = {p.translate(_LOWER) for secret in secrets for p in _pieces(secret)}
    found = _found(text, pieces)
    if found:
        text = "".join("\0" if i in found else c for i, c in enumerate(text))
        text = re.sub("\0+", HIDDEN, text)
    bare = {p for secret in secrets for form in _forms(secret) for p in _windows(_bare(form))}
    for read in _read_otherwise(text):
        plain = _bare(read)
        if _found(read, pieces) or _found(plain, bare) or _found(plain[::-1], bare):
            return "(a message that quotes a secret)"
    return text


def secrets_in(data: Any) -> set[str]:
    """The secrets of a configuration: strings under names like ``api_key``, wherever they stand;
    user, password, query and long path segments of addresses; what other strings say of keys; and
    names that are no option's.

    Args:
        data: As YAML gives it; it may contain itself.
    """
    found, seen = set[str](), set[tuple[int, bool]]()
    open_: list[tuple[Any, bool]] = [(data, False)]
    while open_:
        value, secret = open_.pop()
        if isinstance(value, str):
            said = (word.strip("'\",;()[]{}") for word in _SAYS_A_SECRET.findall(value))
            looks = _LOOKS_SECRET.findall(value)
            found |= {value} if secret else {*said, *looks, *_of_address(value)}
        elif isinstance(value, dict | list | tuple | set) and (id(value), secret) not in seen:
            seen.add((id(value), secret))
            if isinstance(value, dict):
                open_ += [(n, not is_name(n)) for n in value if isinstance(n, str)]
                open_ += [(v, secret or _names_one(name)) for name, v in value.items()]
            else:
                open_ += [(item, secret) for item in value]
    return {secret for secret in found if len(secret) >= _SHORTEST}


def _names_one(name: Any) -> bool:
    return isinstance(name, str) and _NAMES_A_SECRET.search(name) is not None


def _of_address(text: str) -> Iterator[str]:
    if "://" not in text:
        return
    try:
        parts = urlsplit(text)
    except ValueError:
        yield text
        return
    login = parts.netloc.rpartition("@")[0]
    yield from (login, *login.split(":", 1))  # together they are what a header quotes in base64
    yield from (pair.partition("=")[2] or pair for pair in parts.query.split("&"))
    yield from (part for part in (*parts.path.split("/"), parts.fragment) if len(part) >= 16)


def _pieces(secret: str) -> Iterator[str]:
    """Strings of at most 8 characters, one of which stands in whatever quotes the secret."""
    for form in _forms(secret):
        for one in {form, form.strip()}:
            if len(one) >= _SHORTEST:
                yield from _windows(one, _SHORTEST)


def _windows(text: str, least: int = _SHARED) -> Iterator[str]:
    if len(text) >= least:
        yield from (text[i : i + _SHARED] for i in range(max(1, len(text) - _SHARED + 1)))


def _bare(text: str) -> str:
    """Its letters and digits alone: separators, quotation marks and what is not seen may stand
    between the characters of a secret."""
    return re.sub("[^a-z0-9]", "", text.translate(_LOWER))


def _forms(secret: str) -> Iterator[str]:
    # Of an address it is the decoded form that is sent.
    for one in {secret, unquote(secret)}:
        raw = one.encode("utf-8", "replace")
        yield one
        yield quote(one, safe="", errors="replace")
        yield quote_plus(one, errors="replace")
        yield json.dumps(one)[1:-1]
        yield repr(one)[1:-1]
        yield repr(raw)[2:-1]
        yield html.escape(one)
        yield raw.hex()
        for before in range(3):  # in base64 the same bytes read in three ways
            whole = base64.b64encode(b"\0" * before + raw).decode()
            # Its first and last letters depend on what stands beside.
            inner = whole[4 if before else 0 : len(whole) - (4 if (before + len(raw)) % 3 else 0)]
            if len(inner) >= _SHARED:
                yield inner
                yield inner.translate(str.maketrans("+/", "-_"))


_ESCAPED = re.compile(r"(?:\\(?:x|u\{?|U)|%u|U\+|0x)0{0,6}([0-9a-fA-F]{2})\}?|\\([0-3][0-7]{2})")


def _read_otherwise(text: str) -> Iterator[str]:
    """The text as whoever undoes escapes would read it, also where they stand within others."""
    for _ in range(3):
        text = _ESCAPED.sub(
            lambda found: chr(int(found[1], 16) if found[1] else int(found[2], 8)), text
        )
        text = unicodedata.normalize("NFKC", html.unescape(unquote(text)))
        yield text


def _found(text: str, pieces: set[str]) -> set[int]:
    """Places of the text that a piece covers."""
    lower = text.translate(_LOWER)
    return {
        i + k
        for size in {len(piece) for piece in pieces}
        for i in range(len(lower) - size + 1)
        if lower[i : i + size] in pieces
        for k in range(size)
    }
