"""`Identity`: establishes who sent each completion, before any verifier looks at it.

.. code-block:: python

    identity = Identity(KeyRing.from_file("nodes.keys"), run="run-7")
    batch, given = identity.admit(received, round=12)
    review = guard.review(batch, given)

A `Guard` with an ``identity`` does this automatically, in every adapter. An admitted completion has
its signer's public key as its node. A refused completion has no node, so it counts against nobody:
the name on it may belong to a node that the sender wanted to harm.
"""

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from grpo_guard.core.arguments import is_count
from grpo_guard.core.completion import Completion, shown
from grpo_guard.core.forks import Lock
from grpo_guard.core.quoting import shown_name
from grpo_guard.core.verdict import Cause, Finding, Verdict, reject
from grpo_guard.nodes.identity.envelope import (
    ENVELOPE,
    Envelope,
    EnvelopeError,
    fits,
    message,
    prompt_bytes,
)
from grpo_guard.nodes.identity.keys import PREFIX, IdentityError, require_crypto, require_label
from grpo_guard.nodes.identity.replays import MOST_IN_ROUND, ROOM_OF_PINNED, Replays, digest
from grpo_guard.nodes.identity.ring import KeyRing
from grpo_guard.nodes.memory import Memory
from grpo_guard.nodes.store import NodeStore

NAME: Final = "identity"
REFUSED: Final = Cause.UNAUTHENTICATED
REFUSALS: Final[Mapping[str, str]] = {
    "unsigned": "it came without an envelope",
    "malformed_envelope": "its envelope cannot be read",
    "other_run": "it was signed for another run",
    "unknown_key": "its key is not known",
    "wrong_key": "it was signed with a key that is not this node's",
    "forged": "its signature does not match its content",
    "relabelled": "its node, round or slot differs from the signed one",
    "late": "it was signed for a round that is over",
    "early": "it was signed for a round that has not begun",
    "mixed": "the completions sent with it were not all signed with one key",
    "replayed": "it was sent before",
    "contradicted": "its signer already filled this slot with something else",
    "too_many": "its signer has sent too much in this round",
}
"""Reasons for refusing a completion, by the kind of the finding."""
ANY_ROUND: Final = 2**63
"""A value for ``late`` that no envelope can exceed."""


class Admitted:
    """The marker that replaces an envelope in ``metadata`` once the envelope has been checked.

    It is an object because a sender could send any JSON value. Pickling turns it into a string.
    """

    def __copy__(self) -> "Admitted":
        return self

    def __deepcopy__(self, memo: object) -> "Admitted":
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, ("admitted in another process",)

    def __repr__(self) -> str:
        return "ADMITTED"


ADMITTED: Final = Admitted()


class Admission(NamedTuple):
    """The outcome of admitting a batch, in order, in the form that `Guard.review` takes.

    Args:
        batch: The completions. ``node`` is the signer's public key, or None if no known key
            signed it.
        given: A rejection for each refused completion; otherwise the verdict already given, if any.
    """

    batch: list[Completion]
    given: list[Verdict | None]


class _Signed(NamedTuple):
    """A valid signature: its envelope, the digest of prompt and slot, and the signed bytes."""

    envelope: Envelope
    place: bytes
    message: bytes


class _Pins(Memory):
    """Keys pinned at first use, in a store that several processes share."""

    def __init__(self, store: NodeStore, ring: KeyRing) -> None:
        super().__init__(store, NAME)
        self._ring = ring

    def _state(self) -> dict[str, Any]:
        return self._ring.state_dict()

    def _take_up(self, state: dict[str, Any]) -> None:
        self._ring.load_state_dict(state)


# What is known about a completion; None if it is unsigned and admitted without a node.
_State: TypeAlias = _Signed | Finding | Admitted | None


class Identity:
    """Checks envelopes, and remembers what was signed. Safe to share between threads.

    Args:
        ring: The known keys.
        run: Name of the training run, such as ``"run-7"``; envelopes of other runs are refused.
        unsigned: What to do with work without an envelope. ``"admit"`` accepts it without a node:
            it is verified and can earn a reward, but counts neither for nor against any node. A bad
            envelope is refused all the same.
        late: Maximum number of rounds by which an envelope may lag behind the current round.
        most: Maximum number of completions per key and round; any more are refused. Each takes
            about 200 bytes of memory and 72 in a checkpoint, so an agreed key takes at most
            ``(late + 1) * most`` times that. Pinned keys, which anyone can create, share
            `ROOM_OF_PINNED` places equally over all rounds, so that no key uses up another's.
        store: Where to keep pinned keys; None to keep them in memory.

    Attributes:
        given_up: Function called in the thread of `admit`, or None. It returns an event that is set
            once the caller stops waiting, because an unanswered completion may be sent again, or
            None if the caller always waits.

    Raises:
        IdentityError: an argument is out of range.
        ImportError: the cryptography package is missing; the message explains how to install it.
    """

    def __init__(
        self,
        ring: KeyRing,
        *,
        run: str,
        unsigned: Literal["refuse", "admit"] = "refuse",
        late: int = 1,
        most: int = MOST_IN_ROUND,
        store: NodeStore | None = None,
    ) -> None:
        require_crypto()
        if unsigned not in ("refuse", "admit"):
            raise IdentityError(f"unsigned: expected 'refuse' or 'admit', got {shown(unsigned)}")
        if not is_count(late):
            raise IdentityError(f"late: expected a number of rounds >= 0, got {shown(late)}")
        if not is_count(most, 1):
            raise IdentityError(f"most: expected a number of completions >= 1, got {shown(most)}")
        self.ring, self.run, self.unsigned = ring, require_label("run", run), unsigned
        self._replays = Replays(late, most)
        self._lock = Lock()
        # Agreed keys need no file, so no batch has to wait for one.
        self._pins = _Pins(store, ring) if store is not None and ring.pin else None
        self.given_up: Callable[[], threading.Event | None] | None = None

    def admit(
        self,
        batch: Sequence[Completion],
        given: Sequence[Verdict | None] | None = None,
        *,
        round: int | None = None,
        together: Sequence[Hashable] | None = None,
    ) -> Admission:
        """Establish who sent each completion, or refuse it; no sender's input can raise an error.
        Raises ValueError if ``given`` or ``together`` does not have one entry per completion.

        Args:
            batch: Completions as received from the exchange. ``metadata["envelope"]`` holds the
                envelope; ``node``, ``round`` and ``slot`` are the exchange's claims, or None.
                A completion that was admitted before passes unchanged.
            given: Verdicts that are already known; see `Guard.review`. They are kept, but their
                completions still lose their node unless they are signed. Refusals are final.
            round: The current training round: envelopes may be ``late`` rounds behind it, but not
                ahead of it. If None (unknown), each key's own newest round counts instead.
            together: For each completion, a key of the unit it came in, for an exchange whose units
                of several completions are used in full or not at all. A unit fills its places only
                if a single key signed all of it: otherwise a relay could spoil one completion of a
                copy and so get the signer's original refused. None if each completion came on its
                own.
        """
        known: list[Verdict | None] = [None] * len(batch) if given is None else list(given)
        if len(known) != len(batch):
            raise ValueError(f"given: expected {len(batch)}, one per completion, got {len(known)}")
        units: Sequence[Hashable] = range(len(batch)) if together is None else together
        if len(units) != len(batch):
            raise ValueError(f"together: expected {len(batch)}, one each, got {len(units)}")
        # Signatures first: they take long, and nobody should hold the store's file in the meantime.
        # A completion refused earlier is not examined again: without the label for which it was
        # refused, it would fill the place of its signer's own copy.
        found = [
            None if verdict is not None and verdict.cause is REFUSED else self._signed(one, round)
            for one, verdict in zip(batch, known, strict=True)
        ]
        if together is not None:
            found = _refuse_mixed_units(found, units)
        admitted: list[Completion] = []
        with self._lock, self._held(lambda: self._restore_pins(found)):
            for i, (completion, state) in enumerate(zip(batch, found, strict=True)):
                if isinstance(state, _Signed):
                    state = self._record(state) or state
                admitted.append(_labelled(completion, state))
                if known[i] is None and isinstance(state, Finding):
                    known[i] = reject(NAME, REFUSED, findings=(state,))
        return Admission(admitted, known)

    def state_dict(self) -> dict[str, Any]:
        """Return pinned keys and recent messages as plain JSON values."""
        with self._lock, nullcontext() if self._pins is None else self._pins.fresh():
            return {**self.ring.state_dict(), "filled": self._replays.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Raises ValueError if the state is malformed; nothing
        changes in this case."""
        # Change the store too: otherwise its keys would be loaded again before the next batch.
        with self._lock, self._held(lambda: self.ring.load_state_dict(state)):
            try:
                fresh = Replays(self._replays.late, self._replays.most)
                fresh.load_state_dict(state["filled"])
                self.ring.load_state_dict(state)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise ValueError(f"identity: expected a state of its own: {error!s:.200}") from None
            self._replays = fresh

    def allow_any_order(self) -> None:
        """Accept any round from now on. For files, whose groups are judged in an order that any of
        their senders can change."""
        self._replays.late = ANY_ROUND

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process knows the keys, but has no caller that could give up.
        return {**vars(self), "given_up": None}

    def _held(self, again: Callable[[], object]) -> AbstractContextManager[None]:
        """Hold the pinned keys in order to change them; see `Memory.held`."""
        return nullcontext() if self._pins is None else self._pins.held(again)

    def _restore_pins(self, found: Sequence[_State]) -> None:
        """Pin the new keys on top of another process's state; earlier pins take precedence."""
        for envelope in (state.envelope for state in found if isinstance(state, _Signed)):
            new = self.ring.name_of(envelope.public_key) is None
            if new and self._name_conflict(envelope) is None:
                self.ring.pin_key(envelope.node, envelope.public_key)

    def _signed(self, completion: Completion, now: int | None) -> _State:
        """Check a completion's signature, and that it matches its label and the current round,
        ``now``. Return the signature if valid, the reason if refused, or None if accepted
        unsigned."""
        try:
            if is_admitted(completion):
                return ADMITTED
            envelope = Envelope.of(completion)
            if envelope is None:
                return None if self.unsigned == "admit" else _refusal("unsigned")
            # Cheap checks first: verifying a signature costs as much as all others together.
            if envelope.run != self.run:
                return _refusal("other_run", f"for {shown(envelope.run)}, not {self.run!r}")
            if (problem := self._name_conflict(envelope)) is not None:
                return problem
            signed_bytes = message(envelope, completion)
            place = digest(prompt_bytes(completion.prompt) + b"%d" % envelope.slot)
            fitting = fits(envelope, signed_bytes)
        except EnvelopeError as error:
            return _refusal("malformed_envelope", str(error)[:300])
        if not fitting:
            return _refusal("forged")
        if (label := self._label_conflict(completion, envelope)) is not None:
            return _refusal("relabelled", label)
        if now is not None and not now - self._replays.late <= envelope.round <= now:
            kind = "early" if envelope.round > now else "late"
            return _refusal(kind, f"for round {envelope.round}, it is {now}")
        return _Signed(envelope, place, signed_bytes)

    def _name_conflict(self, envelope: Envelope) -> Finding | None:
        """Return why a key may not sign under its name; None if it may, or may be pinned."""
        name, key = envelope.node, envelope.public_key
        if self.ring.key_of(name) not in (None, key):
            return _refusal("wrong_key", f"of {shown_name(name)}")
        owner = self.ring.name_of(key)
        if owner is None:
            # A name in the form of a key may only be used by that key.
            if name.startswith(PREFIX) and name != key:
                return _refusal("wrong_key", f"of {shown_name(name)}")
            return None if self.ring.has_room else _refusal("unknown_key", key)
        if name not in (key, owner):
            return _refusal("wrong_key", f"it is {shown_name(owner)}'s")
        return None

    def _record(self, signed: _Signed) -> Finding | None:
        """Record a signed completion; return why it is refused, or None."""
        envelope = signed.envelope
        if (problem := self._name_conflict(envelope)) is not None:  # pinned in the meantime
            return problem
        key, round = envelope.public_key, envelope.round
        if self.ring.name_of(key) is None:
            self.ring.pin_key(envelope.node, key)
        given_up = self.given_up and self.given_up()
        kind = self._replays.refusal(
            key, round, signed.place, signed.message, given_up, in_all=self._share_of(key)
        )
        return None if kind is None else _refusal(kind)

    def _share_of(self, key: str) -> int | None:
        """Return the number of places of a pinned key over all of its rounds, or None if there is
        no such limit: files are finite, and the rounds of agreed keys are limited by ``late``.
        """
        if self._replays.late == ANY_ROUND or not self.ring.is_pinned(key):
            return None
        return max(1, ROOM_OF_PINNED // max(self.ring.most_pinned, len(self.ring.pinned)))

    def _label_conflict(self, completion: Completion, envelope: Envelope) -> str | None:
        """Describe how the exchange's label contradicts the envelope; None if it does not."""
        name = self.ring.name_of(envelope.public_key)
        if completion.node not in (None, envelope.node, envelope.public_key, name):
            signer, came = shown_name(envelope.node), shown_name(completion.node)
            return f"{signer} signed it, it came as {came}"
        for field in ("round", "slot"):
            came, signed = getattr(completion, field), getattr(envelope, field)
            if came not in (None, signed):
                return f"signed for {field} {signed}, it came as {field} {came}"
        return None


def is_admitted(completion: Completion) -> bool:
    """Whether a completion is signed and has been admitted by `Identity.admit`. Raises
    EnvelopeError if the completion's metadata cannot be read."""
    try:
        return type(completion.metadata.get(ENVELOPE)) is Admitted
    except Exception:  # a sender's object may raise anything
        raise EnvelopeError("it cannot be read") from None


def _refusal(kind: str, more: str = "") -> Finding:
    return Finding(kind, REFUSALS[kind] + (f": {more}" if more else ""))


def _refuse_mixed_units(found: Sequence[_State], units: Sequence[Hashable]) -> list[_State]:
    """Refuse the signed completions of every unit that is not signed with a single key."""
    keys: dict[Hashable, set[str | None]] = {}
    for state, unit in zip(found, units, strict=True):
        key = state.envelope.public_key if isinstance(state, _Signed) else None
        keys.setdefault(unit, set()).add(key)
    return [
        _refusal("mixed") if isinstance(state, _Signed) and len(keys[unit]) > 1 else state
        for state, unit in zip(found, units, strict=True)
    ]


def _labelled(completion: Completion, state: _State) -> Completion:
    """Label a completion with its signer's key, or with no node if it has no valid signature.

    Only the envelope entry of a signed completion's ``metadata`` is kept: the rest is unsigned and
    may have been added in transit, and verifiers would hold it against the signer.
    """
    if isinstance(state, Admitted):
        return completion
    if not isinstance(state, _Signed):
        return completion.with_labels(node=None)
    of = state.envelope
    return completion.with_labels(
        node=of.public_key, round=of.round, slot=of.slot, metadata={ENVELOPE: ADMITTED}
    )
