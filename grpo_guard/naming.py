"""Names from a known list: find the one that was meant, or refuse with the list."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from grpo_guard.redaction import hidden, secrets_in

_FEW = 20
"""Names that an error lists."""


class UnknownNameError(LookupError):
    """Nothing is registered under this name."""


def choose(known: Collection[str], name: str) -> str:
    """``name``, if it is among those that are known.

    Raises:
        UnknownNameError: with the names that exist, and the nearest one.
    """
    if name not in known:
        nearest = near(known, name)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        # Forty names hide the one that was meant.
        many = nearest and len(known) > _FEW
        expected = f"one of {len(known)} names" if many else f"one of {', '.join(known)}"
        # A quotation mark that closes late makes the rest of a line, keys and all, part of a name.
        got = hidden(name, secrets_in(name))
        raise UnknownNameError(f"expected {expected}, got {got!r:.200}{hint}")
    return name


def near(known: Collection[str], name: str) -> list[str]:
    """The name that was probably meant, alone in a list; [] if none is similar.

    Hyphens count as underscores and capitals as small letters, since that is how names go wrong.
    """
    plain = name.lower().replace("-", "_").replace(" ", "_")
    return difflib.get_close_matches(plain, known, n=1)
