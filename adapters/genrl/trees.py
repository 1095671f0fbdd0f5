"""GenRL: read and check peers' game trees before GenRL touches them.

GenRL trusts what it receives, and most errors cost more than the tree itself. A batch id that is
not the hash of its question raises halfway through a transplant and ends the game; a group of the
wrong size, or an answer of the wrong type, raises in the training step, where GenRL swallows the
exception and the node learns nothing. So trees that do not resemble this node's own are stopped
here.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from grpo_guard.adapters.received import Row, Unread, integer_from, read, received
from grpo_guard.core.cached_property import cached_property
from grpo_guard.core.completion import MAX_NAME, shown
from grpo_guard.core.detokenizer import special_ids

CLAIMS: Final = "grpo_guard"
"""The metadata key where a node says how its completions were sampled."""
STATES: Final = ("environment_states", "opponent_states", "personal_states")
MOST_PARTS: Final = 200_000
"""Maximum number of characters, numbers and containers in a tree's world state and metadata, not
counting ids."""
MOST_DEPTH: Final = 32
_CHARACTERS_PER_TOKEN: Final = 64  # far longer text is refused untokenised


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """One node of a game tree: a prompt and its G completions, all by the same agent.

    Args:
        agent: The author's name in GenRL; over hivemind it is a peer id, which is not
            authenticated.
        batch, place: The tree's batch id, and its index among the batch's trees in this stage.
        payload: GenRL's `Payload` as received, or the tree node in this node's own game state.
        prompt: The prompt that the trainer conditions on.
        asked: Whether this node has the same prompt, so that a completion may do what the prompt
            requests. A peer writes the world states of its trees, including the questions.
        problem: The reason why the tree must not reach GenRL; None if it may.
    """

    agent: Any
    batch: Any
    place: int
    payload: Any
    prompt: Any = ""
    asked: bool = False
    problem: str | None = None

    @property
    def texts(self) -> list[Any]:
        """The completions; [] if they are not a list."""
        actions = getattr(self.payload, "actions", None)
        return actions if isinstance(actions, list) else []

    @property
    def key(self) -> tuple[Any, ...]:
        """A key that is unique to the tree within its stage and survives copying."""
        return (self.agent, self.batch, tuple(self.texts))

    def environment(self, name: str) -> Any:
        """A field of the world state; None if it is missing."""
        fields = getattr(getattr(self.payload, "world_state", None), STATES[0], None)
        return fields.get(name) if isinstance(fields, Mapping) else None

    def rows(self, round: int, *, named: bool = True) -> list[Row]:
        """The tree's completions as rows, [G], or a single row that is rejected as malformed if the
        tree has a problem. Unless ``named`` is set, only a signed envelope identifies the
        sender."""
        name = str(self.agent) if named else None
        if self.problem is not None:
            return [received(self.prompt, "", malformed=self.problem, node=name, round=round)]
        found = read(_claims, self.payload)
        claims = found if isinstance(found, dict) else {}
        return [
            received(
                self.prompt,
                text,
                decoded=True,  # the trainer encodes the text; ids are only a claim for verifiers
                completion_ids=read(_ids_of, claims.get("completion_ids"), slot),
                prompt_trusted=self.asked,
                metadata={} if envelope is None else {"envelope": envelope},
                node=name,
                group=f"{self.agent}/{self.batch}/{self.place}",
                # One segment per stage of a game; each stage has its own rewards.
                rollout=f"{slot}",
                round=round,
                slot=slot,
                reference=self.environment("answer"),
            )
            for slot, text in enumerate(self.texts)
            for envelope in [read(_enveloped, claims.get("envelopes"), slot)]
        ]


def _claims(payload: Any) -> dict[str, Any]:
    """The sender's claims about its completions, from its own rollouts or from the metadata."""
    own = getattr(payload.actions, "claims", None)
    if own is not None:
        return dict(own)
    found = payload.metadata.get(CLAIMS) if isinstance(payload.metadata, dict) else None
    return found if isinstance(found, dict) else {}


def _of(values: Any, slot: int) -> Any:
    return values[slot] if isinstance(values, list) and slot < len(values) else None


def _ids_of(values: Any, slot: int) -> Any:
    """A completion's claimed ids. Only lists and tuples are read, whose parts `Form.problem` has
    counted: a backend that unpickles could pass a range of millions or an endless iterator."""
    ids = _of(values, slot)
    return ids if ids is None or type(ids) in (list, tuple) else Unread(type(ids).__name__)


def _enveloped(values: Any, slot: int) -> Any:
    """The envelope of a completion, or its type's name if it is not a dict: a backend that
    unpickles can pass any object that exists in this process, such as the mark of an admitted
    completion."""
    envelope = _of(values, slot)
    return envelope if envelope is None or type(envelope) is dict else type(envelope).__name__


def trees_of(state: Any, stage: int, agents: Collection[Any]) -> list[Tree]:
    """The trees of these agents in the local game state."""
    return [
        Tree(agent, batch, place, node)
        for agent, batches in state.trees.items()
        if agent in agents
        for batch, tree in batches.items()
        for place, node in enumerate(tree[stage])
    ]


@dataclass(frozen=True)
class Form:
    """The form that this game's trees must have, derived from this node's own trees in the stage.
    ``group_size``, the number of completions per tree (G), counts if it has none in the round;
    ``longest`` is the maximum number of tokens in a completion."""

    own: tuple[Tree, ...]
    group_size: int
    tokenizer: Any
    longest: int

    @cached_property
    def sizes(self) -> frozenset[int]:
        return frozenset(len(tree.texts) for tree in self.own) or frozenset({self.group_size})

    @cached_property
    def fields(self) -> frozenset[str]:
        """Fields present in all of this node's world states: reward functions read these fields,
        and raise if one is missing."""
        kept = [getattr(tree.payload.world_state, STATES[0], None) for tree in self.own]
        named = [frozenset(fields) for fields in kept if isinstance(fields, Mapping)]
        return frozenset.intersection(*named) if named else frozenset()

    @cached_property
    def hashed(self) -> bool:
        """Whether batch ids are GenRL's hash of the question, as its data managers assert."""
        return bool(self.own) and all(tree.batch == _hash_of(tree) for tree in self.own)

    @cached_property
    def unread(self) -> frozenset[int]:
        return frozenset(special_ids(self.tokenizer))

    def problem(self, tree: Tree) -> str | None:
        """The reason why a tree must not reach GenRL, or None. If this method raises, the tree is
        unreadable and must not reach GenRL either."""
        state, actions = tree.payload.world_state, tree.payload.actions
        if not is_name(tree.batch):
            return f"batch id: expected a text or an integer, got {shown(tree.batch)}"
        if not all(hasattr(state, name) for name in STATES):
            return f"world_state: expected a WorldState, got {shown(state)}"
        environment = state.environment_states
        if not isinstance(environment, dict):
            return f"environment_states: expected a dict, got {shown(environment)}"
        if missing := sorted(map(str, self.fields - environment.keys())):
            return f"environment_states: expected {', '.join(missing)[:80]}, got nothing"
        parts = (*(getattr(state, name) for name in STATES), tree.payload.metadata)
        most = MOST_PARTS + 2 * max(self.sizes) * self.longest  # ids are parts
        if not within(parts, most):
            return f"world_state, metadata: more than {most} parts, or nested too deeply"
        if self.hashed and tree.batch != _hash_of(tree):
            return "batch id: expected the hash of the question"
        if type(actions) is not list or not all(type(text) is str for text in actions):
            return f"actions: expected a list of texts, got {shown(actions)}"
        if len(actions) not in self.sizes:
            sizes = " or ".join(map(str, sorted(self.sizes)))
            return f"actions: expected {sizes} completions, got {len(actions)}"
        return self._problem_of_texts(actions)

    def tokenless(self, tree: Tree) -> int:
        """The number of completions in a tree that have no token for GenRL to train on."""
        return sum(not ids for ids in self._ids(tree.texts))

    def _ids(self, texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return ids

    def _problem_of_texts(self, texts: list[str]) -> str | None:
        too_long = f"completion: longer than {2 * self.longest} tokens"
        if any(len(text) > 2 * _CHARACTERS_PER_TOKEN * self.longest for text in texts):
            return too_long
        for text in texts:
            text.encode()  # tokenizers raise on a lone surrogate
        for ids in self._ids(texts):
            # GenRL trains on the text: the factor of 2 leaves room for a different tokenisation.
            if len(ids) > 2 * self.longest:
                return too_long
            if not self.unread.isdisjoint(ids):
                return "completion: a special token"
        return None


def is_name(value: Any) -> bool:
    """Whether a value can be an agent's name or a batch id, which are printed and remembered."""
    if isinstance(value, str):
        return type(value) is str and len(value) <= MAX_NAME
    return type(value) is int and integer_from(value) is not None


def _hash_of(tree: Tree) -> str | None:
    question = tree.environment("question")
    if not isinstance(question, str):
        return None
    return hashlib.md5(question.encode(), usedforsecurity=False).hexdigest()


def within(value: Any, most: int) -> bool:
    """Whether a structure has at most ``most`` parts and is nested at most `MOST_DEPTH` levels
    deep. Iterative, so hostile nesting cannot exhaust the stack."""
    pending = [(value, 0)]
    while pending:
        part, depth = pending.pop()
        inner: list[Any] = []
        if isinstance(part, Mapping):
            inner = [piece for item in part.items() for piece in item]
        elif isinstance(part, list | tuple | set):
            inner = list(part)
        most -= len(part) if isinstance(part, str | bytes) else 1
        pending += [(piece, depth + 1) for piece in inner]
        # Copying and packing recurse, and deep nesting would crash them.
        if most < len(pending) or (inner and depth >= MOST_DEPTH):
            return False
    return True


def offered(payloads: Any, form: Form, skipped: Collection[Any], each: int) -> Iterator[Tree]:
    """Yield the first ``each`` trees that an agent sent, with a problem if they are unusable.

    ``payloads`` is the pair of an agent and its ``{batch: [Payload]}``. Trees whose key is in
    ``skipped`` arrived earlier, and count as sent twice."""
    agent, batches = payloads
    if not isinstance(batches, dict):
        yield Tree(agent, None, 0, None, problem=f"expected batches, got {shown(batches)}")
        return
    seen = set(skipped)
    trees = (
        Tree(agent, batch, place, payload)
        for batch, row in batches.items()
        for place, payload in enumerate(row if isinstance(row, list | tuple) else [row])
    )
    for tree in islice(trees, each):
        try:
            problem = form.problem(tree)
            if problem is None and tree.key in seen:
                problem = "sent twice"
        except Exception as error:  # payloads can be any kind of object
            problem = f"it could not be read: {type(error).__name__}"
        else:
            if problem is None:
                seen.add(tree.key)
        yield replace(tree, problem=problem)
