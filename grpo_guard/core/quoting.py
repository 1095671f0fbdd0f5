"""Show untrusted values safely in messages and terminals."""

import logging
import re
import unicodedata
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

# Read from `type`, because a metaclass can define its own `__name__`.
_class_name: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__

# Characters that a terminal executes or that change the order of display: control characters except
# tab and line feed, direction marks, line separators; and lone surrogates, which no stream can
# write.
_UNPRINTABLE: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# Printable according to Python, but nothing is seen of them: fillers, joiners, variation selectors;
# and hyphens that look like the usual one.
_BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\u2010-\u2012\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
# Greek, Cyrillic and Armenian letters, many of which look like Latin ones.
_ALIKE: Final = re.compile("[\u0370-\u058f]")
_LATIN: Final = re.compile("[A-Za-z]")
# Blanks at the ends, and all but the first in a row.
_HIDDEN: Final = re.compile(r"^ +| +$|(?<= ) +")
LOG_LINE: Final = "%(asctime)s %(levelname)s {}: %(message)s"
"""A server's log line; ``{}`` is the logger's name."""
LOG_TIME: Final = "%Y-%m-%dT%H:%M:%S%z"
_MOST_AXES: Final = 64  # maximum for a NumPy array and for a torch tensor


def printable(text: str) -> str:
    """Escape everything in a string that a terminal would execute, such as ``\\x1b``.

    A file name can contain an escape sequence, and so can a message that quotes a file. Printed
    raw, the sequence could rewrite lines that the operator has already read, or type answers into
    the terminal.
    """
    return _UNPRINTABLE.sub(_escaped, text)


class PrintableFormatter(logging.Formatter):
    """Formats log records for terminals, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def log_handler() -> logging.Handler:
    """Create a handler that writes `printable` log records to standard error, with their time."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter(LOG_LINE.format("%(name)s"), LOG_TIME))
    return handler


def shown(value: Any, most: int = 80) -> str:
    """Quote an untrusted value for a message: escaped, in ASCII, at most ``most`` characters.

    Any value other than text and plain numbers is shown as its type: `repr` can raise for an
    integer of more than 4,300 digits or for deep nesting, and might never return for lists that
    contain each other.
    """
    # Check the type, because `isinstance` reads `__class__`, which can raise; and use the built-in
    # types' own methods, because a subclass can have a `__repr__` that raises.
    kind = type(value)
    if issubclass(kind, str):
        text = ascii(str.__str__(value)[:most])
    elif value is None or kind is bool:
        text = str(value)
    elif issubclass(kind, float):
        text = float.__repr__(value)
    elif issubclass(kind, int):
        number = int.__int__(value)
        text = int.__repr__(number) if fits(number) else "a larger one"
    else:
        text = ascii(_class_name(kind))[1:-1] + _shape(kind, value)
    return text if len(text) <= most else f"{text[: most - 4]}...{text[-1]}"


def unquoted(text: str, most: int = 80) -> str:
    """Escape untrusted text as `shown` does, but without quotes, for names in lists or tables."""
    return shown(text, most)[1:-1]


def one_line(text: str, most: int = 300) -> str:
    """Return an external message without line breaks and control characters, cut to ``most``
    characters. A server may quote a completion, which must not be able to forge log lines."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:10_000]).split())[:most]


def counted(count: int, one: str, several: str | None = None) -> str:
    """Write a number of things, such as ``1 row`` and ``1,200 rows``."""
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"


def visible(name: str) -> str:
    """Escape what cannot be seen in a name, and keep letters of every script as they are. Letters
    that look like Latin ones are escaped if the name has Latin ones too. So are variants of other
    letters, digits and hyphens, accents apart from their letter, and blanks that a table hides."""
    whole = unicodedata.is_normalized("NFC", name)
    seen = "".join(c if _is_plain(c, whole) else ascii(c)[1:-1] for c in name)
    seen = _HIDDEN.sub(lambda found: r"\x20" * len(found[0]), _BLANK.sub(_escaped, seen))
    return _ALIKE.sub(_escaped, seen) if _LATIN.search(name) else seen


def _is_plain(c: str, whole: bool) -> bool:
    """Whether a character is seen, and is no variant of another; ``whole`` says that accents are
    part of their letters."""
    if c.isascii() or not c.isprintable():
        return c.isprintable()
    variant = unicodedata.category(c)[0] in "LNP" and unicodedata.normalize("NFKC", c)
    alike = variant and variant != c and all(v.isalnum() or v in "-." for v in variant)
    return not alike and (whole or not unicodedata.combining(c))


def _escaped(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


def shown_name(name: str, most: int = 80) -> str:
    """Quote a node's name for a message, at most ``most`` characters, with letters of every script
    as they are: the operator knows the node by this name, and copies it."""
    text = visible(repr(str.__str__(name)[:most]))
    return text if len(text) <= most else f"{text[: most - 4]}...{text[-1]}"


def _shape(kind: type, value: Any) -> str:
    """Describe the shape of an array or a tensor, which is usually what is wrong with it; "" if the
    shape cannot be read, as for a nested tensor."""
    try:
        if kind.__module__.partition(".")[0] not in ("numpy", "torch"):
            return ""
        sizes = [int.__int__(size) for size in islice(value.shape, _MOST_AXES)]
        return f" of shape {sizes}" if sizes else ""
    except Exception:  # from another library, or a class posing as an array
        return ""


def fits(value: int) -> bool:
    """Whether an integer fits in an int64. Python refuses to print integers of more than 4,300
    digits, so an error message about one would itself raise, failing the whole batch."""
    return -(2**63) <= value < 2**63
