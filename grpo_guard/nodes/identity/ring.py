"""`KeyRing`: the known keys, agreed on beforehand or pinned at first use.

Names are for people: a ring maps names to keys, and evidence is never tied to a name.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from grpo_guard.core.arguments import is_count
from grpo_guard.core.completion import shown
from grpo_guard.nodes.identity.keys import (
    PREFIX,
    PRIVATE,
    IdentityError,
    require_label,
    require_public,
)

MOST_PINNED: Final = 64
_LARGEST_FILE: Final = 2**20


class KeyRing:
    """The known keys with their names. Raises IdentityError if a key is malformed, a name occurs
    twice, or a key has two names.

    Args:
        keys: Public keys by name, agreed on beforehand.
        pin: Whether an unknown key becomes known through its first valid signature, under the name
            that it claims. The first key to claim a name gets it; names carry no evidence.
        most_pinned: Maximum number of keys to pin; later ones stay unknown. An attacker who
            generates keys endlessly can use up these places, but never those of the agreed keys.
    """

    def __init__(
        self,
        keys: Mapping[str, str] | None = None,
        *,
        pin: bool = False,
        most_pinned: int = MOST_PINNED,
    ) -> None:
        if not is_count(most_pinned):
            raise IdentityError(f"most_pinned: expected an integer >= 0, got {shown(most_pinned)}")
        self.pin, self.most_pinned = pin, most_pinned
        self._by_name: dict[str, str] = {}
        self._by_key: dict[str, str] = {}
        self._pinned: dict[str, str] = {}
        for name, key in (keys or {}).items():
            self._add(name, key)

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        *,
        pin: bool = False,
        most_pinned: int = MOST_PINNED,
    ) -> "KeyRing":
        """Read a ring from lines ``NAME ed25519:...``; blank lines and ``#`` comments are skipped.
        Raises IdentityError if the file cannot be read, or a line is malformed; the message gives
        the line number."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                data = file.read(_LARGEST_FILE + 1)
            text = data.decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "text that is not UTF-8"
            raise IdentityError(f"{path}: expected a readable file of keys, got {reason}") from None
        if len(data) > _LARGEST_FILE:
            raise IdentityError(f"{path}: expected at most {_LARGEST_FILE} bytes, got more")
        ring = cls(pin=pin, most_pinned=most_pinned)
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            try:
                if words[0] == PRIVATE:
                    raise IdentityError(
                        "expected a name and a public key, got a private key; "
                        "`grpo-guard identity show FILE` prints its public one"
                    )
                if len(words) != 2:
                    raise IdentityError(f"expected a name and a public key, got {len(words)} words")
                ring._add(*words)
            except IdentityError as error:
                raise IdentityError(f"{path}:{number}: {error}") from None
        return ring

    @property
    def names(self) -> dict[str, str]:
        """The names of all known keys, by public key."""
        return dict(self._by_key)

    @property
    def pinned(self) -> dict[str, str]:
        """The pinned public keys, by name."""
        return dict(self._pinned)

    @property
    def has_room(self) -> bool:
        """Whether one more key may be pinned."""
        return self.pin and len(self._pinned) < self.most_pinned

    def is_pinned(self, key: str) -> bool:
        """Whether a key was pinned rather than agreed on."""
        return self._by_key.get(key) in self._pinned

    def key_of(self, name: str) -> str | None:
        """Return the key with a given name, or None; a known key also counts as its own name."""
        return name if name in self._by_key else self._by_name.get(name)

    def name_of(self, key: str) -> str | None:
        """Return the name of a key, or None if the key is unknown."""
        return self._by_key.get(key)

    def pin_key(self, name: str, key: str) -> None:
        """Remember a key whose signature has been checked. Raises IdentityError if the key or its
        name contradicts a known one, or there is no room."""
        if not self.has_room:
            raise IdentityError(f"expected at most {self.most_pinned} pinned keys, got one more")
        self._add(name, key)
        self._pinned[name] = key

    def state_dict(self) -> dict[str, Any]:
        """Return the pinned keys as plain JSON values."""
        return {"pinned": self.pinned}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the pinned keys with those returned by `state_dict`. Raises ValueError,
        TypeError, KeyError or AttributeError if the state is malformed; in that case nothing
        changes."""
        pinned = dict(state["pinned"])
        agreed = {name: key for name, key in self._by_name.items() if name not in self._pinned}
        fresh = KeyRing(agreed, pin=True, most_pinned=max(self.most_pinned, len(pinned)))
        for name, key in pinned.items():
            # Keys agreed on since then take precedence over pinned ones.
            if fresh.key_of(name) is None and fresh.name_of(key) is None:
                fresh.pin_key(name, key)
        self._by_name, self._by_key = fresh._by_name, fresh._by_key
        self._pinned = fresh._pinned

    def _add(self, name: str, key: str) -> None:
        require_label("name", name)
        require_public(key)
        if name.startswith(PREFIX) and name != key:
            raise IdentityError(f"name: expected no other key than its own, got {shown(name)}")
        if name in self._by_name:
            raise IdentityError(f"expected each name once, got {shown(name)} twice")
        if key in self._by_key:
            raise IdentityError(f"expected one name for each key, got {key} twice")
        self._by_name[name], self._by_key[key] = key, name
