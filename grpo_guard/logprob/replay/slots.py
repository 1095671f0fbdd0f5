"""The slots of the current round, and which ones are filled.

A coin fixes each slot's completion, but a node could still choose among slots: from any round,
beyond its share, or already filled. Any such choice would again be cherry-picking among honest
samples, so it is refused here.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from grpo_guard.core.completion import Completion
from grpo_guard.core.prompts import Message
from grpo_guard.core.quoting import shown_name
from grpo_guard.core.verdict import Cause
from grpo_guard.logprob.coin import canonical
from grpo_guard.logprob.encoded import EncodeError, malformed
from grpo_guard.nodes.memory import Memory
from grpo_guard.nodes.saved import reading, require_format, text, whole
from grpo_guard.nodes.store import NodeStore

logger = logging.getLogger("grpo_guard")

# Until a round begins, the oldest slots beyond this number are forgotten.
MOST_FILLED = 2**18
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Place:
    """The slot claimed by a completion."""

    round: int
    node: str
    slot: int
    prompt: bytes  # a digest, empty if slots draw prompts


@dataclass(frozen=True, slots=True)
class EmptySlot:
    """A slot without an accepted completion."""

    node: str
    slot: int
    prompt: int | None = None  # index into the round's prompts


class SlotBook(Memory):
    """Keeps track of the slots, round after round. Thread-safe.

    Until `begin_round` is called, completions from all rounds are accepted, as is right for a file
    of finished completions. A warning says so, because a node that can name its own round can draw
    as often as it likes.

    Args:
        slots, nodes, store: As for `SeedReplayVerifier`; slots are numbered 0 ... slots - 1.
        per_prompt: Whether all nodes answer the same prompts, ``slots`` times each (GRPO groups).
            Turn this off if every slot draws its own prompt.

    Raises:
        ValueError: ``slots`` is not positive, or ``nodes`` is a single name.
    """

    def __init__(
        self,
        slots: int | None = None,
        *,
        nodes: Collection[str] | None = None,
        per_prompt: bool = True,
        store: NodeStore | None = None,
    ) -> None:
        if slots is not None and (type(slots) is not int or slots < 1):
            raise ValueError(f"slots: expected an integer >= 1 or None, got {slots!r}")
        if isinstance(nodes, str):
            raise ValueError(f"nodes: expected a list of names, got {nodes!r}")
        self.slots = slots
        self.nodes = None if nodes is None else frozenset(nodes)
        self.per_prompt = per_prompt
        self.round: int | None = None
        self._prompts: list[bytes] | None = None
        self._filled: dict[Place, None] = {}  # in the order of filling
        self._warned = False
        super().__init__(store, "slots")

    def begin_round(
        self, round: int, prompts: Sequence[str | Sequence[Message]] | None = None
    ) -> None:
        """Begin a round: from now on, only its completions count. Repeating the call is harmless.

        Any prompt not among ``prompts`` is refused. If they are None and the round has already
        begun, its prompts are kept; if it has not, the caller vouches for `Completion.prompt`.

        Raises:
            ValueError: the round is negative, or prompts are given though slots draw their own.
        """
        if type(round) is not int or round < 0:
            raise ValueError(f"round: expected an integer >= 0, got {round!r}")
        if isinstance(prompts, str):
            raise ValueError(f"prompts: expected a list of prompts, got {prompts!r:.80}")
        if prompts is not None and not self.per_prompt:
            raise ValueError("prompts: expected None, since every slot draws its own prompt")
        asked = None if prompts is None else [_digest(canonical(prompt)) for prompt in prompts]

        def begin() -> None:
            if round != self.round:
                self.round = round
                self._prompts = None
                self._filled.clear()
            if asked is not None:
                self._prompts = asked

        self.change(begin)

    def missing(self) -> list[EmptySlot]:
        """List the slots of the current round without an accepted completion, in order.

        A node that leaves slots empty also influences what is trained on, so count them. Raises
        ValueError if no round has begun, or its nodes or prompts are unknown.
        """
        if self.round is None or self.nodes is None or self.slots is None:
            raise ValueError(
                "missing: expected a round that has begun, the number of slots and the nodes' names"
            )
        if self.per_prompt and self._prompts is None:
            raise ValueError("missing: expected begin_round with the round's prompts")
        with self._lock:
            prompts = list(enumerate(self._prompts or ())) if self.per_prompt else [(None, b"")]
            return [
                EmptySlot(node, slot, index)
                for node in sorted(self.nodes)
                for index, prompt in prompts
                for slot in range(self.slots)
                if Place(self.round, node, slot, prompt) not in self._filled
            ]

    def place(self, completion: Completion) -> Place:
        """Return the slot claimed by a completion; raises EncodeError with MALFORMED if the author
        named no slot, or one that the author may not fill; LATE if the round is over, which may be
        a relay's fault."""
        round, node, slot = completion.round, completion.node, completion.slot
        if round is None or node is None or slot is None:
            absent = [n for n in ("round", "node", "slot") if getattr(completion, n) is None]
            raise malformed(f"a coin needs {' and '.join(absent)}; none was given", "slot_missing")
        if self.nodes is not None and node not in self.nodes:
            raise malformed(f"node {shown_name(node)} does not take part", "unknown_node")
        if slot < 0 or (self.slots is not None and slot >= self.slots):
            expected = "0 or more" if self.slots is None else f"0 to {self.slots - 1}"
            raise malformed(f"slot {slot}: expected {expected}", "unknown_slot")
        if round < 0:
            raise malformed(f"round {round}: expected 0 or later", "wrong_round")
        if self.round is None or self.slots is None:
            self._warn_once()
        if self.round is not None and round != self.round:
            cause = Cause.LATE if round < self.round else Cause.MALFORMED
            message = f"a completion of round {round}, but the current round is {self.round}"
            raise EncodeError(cause, message, "wrong_round")
        return Place(round, node, slot, self._prompt(completion))

    def fill(self, place: Place) -> bool:
        """Fill a slot and return whether it was free.

        A slot stays filled until the next round begins, even for the same completion, which would
        otherwise earn its reward twice if sent twice. The book must be `held`, once for all the
        slots in a batch. Raises EncodeError with UNSUPPORTED if another round has begun since.
        """
        with self._lock:
            if place in self._filled:
                return False
            if self.round is not None and place.round != self.round:
                raise EncodeError(Cause.UNSUPPORTED, f"round {place.round} has ended")
            self._filled[place] = None
            # A round keeps all its slots; a file of finished completions can be any length.
            while self.round is None and len(self._filled) > MOST_FILLED:
                del self._filled[next(iter(self._filled))]
            return True

    def fill_again(self, places: Iterable[Place]) -> None:
        """Refill slots after a reload, for verdicts already given."""
        for place in places:
            if self.round is None or place.round == self.round:
                self._filled[place] = None

    def _state(self) -> dict[str, Any]:
        prompts = None if self._prompts is None else [p.hex() for p in self._prompts]
        filled = [[p.round, p.node, p.slot, p.prompt.hex()] for p in self._filled]
        return {"format": FORMAT, "round": self.round, "prompts": prompts, "filled": filled}

    def _take_up(self, state: dict[str, Any]) -> None:
        with reading("SlotBook"):
            require_format(state, FORMAT)
            round = None if state["round"] is None else whole(state["round"])
            prompts = state["prompts"]
            if prompts is not None:
                prompts = [bytes.fromhex(prompt) for prompt in prompts]
            filled = {
                Place(whole(at), text(node), whole(slot), bytes.fromhex(prompt)): None
                for at, node, slot, prompt in state["filled"]
            }
        self.round, self._prompts, self._filled = round, prompts, filled

    def _warn_once(self) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "seed replay: any %s is accepted, so a node may choose among them; in training, "
                "pass slots= and call begin_round(round) at the start of each round",
                "round" if self.round is None else "slot",
            )

    def _prompt(self, completion: Completion) -> bytes:
        if not self.per_prompt:
            return b""
        try:
            prompt = _digest(canonical(completion.prompt))
        # Prompts that are not valid UTF-8 or are nested too deeply for json.dumps also fail here:
        # one such prompt must not abort the check of the whole batch.
        except (TypeError, ValueError, RecursionError) as error:
            raise malformed(f"prompt: {error}", "wrong_prompt") from None
        if self._prompts is not None and prompt not in self._prompts:
            raise malformed("this prompt is not asked in this round", "wrong_prompt")
        return prompt


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
