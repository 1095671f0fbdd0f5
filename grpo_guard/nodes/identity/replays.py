"""Remember what each key has signed recently, so that nothing counts twice. Bounded per key."""

import threading
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

MOST_IN_ROUND: Final = 4096
"""Maximum number of completions per key and round; any more are refused."""
ROOM_OF_PINNED: Final = 2**16
"""Maximum number of completions of all pinned keys together, shared equally."""
_DIGEST_BYTES: Final = 16


class _Filler(NamedTuple):
    """The message that fills a place, as a digest."""

    message: bytes
    given_up: threading.Event | None = None

    def __reduce__(self) -> Any:
        return _Filler, (self.message,)  # events belong to this process

    @property
    def holds(self) -> bool:
        return self.given_up is None or not self.given_up.is_set()


class Replays:
    """Filled places: (key, round, prompt, slot) -> the message that filled the place.

    Only messages with a valid signature get here, and each key has its own window over the rounds
    that it signs: ``late`` rounds behind its newest, with ``most`` places each. So nobody can move
    another key's window, use up its room or take its places.
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
        message: bytes,
        given_up: threading.Event | None = None,
        *,
        in_all: int | None = None,
    ) -> str | None:
        """Fill a place, given as a digest of prompt and slot, with the message that ``key`` signed
        for ``round``. If that is not allowed, return why: ``late``, ``replayed``, ``contradicted``
        or ``too_many``.

        ``given_up`` is an event that frees the place again once set: the caller never got the
        answer. ``in_all`` limits the places of this key over all of its rounds; None if only
        ``most`` applies.
        """
        message = digest(message)
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
            return "replayed" if known.message == message else "contradicted"
        if known is None:
            held = 0 if in_all is None else sum(map(len, self._filled[key].values()))
            if len(filled) >= self.most or (in_all is not None and held >= in_all):
                return "too_many"
        filled[place] = _Filler(message, given_up)
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the filled places as plain JSON values."""
        return {
            key: {
                "newest": newest,
                "filled": {
                    str(round): {p.hex(): f.message.hex() for p, f in filled.items() if f.holds}
                    for round, filled in self._filled.get(key, {}).items()
                },
            }
            for key, newest in self._newest.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the current state; a malformed state raises an error and changes nothing."""
        newest, filled = {}, {}
        for key, kept in state.items():
            newest[str(key)] = int(kept["newest"])
            filled[str(key)] = {
                int(round): {bytes.fromhex(p): _Filler(bytes.fromhex(s)) for p, s in places.items()}
                for round, places in kept["filled"].items()
            }
        self._newest, self._filled = newest, filled


def digest(data: bytes) -> bytes:
    """Return the digest of a place or a message."""
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()
