"""Remove secrets from messages. Error messages about configurations, or from servers and clients,
end up in logs, verdicts and files that are passed on, and any of them could quote a key."""

import base64
import html
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus, unquote, urlsplit

HIDDEN = "***"
# Secrets are searched for in pieces of this length, so that part of a secret, such as the part
# between two escaped characters, is found as well.
_SHARED = 8
# Shorter strings are not secrets, and hiding them would garble every message.
_SHORTEST = 4
_LOWER = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")
_NAMES_A_SECRET = re.compile(r"(?:key|token|secret|passw\w*|credential|auth\w*)s?$", re.IGNORECASE)
# The form of option names. Anything else could be a value that has slipped into its place.
OPTION = re.compile("[a-z_][a-z0-9_]{0,39}")
# Words joined by hyphens or capitalised, as people misspell names. Keys contain digits, or capitals
# inside a word.
_WORD = "(?:[a-z]{1,14}|[A-Z][a-z]{1,13}|[A-Z]{1,14})"
_WORDS = re.compile(f"{_WORD}(?:[-_]{_WORD}){{0,4}}")
# Strings that look like a key, whatever they are called.
_LOOKS_SECRET = re.compile(
    r"(?:sk|pk|rk|hf|gsk|xai|gh[a-z]|nvapi|r8|pplx)[-_][\w\-]{12,}|AIza[\w\-]{20,}"
    r"|(?<![\w/.\-])(?=[a-zA-Z_]*\d)(?=\d*[a-zA-Z_])\w{32,}(?![\w/.\-])"
)
# Two fields joined into one string by a missing space or quotation mark.
_SAYS_A_SECRET = re.compile(
    r"(?:key|token|secret|passw\w{0,8}|credentials?|auth\w{0,12})[\"']?\s{0,9}[:=]\s{0,9}(\S+)",
    re.IGNORECASE,
)


def is_name(text: str) -> bool:
    """Whether a string may be quoted as an option name: it has the form of a name, possibly
    misspelt, and does not look like a secret key."""
    if OPTION.fullmatch(text):
        return True
    return _WORDS.fullmatch(text) is not None and _LOOKS_SECRET.search(text) is None


def hidden(text: str, secrets: Iterable[str]) -> str:
    """Hide secrets of four or more characters in a message, whether raw, escaped or encoded.

    If a secret cannot be separated from the rest, because it is interleaved with other characters,
    reversed or escaped several times, the whole text is withheld. Anyone who knows a secret can
    still disguise it beyond what this function searches for. The time taken is linear in both
    arguments, so cut long texts beforehand.
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
    """Collect the secrets in parsed YAML: strings under names like ``api_key``, at any depth; user
    names, passwords, queries and long path segments in addresses; keys mentioned in other strings;
    and field names that cannot be option names."""
    found, seen = set[str](), set[tuple[int, bool]]()
    open_: list[tuple[Any, bool]] = [(data, False)]
    while open_:
        value, secret = open_.pop()
        if isinstance(value, str):
            values = (word.strip("'\",;()[]{}") for word in _SAYS_A_SECRET.findall(value))
            looks = _LOOKS_SECRET.findall(value)
            found |= {value} if secret else {*values, *looks, *_of_address(value)}
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


def host_of(address: str) -> str:
    """Return only ``scheme://host:port`` from an address; the rest might contain passwords and
    keys."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return "an address that cannot be read"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _of_address(text: str) -> Iterator[str]:
    if "://" not in text:
        return
    try:
        parts = urlsplit(text)
    except ValueError:
        yield text
        return
    login = parts.netloc.rpartition("@")[0]
    yield from (login, *login.split(":", 1))  # a header sends both together in base64
    yield from (pair.partition("=")[2] or pair for pair in parts.query.split("&"))
    yield from (part for part in (*parts.path.split("/"), parts.fragment) if len(part) >= 16)


def _pieces(secret: str) -> Iterator[str]:
    """Yield strings of at most 8 characters; any quotation of the secret contains one of them."""
    for form in _forms(secret):
        for one in {form, form.strip()}:
            if len(one) >= _SHORTEST:
                yield from _windows(one, _SHORTEST)


def _windows(text: str, least: int = _SHARED) -> Iterator[str]:
    if len(text) >= least:
        yield from (text[i : i + _SHARED] for i in range(max(1, len(text) - _SHARED + 1)))


def _bare(text: str) -> str:
    """Keep only letters and digits: separators, quotation marks and invisible characters can occur
    between the characters of a secret."""
    return re.sub("[^a-z0-9]", "", text.translate(_LOWER))


def _forms(secret: str) -> Iterator[str]:
    # An address is sent in decoded form.
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
        for before in range(3):  # the same bytes have three forms in base64
            whole = base64.b64encode(b"\0" * before + raw).decode()
            # The first and last letters depend on the adjacent bytes.
            inner = whole[4 if before else 0 : len(whole) - (4 if (before + len(raw)) % 3 else 0)]
            if len(inner) >= _SHARED:
                yield inner
                yield inner.translate(str.maketrans("+/", "-_"))


_ESCAPED = re.compile(r"(?:\\(?:x|u\{?|U)|%u|U\+|0x)0{0,6}([0-9a-fA-F]{2})\}?|\\([0-3][0-7]{2})")


def _read_otherwise(text: str) -> Iterator[str]:
    """Yield the text with its escapes undone once, twice and three times, for nested escapes."""
    for _ in range(3):
        text = _ESCAPED.sub(
            lambda found: chr(int(found[1], 16) if found[1] else int(found[2], 8)), text
        )
        text = unicodedata.normalize("NFKC", html.unescape(unquote(text)))
        yield text


def _found(text: str, pieces: set[str]) -> set[int]:
    """Return the positions in the text covered by any of the pieces."""
    lower = text.translate(_LOWER)
    return {
        i + k
        for size in {len(piece) for piece in pieces}
        for i in range(len(lower) - size + 1)
        if lower[i : i + size] in pieces
        for k in range(size)
    }
