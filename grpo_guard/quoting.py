"""What strangers wrote, as messages and terminals may show it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any, Final

# A metaclass may have a `__name__` of its own.
_class_name: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__

# What a terminal carries out, or shows in another order than it is there: control characters but
# the tab and the line feed, marks of direction, line separators; and lone surrogates, which no
# stream can write.
_UNPRINTABLE: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Text that a terminal only shows: whatever it would carry out is escaped, ``\\x1b`` for one.

    A file's name may hold an escape sequence, and so may what a message quotes from a file. Raw, it
    could rewrite lines that the operator has read, or answer for the terminal.
    """
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


class PrintableFormatter(logging.Formatter):
    """Of log records that a terminal may show, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def log_handler() -> logging.Handler:
    """Writes log records to standard error, printable."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(levelname)s %(name)s: %(message)s"))
    return handler


def shown(value: Any, most: int = 80) -> str:
    """A stranger's value as a message may quote it: escaped, in ASCII, ``most`` characters at most.

    Of what is neither text nor a plain number, its type alone: `repr` may raise, for an integer of
    4,300 digits or what is nested too deeply, and of lists that hold each other it may not return.
    """
    # By its type, since `isinstance` asks an object for a `__class__`, which may raise; and by the
    # built-in types' own methods, since a subclass may have a `__repr__` that raises.
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
        text = ascii(_class_name(kind))[1:-1]
    return text if len(text) <= most else f"{text[: most - 4]}...{text[-1]}"


def fits(value: int) -> bool:
    """Whether it is an int64. Python refuses to print integers of 4,300 digits and more: an error
    message about one would be an error of its own, and take the whole batch along."""
    return -(2**63) <= value < 2**63
