"""What a key has signed lately, so that nothing counts twice. Bounded for each key."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

MOST_IN_ROUND: Final = 4096
"""Completions of one key in one round: what further ones it signs is refused."""
ROOM_OF_PINNED: Final = 2**16
"""Completions of all keys pinned at first use, of which each has the same share."""
_DIGEST_BYTES: Final = 16


class _Filler(NamedTuple):
    """What fills a place: the digest of a message."""

    said: bytes
    given_up: threading.Event | None = None

    def __reduce__(self) -> Any:
        return _Filler, (self.said,)  # events are this process's own

    @property
    def holds(self) -> bool:
        return self.given_up is None or not self.given_up.is_set()


class Replays:
    """Places that are filled: (key, round, prompt, slot) -> the message that filled it.

    Only what a key has really signed comes in here, and each key has a window of its own over the
    rounds that it signs. So nobody can move another's window, fill its room or take its places.

    Args:
        late: Rounds that an envelope may be behind the newest of its key.
        most: Places of one key in one round.
    """

    def __init__(self, late: int, most: int = MOST_IN_ROUND) -> None:
        self.late, self.most = late, most
        self._newest: dict[str, int] = {}
        self._filled: dict[str, dict[int, dict[bytes, _Filler]]] = {}

    def refusal(
        self,
        key: str,
        round: int,
        place: bytes,
        said: bytes,
        given_up: threading.Event | None = None,
        *,
        in_all: int | None = None,
    ) -> str | None:
        """Fill a place; why not, where it cannot be: ``late``, ``replayed``, ``contradicted`` or
        ``too_many``.

        Args:
            key: The signer's.
            round: That the message names.
            place: Digest of prompt and slot.
            said: The message.
            given_up: Once it is set the place is free again: nobody heard what was said of it.
            in_all: Places of this key in all of its rounds; None = no limit beside ``most``.
        """
        said = digest(said)
        newest = self._newest.get(key, round)
        if round < newest - self.late:
            return "late"
        if round >= newest:
            self._newest[key] = round
            rounds = self._filled.setdefault(key, {})
            for old in [r for r in rounds if r < round - self.late]:
                del rounds[old]
        filled = self._filled[key].setdefault(round, {})
        known = filled.get(place)
        if known is not None and known.holds:
            return "replayed" if known.said == said else "contradicted"
        if known is None:
            held = 0 if in_all is None else sum(map(len, self._filled[key].values()))
            if len(filled) >= self.most or (in_all is not None and held >= in_all):
                return "too_many"
        filled[place] = _Filler(said, given_up)
        return None

    def state_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            key: {
                "newest": newest,
                "filled": {
                    str(round): {p.hex(): f.said.hex() for p, f in filled.items() if f.holds}
                    for round, filled in self._filled.get(key, {}).items()
                },
            }
            for key, newest in self._newest.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """In place of what is known.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: it is none; nothing has changed then.
        """
        newest, filled = {}, {}
        for key, kept in state.items():
            newest[str(key)] = int(kept["newest"])
            filled[str(key)] = {
                int(round): {bytes.fromhex(p): _Filler(bytes.fromhex(s)) for p, s in places.items()}
                for round, places in kept["filled"].items()
            }
        self._newest, self._filled = newest, filled


def digest(data: bytes) -> bytes:
    """Of a place, or of a message."""
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()
