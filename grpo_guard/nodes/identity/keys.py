"""Ed25519 keys: a node's private key in a file, and public keys as text.

A node is identified by its public key, written ``ed25519:`` and 64 lower-case hexadecimal digits.
"""

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from grpo_guard.core.completion import shown

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

MAX_LABEL: Final = 200
"""Maximum number of characters in the name of a node or a run; names are kept in memory."""
PREFIX: Final = "ed25519:"
PRIVATE: Final = "ed25519-private"
_PUBLIC: Final = re.compile(r"ed25519:[0-9a-f]{64}")
_PRIME: Final = 2**255 - 19
_OF_ORDER_8: Final = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
# The y-coordinates of the eight points of small order.
_SMALL_ORDER: Final = frozenset({0, 1, _PRIME - 1, _OF_ORDER_8, _PRIME - _OF_ORDER_8})


class IdentityError(ValueError):
    """A key, a key file or an object to sign has the wrong form."""


class SigningKey:
    """A node's private key.

    The `repr` of a key shows only its public half.

    Args:
        secret: 32 bytes from a secure random source; `SigningKey.new` draws them.

    Raises:
        IdentityError: the secret is not 32 bytes.
        ImportError: the cryptography package is missing; the message explains how to install it.
    """

    def __init__(self, secret: bytes) -> None:
        if not isinstance(secret, bytes) or len(secret) != 32:
            raise IdentityError("secret: expected 32 bytes")
        self._key: Ed25519PrivateKey = _ed25519().Ed25519PrivateKey.from_private_bytes(secret)
        self.public: str = PREFIX + self._key.public_key().public_bytes_raw().hex()

    @classmethod
    def new(cls) -> "SigningKey":
        """Generate a new random key."""
        return cls(os.urandom(32))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "SigningKey":
        """Read the key from a file made by `write`. Raises IdentityError if the file holds no
        private key, or can be read by users other than its owner."""
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
            if name != PRIVATE:
                raise ValueError
            return cls(bytes.fromhex(digits))
        except ValueError:  # do not quote the content: it may be a key
            raise IdentityError(
                f"{path}: expected a private key made by `grpo-guard identity new`"
            ) from None

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the key to a new file that only its owner can read. Raises FileExistsError if the
        file exists, because an overwritten key would be lost, or OSError if it cannot be written.
        """
        # Created with this mode rather than changed to it, so that nobody can open it in between.
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "w", encoding="ascii") as file:
            file.write(f"{PRIVATE} {self._key.private_bytes_raw().hex()}\n")

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message, 64 bytes."""
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"SigningKey({self.public})"

    def __reduce__(self) -> Any:
        raise TypeError("SigningKey: a private key cannot be pickled; write it to a file")


def require_label(field: str, value: object) -> str:
    """Check that a name is short and printable on one line, and return it. Raises IdentityError if
    the value is not such a name."""
    # No subclass of str: it could compare as one name and be signed as another.
    if (
        type(value) is str
        and 0 < len(value) <= MAX_LABEL
        and value.isprintable()
        and " " not in value  # no other blank is printable
    ):
        return value
    raise IdentityError(
        f"{field}: expected 1 to {MAX_LABEL} printable characters without spaces, "
        f"got {shown(value)}"
    )


def require_public(value: object) -> str:
    """Check a public key in its text form, and return it. Raises IdentityError if the key is
    malformed or unsafe."""
    if type(value) is str and _PUBLIC.fullmatch(value):
        # Signatures under such a key fit any message, so anyone could sign as this node.
        y = int.from_bytes(bytes.fromhex(value.removeprefix(PREFIX)), "little") & (1 << 255) - 1
        if y % _PRIME in _SMALL_ORDER:
            raise IdentityError(f"public_key: expected a key of large order, got {shown(value)}")
        return value
    # Anything that is not a public key may be a private one, so none of it is quoted.
    got = f"{len(value)} characters" if type(value) is str else type(value).__name__
    raise IdentityError(
        f"public_key: expected ed25519: and 64 hexadecimal digits in lowercase, got {got} of "
        "another form; `grpo-guard identity show FILE` prints the public key of a private one"
    )


def fingerprint(public: str) -> str:
    """Digest of a public key that two people can compare by voice, as eight groups of four hex
    digits."""
    from hashlib import sha256

    digits = sha256(require_public(public).encode()).hexdigest()[:32]
    return " ".join(digits[i : i + 4] for i in range(0, 32, 4))


@lru_cache(maxsize=1024)
def verifier_of(public: str) -> "Ed25519PublicKey":
    """Return the object that checks signatures made with a key."""
    raw = bytes.fromhex(require_public(public).removeprefix(PREFIX))
    key: Ed25519PublicKey = _ed25519().Ed25519PublicKey.from_public_bytes(raw)
    return key


def is_signed(public: str, signature: bytes, message: bytes) -> bool:
    """Whether the holder of a key has signed this message."""
    from cryptography.exceptions import InvalidSignature

    try:
        verifier_of(public).verify(signature, message)
    except (ValueError, InvalidSignature):  # ValueError: the bytes are not a key
        return False
    return True


def require_crypto() -> None:
    """Raise ImportError, with the remedy, if the cryptography package is missing."""
    _ed25519()


@lru_cache(maxsize=1)
def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError as error:
        from grpo_guard.core.registry import with_remedy

        raise with_remedy(error) from None
    return ed25519
