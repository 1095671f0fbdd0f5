"""The bytes that a node signs with each completion: one byte sequence per meaning.

Two different messages never have the same bytes. The signed bytes begin with a domain of their own,
so that no signature made for another purpose is valid here. The SHA-256 digest of the contents
follows: no two contents with the same digest are known, and Ed25519 would have to read a long
completion three times. The contents are all fields in a fixed order, each preceded by a tag for its
kind and, if its length varies, by its length, so that no field can be mistaken for the start of the
next. Numbers have fixed width, and log-probs are raw IEEE 754 float64: nothing is rounded to
decimals, and 0.0 and -0.0 differ. Text is not normalised, so the signed text matches the judged
text character by character.

Everything that a verifier reads is signed. Data added by the exchange is not: `Completion.group`,
`Completion.rollout`, and ``metadata``, where only the envelope is kept. If a reference or a finish
reason were not signed, an attacker could change it in another node's work and get that node's work
rejected.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from typing import Any, Final

from grpo_guard.core.completion import Completion, shown
from grpo_guard.nodes.identity.keys import (
    IdentityError,
    SigningKey,
    is_signed,
    require_label,
    require_public,
)

DOMAIN: Final = b"grpo-guard completion 1\n"
ENVELOPE: Final = "envelope"
"""The envelope's key in `Completion.metadata`."""
_FIELDS: Final = ("run", "round", "node", "slot", "public_key", "signature")
_SIGNATURE_DIGITS: Final = 128


class EnvelopeError(IdentityError):
    """An envelope cannot be read, or cannot be made for a completion."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """A node's claims about one completion, with its signature over the claims and the completion.
    Raises EnvelopeError if a field has the wrong form.

    Args:
        run: Name of the training run.
        round: Training round in which the completion was generated, >= 0.
        node: The signer's name for itself.
        slot: Index among the signer's completions of this prompt in this round, >= 0.
        public_key: The signer's public key: ``ed25519:`` and 64 hexadecimal digits.
        signature: The signature, as 128 hexadecimal digits.
    """

    run: str
    round: int
    node: str
    slot: int
    public_key: str
    signature: str = ""

    def __post_init__(self) -> None:
        try:
            require_label("run", self.run)
            require_label("node", self.node)
            require_public(self.public_key)
        except IdentityError as error:
            raise EnvelopeError(str(error)) from None
        for name in ("round", "slot"):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value < 2**63:
                raise EnvelopeError(f"{name}: expected an integer >= 0, got {shown(value)}")

    @classmethod
    def of(cls, completion: Completion) -> "Envelope | None":
        """Return the envelope of a completion, or None if it has none. Raises EnvelopeError if the
        metadata entry is not an envelope."""
        try:
            data = completion.metadata.get(ENVELOPE)
            if data is None:
                return None
            if not isinstance(data, Mapping) or set(data) != set(_FIELDS):
                raise EnvelopeError(f"expected {', '.join(_FIELDS)}, got {shown(data)}")
            envelope = cls(**data)
            envelope.signature_bytes()
        except EnvelopeError:
            raise
        except Exception as error:  # a sender's object may raise anything
            raise EnvelopeError(f"it cannot be read: {type(error).__name__}") from None
        return envelope

    def signature_bytes(self) -> bytes:
        """Decode the signature to its 64 bytes. Raises EnvelopeError if the signature does not have
        128 hexadecimal digits."""
        try:
            if isinstance(self.signature, str) and len(self.signature) == _SIGNATURE_DIGITS:
                return bytes.fromhex(self.signature)
        except ValueError:
            pass
        expected = f"{_SIGNATURE_DIGITS} hexadecimal digits"
        raise EnvelopeError(f"signature: expected {expected}, got {shown(self.signature)}")

    def to_dict(self) -> dict[str, Any]:
        """Return the envelope in the form that goes into ``metadata``: JSON values only."""
        return {name: getattr(self, name) for name in _FIELDS}


def signed(completion: Completion, key: SigningKey, *, run: str) -> Completion:
    """Sign a completion, as a node does before sending it. Raises EnvelopeError if ``round`` or
    ``slot`` is missing, or the prompt cannot be encoded.

    Args:
        completion: The completion, with ``round`` and ``slot`` set, and with every field as the
            receiver will see it: any change in transit breaks the signature. ``node`` is the
            signer's name for itself; if None, its public key is used.
        key: The signer's key.
        run: Name of the training run.
    """
    for name in ("round", "slot"):
        if getattr(completion, name) is None:
            raise EnvelopeError(f"{name}: expected an integer, got nothing; it has to be signed")
    assert completion.round is not None
    assert completion.slot is not None
    node = key.public if completion.node is None else completion.node
    bare = Envelope(run, completion.round, node, completion.slot, key.public)
    signature = key.sign(message(bare, completion)).hex()
    sealed = bare.to_dict() | {"signature": signature}
    return completion.with_labels(metadata={**completion.metadata, ENVELOPE: sealed})


def fits(envelope: Envelope, data: bytes) -> bool:
    """Whether the holder of the envelope's key signed these bytes."""
    return is_signed(envelope.public_key, envelope.signature_bytes(), data)


def message(envelope: Envelope, completion: Completion) -> bytes:
    """Return the bytes to sign: the domain, followed by the digest of `contents`, which can raise
    EnvelopeError."""
    return DOMAIN + sha256(contents(envelope, completion)).digest()


def contents(envelope: Envelope, completion: Completion) -> bytes:
    """Encode everything that a signature covers, injectively. Raises EnvelopeError if the prompt
    holds something without an encoding, such as an image."""
    of = completion
    return b"".join(
        (
            _text(envelope.run),
            struct.pack(">q", envelope.round),
            _text(envelope.node),
            struct.pack(">q", envelope.slot),
            _text(envelope.public_key),
            prompt_bytes(of.prompt),
            _text(of.text),
            _numbers("q", of.prompt_ids),
            _numbers("q", of.completion_ids),
            _numbers("d", of.sampler_logprobs),
            _text(of.finish_reason),
            _text(of.task),
            _text(of.reference),
            *_spans(of),
        )
    )


def _spans(of: Completion) -> tuple[bytes, bytes]:
    """Encode the spans claimed to come from tools and users; forged spans would exempt or blame
    text."""
    if of.given is None:
        return _numbers("q", None), _numbers("q", None)
    tokens, chars = ([*chain.from_iterable(s)] for s in (of.given.tokens, of.given.chars))
    return _numbers("q", tokens), _numbers("q", chars)


def prompt_bytes(prompt: Any) -> bytes:
    """Encode a prompt, bounded in depth and size by `Completion`, injectively, except that a list
    and a tuple of the same parts are equal. Raises EnvelopeError if a part is not text, a number,
    bytes, null, a list or a mapping."""
    if isinstance(prompt, str):
        return _text(prompt)
    parts: list[bytes] = []
    _write(prompt, parts)
    return b"".join(parts)


def _write(part: Any, into: list[bytes]) -> None:
    if part is None or isinstance(part, str):
        into.append(_text(part))
    elif isinstance(part, bool):
        into.append(b"T" if part else b"F")
    elif isinstance(part, int):
        into.append(_counted(b"i", hex(part).encode()))
    elif isinstance(part, float):
        into.append(b"d" + struct.pack(">d", part))
    elif isinstance(part, bytes):
        into.append(_counted(b"b", part))
    elif isinstance(part, Mapping):
        into.append(b"{" + len(part).to_bytes(8, "big"))
        for key, value in part.items():  # order matters: templates may show it
            _write(key, into)
            _write(value, into)
    elif isinstance(part, list | tuple):
        into.append(b"[" + len(part).to_bytes(8, "big"))
        for value in part:
            _write(value, into)
    else:
        raise EnvelopeError(
            f"prompt: expected text, numbers, lists and mappings, got {shown(part)}; "
            "sign a substitute for it, such as a digest"
        )


def _text(value: str | None) -> bytes:
    # Lone surrogates, which JSON can hold, are encoded too.
    return b"-" if value is None else _counted(b"t", value.encode("utf-8", "surrogatepass"))


def _counted(tag: bytes, data: bytes) -> bytes:
    return tag + len(data).to_bytes(8, "big") + data


def _numbers(kind: str, values: Sequence[float] | None) -> bytes:
    if values is None:
        return b"-"
    return kind.encode() + struct.pack(f">Q{len(values)}{kind}", len(values), *values)
