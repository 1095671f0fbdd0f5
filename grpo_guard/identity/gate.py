"""`Identity`: says for each completion whose it is, before any verifier looks at it.

.. code-block:: python

    identity = Identity(KeyRing.from_file("nodes.keys"), run="run-7")
    batch, given = identity.admit(received, round=12)
    review = guard.review(batch, given)

A `Guard` that has an ``identity`` does that by itself, in every adapter. What is admitted has its
signer's public key as its node. What is refused has no node, so it counts against nobody: the name
on it is whoever the sender wanted to harm.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from grpo_guard.completion import Completion, shown
from grpo_guard.identity.envelope import (
    ENVELOPE,
    Envelope,
    EnvelopeError,
    fits,
    message,
    prompt_bytes,
)
from grpo_guard.identity.keys import PREFIX, IdentityError, require_crypto, require_label
from grpo_guard.identity.replays import MOST_IN_ROUND, ROOM_OF_PINNED, Replays, digest
from grpo_guard.identity.ring import KeyRing
from grpo_guard.nodes.memory import Memory
from grpo_guard.nodes.store import NodeStore
from grpo_guard.verdict import Cause, Finding, Verdict, reject

NAME: Final = "identity"
REFUSED: Final = Cause.UNAUTHENTICATED
REFUSALS: Final[Mapping[str, str]] = {
    "unsigned": "it came without an envelope",
    "malformed_envelope": "its envelope cannot be read",
    "other_run": "it was signed for another run",
    "unknown_key": "its key is not known",
    "wrong_key": "it was signed with a key that is not this node's",
    "forged": "its signature does not fit what it signs",
    "relabelled": "it came under another node, round or slot than it was signed for",
    "late": "it was signed for a round that is over",
    "early": "it was signed for a round that has not begun",
    "mixed": "not all that it came with is its signer's",
    "replayed": "it has come before",
    "contradicted": "its signer filled this slot with something else before",
    "too_many": "its signer has sent too much in this round",
}
"""Why a completion is refused, by the kind of the finding."""
ANY_ROUND: Final = 2**63
"""As ``late``: more rounds than an envelope can be behind."""


class Admitted:
    """Stands in ``metadata`` in the place of an envelope that has been checked.

    An object, since whatever JSON can say a sender could say as well. It means nothing in another
    process: what was unpickled may be a sender's, so it is no envelope any more.
    """

    def __copy__(self) -> Admitted:
        return self

    def __deepcopy__(self, memo: object) -> Admitted:
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, ("admitted in another process",)

    def __repr__(self) -> str:
        return "ADMITTED"


ADMITTED: Final = Admitted()


class Admission(NamedTuple):
    """What came of a batch, one each and in order: as `Guard.review` takes it.

    Args:
        batch: The completions. ``node`` is the public key of who signed it, and None where nobody
            known did.
        given: A rejection of what is refused; elsewhere what was given before.
    """

    batch: list[Completion]
    given: list[Verdict | None]


@dataclass(frozen=True, slots=True)
class _Signed:
    """A completion whose signature fits.

    Args:
        envelope: Its envelope.
        place: Digest of the place that it fills.
        said: The message that was signed.
    """

    envelope: Envelope
    place: bytes
    said: bytes


class _Pins(Memory):
    """Keys pinned at first use, in a store that several processes share."""

    def __init__(self, store: NodeStore, ring: KeyRing) -> None:
        super().__init__(store, NAME)
        self._ring = ring

    def _state(self) -> dict[str, Any]:
        return self._ring.state_dict()

    def _take_up(self, state: dict[str, Any]) -> None:
        self._ring.load_state_dict(state)


# What is known of a completion; None: unsigned, and admitted so.
_State: TypeAlias = _Signed | Finding | Admitted | None


class Identity:
    """Checks envelopes, and remembers what was signed. Threads may share it.

    Args:
        ring: The keys that are known.
        run: Name of the training run: what was signed for another is refused.
        unsigned: ``"admit"`` lets work without an envelope through, without a node: it is verified
            and earns, and counts neither for nor against anybody. A bad envelope is refused
            all the same.
        late: Rounds that an envelope may be behind.
        most: Completions of one key in one round; more are refused. What has come takes some 200
            bytes of memory and 72 of a checkpoint each, so an agreed key at most
            ``(late + 1) * most`` times that. Pinned keys share `ROOM_OF_PINNED` places equally, all
            rounds together, since anybody can have them: none takes another's.
        store: Where pinned keys are kept; None = until the process ends.

    Attributes:
        given_up: Asked in the thread of `admit`: an event that is set once nobody waits for its
            answer, as what was not answered may come again; None = it is waited for.

    Raises:
        IdentityError: an argument is out of range.
        ImportError: the package cryptography is missing; with the command that installs it.
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
        if isinstance(late, bool) or not isinstance(late, int) or late < 0:
            raise IdentityError(f"late: expected a number of rounds >= 0, got {shown(late)}")
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise IdentityError(f"most: expected a number of completions >= 1, got {shown(most)}")
        self.ring, self.run, self.unsigned = ring, require_label("run", run), unsigned
        self._replays = Replays(late, most)
        self._lock = threading.Lock()
        # Agreed keys need no file, and no batch then waits for one.
        self._pins = _Pins(store, ring) if store is not None and ring.pin else None
        self.given_up: Callable[[], threading.Event | None] = _waits_for_ever

    def admit(
        self,
        batch: Sequence[Completion],
        given: Sequence[Verdict | None] | None = None,
        *,
        round: int | None = None,
        together: Sequence[Hashable] | None = None,
    ) -> Admission:
        """Whose each completion is; what is nobody's is refused. Never raises for what a sender
        wrote.

        Args:
            batch: As it came from the exchange. ``metadata["envelope"]`` holds the envelope;
                ``node``, ``round`` and ``slot`` what the exchange says, None where it says nothing.
                What has been admitted once passes as it is.
            given: Verdicts that are known already, see `Guard.review`; they are kept, and what they
                stand on loses its name as well unless it is signed. What was refused stays so.
            round: The training round now: envelopes may be ``late`` behind it, and not ahead. None
                = not known here, then each key's own newest round counts.
            together: Of each completion, what it came in, where an exchange carries several at once
                and they are used together or not at all: none of them fills its place unless one
                key signed them all. Or whoever passes a copy on with one of them spoilt would have
                the signer's own refused. None = each came by itself.

        Raises:
            ValueError: not one of ``given``, or of ``together``, per completion.
        """
        known: list[Verdict | None] = [None] * len(batch) if given is None else list(given)
        if len(known) != len(batch):
            raise ValueError(f"given: expected {len(batch)}, one per completion, got {len(known)}")
        units: Sequence[Hashable] = range(len(batch)) if together is None else together
        if len(units) != len(batch):
            raise ValueError(f"together: expected {len(batch)}, one each, got {len(units)}")
        # Signatures first: they take long, and the store's file is held by nobody meanwhile.
        # What was refused before is not looked at again, without the label for which it was: it
        # would fill the place of its signer's own copy.
        found = [
            None if verdict is not None and verdict.cause is REFUSED else self._signed(completion)
            for completion, verdict in zip(batch, known, strict=True)
        ]
        found = [
            self._fitting(completion, state, round) if isinstance(state, _Signed) else state
            for completion, state in zip(batch, found, strict=True)
        ]
        if together is not None:
            found = _of_one_key(found, units)
        admitted: list[Completion] = []
        with self._lock, self._held(lambda: self._pin_again(found)):
            for i, (completion, state) in enumerate(zip(batch, found, strict=True)):
                if isinstance(state, _Signed):
                    state = self._filled(state) or state
                admitted.append(_labelled(completion, state))
                if known[i] is None and isinstance(state, Finding):
                    known[i] = reject(NAME, REFUSED, findings=(state,))
        return Admission(admitted, known)

    def state_dict(self) -> dict[str, Any]:
        """Pinned keys, and what came lately, as plain JSON values."""
        with self._lock, nullcontext() if self._pins is None else self._pins.fresh():
            return {**self.ring.state_dict(), "filled": self._replays.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave.

        Raises:
            ValueError: it is of another form; nothing has changed then.
        """
        # What the store still had would be taken up again before the next batch.
        with self._lock, self._held(lambda: self.ring.load_state_dict(state)):
            try:
                fresh = Replays(self._replays.late, self._replays.most)
                fresh.load_state_dict(state["filled"])
                self.ring.load_state_dict(state)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise ValueError(f"identity: expected a state of its own: {error!s:.200}") from None
            self._replays = fresh

    def allow_any_order(self) -> None:
        """From now on no round is over: for a file, whose groups are judged in an order that any of
        its senders can change."""
        self._replays.late = ANY_ROUND

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process knows the keys, and waits for nobody.
        return {**vars(self), "_lock": None, "given_up": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock, self.given_up = threading.Lock(), _waits_for_ever

    def _held(self, again: Callable[[], object]) -> AbstractContextManager[None]:
        """The pinned keys, to be changed; see `Memory.held`."""
        return nullcontext() if self._pins is None else self._pins.held(again)

    def _pin_again(self, found: Sequence[_State]) -> None:
        """Pin the keys that are new to what another process knows; who came first stays."""
        for envelope in (state.envelope for state in found if isinstance(state, _Signed)):
            if self._of_ring(envelope) is None and self.ring.name_of(envelope.public_key) is None:
                self.ring.pin_key(envelope.node, envelope.public_key)

    def _signed(self, completion: Completion) -> _State:
        """A signature that fits; why it is refused; None: unsigned, and admitted so."""
        try:
            if is_admitted(completion):
                return ADMITTED
            envelope = Envelope.of(completion)
            if envelope is None:
                return None if self.unsigned == "admit" else _refusal("unsigned")
            # Cheap refusals first: a signature costs as much as the rest together.
            if envelope.run != self.run:
                return _refusal("other_run", f"for {shown(envelope.run)}, not {self.run!r}")
            if (problem := self._of_ring(envelope)) is not None:
                return problem
            said = message(envelope, completion)
            place = digest(prompt_bytes(completion.prompt) + b"%d" % envelope.slot)
            fitting = fits(envelope, said)
        except EnvelopeError as error:
            return _refusal("malformed_envelope", str(error)[:300])
        return _Signed(envelope, place, said) if fitting else _refusal("forged")

    def _of_ring(self, envelope: Envelope) -> Finding | None:
        """Why a key may not sign under this name; None where it may, or may be pinned for it."""
        name, key = envelope.node, envelope.public_key
        if self.ring.key_of(name) not in (None, key):
            return _refusal("wrong_key", f"of {shown(name)}")
        if self.ring.name_of(key) is None:
            # A name that is a key's stands for no other; its own key is welcome to it.
            if name.startswith(PREFIX) and name != key:
                return _refusal("wrong_key", f"of {shown(name)}")
            return None if self.ring.has_room else _refusal("unknown_key", key)
        if name not in (key, self.ring.name_of(key)):
            return _refusal("wrong_key", f"it is {shown(self.ring.name_of(key))}'s")
        return None

    def _fitting(
        self, completion: Completion, signed: _Signed, now: int | None
    ) -> _Signed | Finding:
        """Why a signed completion does not belong where it came; itself where it does."""
        if (label := self._other_label(completion, signed.envelope)) is not None:
            return _refusal("relabelled", label)
        round = signed.envelope.round
        if now is not None and not now - self._replays.late <= round <= now:
            return _refusal("early" if round > now else "late", f"for round {round}, it is {now}")
        return signed

    def _filled(self, signed: _Signed) -> Finding | None:
        """Take a signed completion in; why it is refused all the same."""
        envelope = signed.envelope
        if (problem := self._of_ring(envelope)) is not None:  # pinned since by another
            return problem
        key, round = envelope.public_key, envelope.round
        if self.ring.name_of(key) is None:
            self.ring.pin_key(envelope.node, key)
        kind = self._replays.refusal(
            key, round, signed.place, signed.said, self.given_up(), in_all=self._share_of(key)
        )
        return None if kind is None else _refusal(kind)

    def _share_of(self, key: str) -> int | None:
        """Places of a pinned key in all of its rounds; None: a file ends by itself, and what an
        agreed key may fill is bounded by the rounds that are not late."""
        if self._replays.late == ANY_ROUND or not self.ring.is_pinned(key):
            return None
        return max(1, ROOM_OF_PINNED // max(self.ring.most_pinned, len(self.ring.pinned)))

    def _other_label(self, completion: Completion, envelope: Envelope) -> str | None:
        """What the exchange says otherwise than the envelope; None where nothing is."""
        name = self.ring.name_of(envelope.public_key)
        if completion.node not in (None, envelope.node, envelope.public_key, name):
            return f"{shown(envelope.node)} signed it, it came as {shown(completion.node)}"
        for field in ("round", "slot"):
            came, signed = getattr(completion, field), getattr(envelope, field)
            if came not in (None, signed):
                return f"signed for {field} {signed}, it came as {field} {came}"
        return None


def is_admitted(completion: Completion) -> bool:
    """Whether `Identity.admit` has admitted it, and it is signed.

    Raises:
        EnvelopeError: nobody can say.
    """
    try:
        return type(completion.metadata.get(ENVELOPE)) is Admitted
    except Exception:  # a sender's object may raise anything
        raise EnvelopeError("it cannot be read") from None


def _waits_for_ever() -> threading.Event | None:
    return None


def _refusal(kind: str, more: str = "") -> Finding:
    return Finding(kind, REFUSALS[kind] + (f": {more}" if more else ""))


def _of_one_key(found: Sequence[_State], units: Sequence[Hashable]) -> list[_State]:
    """What is signed is refused where not all of its unit is signed with the same key."""
    keys: dict[Hashable, set[str | None]] = {}
    for state, unit in zip(found, units, strict=True):
        key = state.envelope.public_key if isinstance(state, _Signed) else None
        keys.setdefault(unit, set()).add(key)
    return [
        _refusal("mixed") if isinstance(state, _Signed) and len(keys[unit]) > 1 else state
        for state, unit in zip(found, units, strict=True)
    ]


def _labelled(completion: Completion, state: _State) -> Completion:
    """Under its signer's key; under no name where there is none.

    Of what is signed only the envelope's place stays of ``metadata``: what stands beside it was
    added by whoever passed it on, and verifiers would hold it against the signer.
    """
    if isinstance(state, Admitted):
        return completion
    if not isinstance(state, _Signed):
        return completion.with_labels(node=None)
    of = state.envelope
    return completion.with_labels(
        node=of.public_key, round=of.round, slot=of.slot, metadata={ENVELOPE: ADMITTED}
    )
