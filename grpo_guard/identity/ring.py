"""`KeyRing`: which keys are known, agreed on beforehand or pinned at first use.

Names are for people: a ring says which key a name stands for, and evidence never rests on a name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from grpo_guard.completion import shown
from grpo_guard.identity.keys import PREFIX, IdentityError, require_label, require_public

MOST_PINNED: Final = 64
_LARGEST_FILE: Final = 2**20


class KeyRing:
    """Which keys are known, and by which name each.

    Args:
        keys: Name -> public key, agreed on beforehand.
        pin: Whether an unknown key becomes known by its first valid signature, under the name
            that it then claims. Whoever comes first has the name, and names are nobody's evidence.
        most_pinned: Keys that may become known so. When they are, later ones stay unknown: whoever
            makes keys without end fills this room, and never that of the agreed ones.

    Raises:
        IdentityError: what is no key, a name twice, or a key under two names.
    """

    def __init__(
        self,
        keys: Mapping[str, str] | None = None,
        *,
        pin: bool = False,
        most_pinned: int = MOST_PINNED,
    ) -> None:
        if isinstance(most_pinned, bool) or not isinstance(most_pinned, int) or most_pinned < 0:
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
    ) -> KeyRing:
        """A ring from lines ``NAME ed25519:...``; blank lines and those that begin with # are none.

        Raises:
            IdentityError: it cannot be read, or a line is none; with its number.
        """
        path = Path(path)
        try:
            with path.open("rb") as file:
                data = file.read(_LARGEST_FILE + 1)
            text = data.decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            said = getattr(error, "strerror", None) or "no UTF-8 text"
            raise IdentityError(f"{path}: expected a readable file of keys, got {said}") from None
        if len(data) > _LARGEST_FILE:
            raise IdentityError(f"{path}: expected at most {_LARGEST_FILE} bytes, got more")
        ring = cls(pin=pin, most_pinned=most_pinned)
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            try:
                if len(words) != 2:
                    raise IdentityError(f"expected a name and a public key, got {len(words)} words")
                ring._add(*words)
            except IdentityError as error:
                raise IdentityError(f"{path}:{number}: {error}") from None
        return ring

    @property
    def names(self) -> dict[str, str]:
        """Public key -> name, of all that are known now."""
        return dict(self._by_key)

    @property
    def pinned(self) -> dict[str, str]:
        """Name -> public key, of those that were pinned."""
        return dict(self._pinned)

    @property
    def has_room(self) -> bool:
        """Whether one more key may be pinned."""
        return self.pin and len(self._pinned) < self.most_pinned

    def is_pinned(self, key: str) -> bool:
        """Whether a key was pinned, and not agreed on."""
        return self._by_key.get(key) in self._pinned

    def key_of(self, name: str) -> str | None:
        """The key of a name; of a key that is known, itself."""
        return name if name in self._by_key else self._by_name.get(name)

    def name_of(self, key: str) -> str | None:
        """The name of a key."""
        return self._by_key.get(key)

    def pin_key(self, name: str, key: str) -> None:
        """Remember a key; its signature has been checked.

        Raises:
            IdentityError: it does not fit what is known, or there is no room.
        """
        if not self.has_room:
            raise IdentityError(f"expected at most {self.most_pinned} pinned keys, got one more")
        self._add(name, key)
        self._pinned[name] = key

    def state_dict(self) -> dict[str, Any]:
        """The pinned keys as plain JSON values."""
        return {"pinned": self.pinned}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """In place of the keys that are pinned now, those that `state_dict` gave.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: they are none; nothing has changed
                then.
        """
        pinned = dict(state["pinned"])
        agreed = {name: key for name, key in self._by_name.items() if name not in self._pinned}
        fresh = KeyRing(agreed, pin=True, most_pinned=max(self.most_pinned, len(pinned)))
        for name, key in pinned.items():
            # What has been agreed on since is no longer a matter of who came first.
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
