"""Keys: a node's own, and the ring of those that are known.

A node is its public key, written ``ed25519:`` and 64 hexadecimal digits. Names are for people: a
ring says which key a name stands for, and evidence never rests on the name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from grpo_guard.completion import shown

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

MAX_LABEL: Final = 200
"""Characters of a node's or a run's name: they are remembered."""
MOST_PINNED: Final = 64
PREFIX: Final = "ed25519:"
_PUBLIC: Final = re.compile(r"ed25519:[0-9a-f]{64}")
_LARGEST_FILE: Final = 2**20


class IdentityError(ValueError):
    """A key, a file of keys or what is to be signed has the wrong form."""


class SigningKey:
    """A node's private key.

    Its `repr` shows the public half alone.

    Args:
        secret: 32 bytes, from a secure source; `SigningKey.new` draws them.

    Raises:
        IdentityError: not 32 bytes.
        ImportError: the package cryptography is missing; with the command that installs it.
    """

    def __init__(self, secret: bytes) -> None:
        if not isinstance(secret, bytes) or len(secret) != 32:
            raise IdentityError("secret: expected 32 bytes")
        self._key: Ed25519PrivateKey = _ed25519().Ed25519PrivateKey.from_private_bytes(secret)
        self.public: str = PREFIX + self._key.public_key().public_bytes_raw().hex()

    @classmethod
    def new(cls) -> SigningKey:
        """A key that nobody has had before."""
        return cls(os.urandom(32))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> SigningKey:
        """The key in a file that `write` made.

        Raises:
            IdentityError: there is none, or others than its owner may read it.
        """
        path = Path(path)
        try:
            with path.open("rb") as file:
                open_to = os.fstat(file.fileno()).st_mode & 0o077
                text = file.read(200)
        except OSError as error:
            raise IdentityError(f"{path}: expected a private key, got {error.strerror}") from None
        if open_to:
            raise IdentityError(
                f"{path}: expected a file that its owner alone can read, got mode "
                f"{open_to:o} for others; chmod 600 it, and make a new key if others had access"
            )
        try:
            name, digits = text.decode("ascii").split()
            if name != "ed25519-private":
                raise ValueError
            return cls(bytes.fromhex(digits))
        except ValueError:  # what stands there may be a key: it is not quoted
            raise IdentityError(
                f"{path}: expected a private key made by `grpo-guard identity new`"
            ) from None

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it to a new file that only its owner can read.

        Raises:
            FileExistsError: something stands there; a key that is overwritten is lost.
            OSError: it cannot be written.
        """
        # Made with its mode, not given it afterwards: nobody can open it in between.
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "w", encoding="ascii") as file:
            file.write(f"ed25519-private {self._key.private_bytes_raw().hex()}\n")

    def sign(self, message: bytes) -> bytes:
        """64 bytes."""
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"SigningKey({self.public})"

    def __reduce__(self) -> Any:
        raise TypeError("SigningKey: a private key is not pickled; write it to a file")


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

    def pin_all(self, pinned: Mapping[str, str]) -> None:
        """In place of the keys that are pinned now, those that `pinned` gave.

        Raises:
            IdentityError: they do not fit; nothing has changed then.
        """
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


def require_label(field: str, value: object) -> str:
    """A name that can be remembered and written in a line.

    Raises:
        IdentityError: it is none.
    """
    if (
        isinstance(value, str)
        and 0 < len(value) <= MAX_LABEL
        and value.isprintable()
        and " " not in value  # no other blank is printable
    ):
        return value
    raise IdentityError(
        f"{field}: expected 1 to {MAX_LABEL} printable characters without blanks, "
        f"got {shown(value)}"
    )


def require_public(value: object) -> str:
    """A public key as text, in its one form.

    Raises:
        IdentityError: it is none.
    """
    if isinstance(value, str) and _PUBLIC.fullmatch(value):
        return value
    raise IdentityError(
        f"public_key: expected ed25519: and 64 hexadecimal digits in small letters, "
        f"got {shown(value)}"
    )


def fingerprint(public: str) -> str:
    """Of a public key, what two people compare by voice: eight groups of four digits."""
    from hashlib import sha256

    digits = sha256(require_public(public).encode()).hexdigest()[:32]
    return " ".join(digits[i : i + 4] for i in range(0, 32, 4))


@lru_cache(maxsize=1024)
def verifier_of(public: str) -> Ed25519PublicKey:
    """What checks the signatures of a key."""
    raw = bytes.fromhex(require_public(public).removeprefix(PREFIX))
    key: Ed25519PublicKey = _ed25519().Ed25519PublicKey.from_public_bytes(raw)
    return key


def is_signed(public: str, signature: bytes, message: bytes) -> bool:
    """Whether the holder of a key has signed this message."""
    try:
        verifier_of(public).verify(signature, message)
    except _invalid_signature():
        return False
    return True


def require_crypto() -> None:
    """Raises ImportError where the package cryptography is missing, with the remedy."""
    _ed25519()


@lru_cache(maxsize=1)
def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError as error:
        from grpo_guard.registry import with_remedy

        raise with_remedy(error) from None
    return ed25519


@lru_cache(maxsize=1)
def _invalid_signature() -> type[Exception]:
    from cryptography.exceptions import InvalidSignature

    return InvalidSignature
