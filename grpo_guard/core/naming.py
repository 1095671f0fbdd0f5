"""Look up a name in a list of known names, or refuse it with the list and the closest match."""

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any, Final
from weakref import WeakSet

from grpo_guard.core.redaction import hidden, secrets_in

_FEW = 20
"""Maximum number of names listed in an error that can suggest one of them."""
NOWHERE: Final[Mapping[str, str]] = {}
CALLED: Final[Mapping[str, tuple[str, ...]]] = {
    "text": ("completion", "response", "output", "generated_text", "completions"),
    "prompt": ("question", "problem", "query", "messages", "input", "prompts"),
    "reference": ("ground_truth", "gts", "answer", "solution", "target"),
    "round": ("step",),
    "node": ("node_id", "peer", "peer_id", "worker"),
}
"""Field of a completion -> other names for it, most certain first."""
FIELD_CALLED: Final = {name: field for field, names in CALLED.items() for name in names}
"""Other name -> field of a completion."""
_WORDS: Final = re.compile("(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NAMED_AFTER_THEMSELVES: Final[WeakSet[type]] = WeakSet()


class UnknownNameError(LookupError):
    """Nothing is registered under this name."""


def choose(known: Collection[str], name: str, elsewhere: Mapping[str, str] = NOWHERE) -> str:
    """Return the name if it is known; otherwise raise UnknownNameError with the known names and the
    name that was probably meant. ``elsewhere`` maps names used by others to the known names of the
    same things, which need not be similar."""
    if name not in known:
        nearest = [elsewhere[name]] if name in elsewhere else near(known, name)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        # A list of forty names would bury the suggestion.
        many = nearest and len(known) > _FEW
        expected = f"one of {len(known)} known names" if many else f"one of {', '.join(known)}"
        # If a closing quote is misplaced, the rest of a line, keys included, ends up in the name.
        got = hidden(name, secrets_in(name))
        raise UnknownNameError(f"expected {expected}, got {got!r:.200}{hint}")
    return name


def near(known: Collection[str], name: str) -> list[str]:
    """Return the known name that was probably meant, as a one-element list; [] if none is similar.

    Hyphens count as underscores and capitals as lower case, because these are common slips.
    """
    plain = name.lower().replace("-", "_").replace(" ", "_")
    return difflib.get_close_matches(plain, known, n=1)


def name_after_itself(kind: Any, root: type) -> None:
    """Name a class after itself unless it declares a ``name`` or inherits one from a class other
    than ``root``: ``LongWords`` becomes ``long_words``."""
    declaring = next(one for one in kind.__mro__ if "name" in vars(one))
    if declaring is root or declaring in _NAMED_AFTER_THEMSELVES:
        kind.name = _WORDS.sub("_", kind.__name__).lower().strip("_")
        _NAMED_AFTER_THEMSELVES.add(kind)
