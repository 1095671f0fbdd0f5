"""GenRL: a node's game under a guard (docs/genrl.md).

All completions of a stage, from this node and its peers, are reviewed once, in a single batch, when
the peers' completions arrive. Each tree's result is reused when its rewards are requested.

In GenRL an exception ends the game and leaves only a line in the log. So the guard never raises: if
the guard itself fails, no foreign tree is admitted, no completion earns a reward, and an error is
logged.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from grpo_guard.adapters.genrl.gate import Admission, prompted
from grpo_guard.adapters.genrl.rewards import Raw, guarded_store, raw_rewards, settled
from grpo_guard.adapters.genrl.rollouts import Around, Exchange
from grpo_guard.adapters.genrl.trees import Form, Tree, is_name, trees_of
from grpo_guard.adapters.received import Row, parts_of, read, reference_from
from grpo_guard.adapters.reward_function import Cannot, RewardFunction, fitted
from grpo_guard.core.completion import Completion
from grpo_guard.core.prompts import prompt_key
from grpo_guard.core.verdict import accept
from grpo_guard.guard import Guard
from grpo_guard.guard.framework import FrameworkError
from grpo_guard.guard.policy import AbstainError
from grpo_guard.guard.review import Review

if TYPE_CHECKING:
    from grpo_guard.nodes.identity.keys import SigningKey

logger = logging.getLogger("grpo_guard")

_CANNOT: Cannot = {
    ("on_abstain", "raise"): "GenRL takes an exception for the end of the game, logs it and goes "
    'on as if the game were over; choose on_abstain="skip" or "zero".'
}


class GuardedGame:
    """A node's state in the current round, and the guarded parts of its game.

    Args:
        guard: The guard that judges and settles. A completion that it leaves out gets the mean
            reward of the others in its group: its advantage is 0, and the baseline is the same as
            without it. With ``failures``, a failing reward function does not end the game; only its
            failures on this node's own trees are counted, and if there are too many, no completion
            earns a reward.
        state: The `GameState` that the game manager uses.
        trainer: GenRL's trainer, which provides the tokenizer, the group size and the maximum
            completion length, and logs the guard's metrics.
        admission: Decides which foreign trees are admitted.
        on_round: Called with the round's number before the first review in the round, such as
            ``begin_round`` of a `SeedReplayVerifier`.
        review_own: Whether to review this node's own completions. If False, they are accepted
            unseen, which saves their share of the guard's time, but verifiers that compare nodes,
            such as recurrence, do not see them.
        key: This node's `SigningKey`, for a guard with ``identity``; signs what the node sends.

    Raises:
        FrameworkError: the policy asks for something that GenRL cannot do, or the guard has an
            identity and ``key`` is missing.
    """

    def __init__(
        self,
        guard: Guard,
        state: Any,
        trainer: Any,
        *,
        admission: Admission | None = None,
        on_round: Callable[[int], None] | None = None,
        review_own: bool = True,
        key: "SigningKey | None" = None,
    ) -> None:
        self.guard = fitted(guard, "GenRL", _CANNOT)
        self.state, self.trainer, self.key = state, trainer, key
        self.admission = admission or Admission()
        self.on_round, self.review_own = on_round, review_own
        if guard.identity is not None and key is None:
            raise FrameworkError(
                "key: expected this node's SigningKey, because the guard identifies nodes by their "
                "signatures and this node's own work has to carry one"
            )
        self._data: Any = None
        self._round: int | None = None
        self._own: frozenset[Any] = frozenset()
        self._found: dict[tuple[Any, ...], Review] = {}
        self._logged: set[str] = set()

    def data(self, manager: Any) -> Any:
        """Wrap the data manager in one that sees only the admitted trees of its peers."""
        self._data = manager
        return GatedData(self, manager)

    def rewards(self, store: Any) -> Any:
        """Copy a `RewardFnStore` or `RoundRewardFnStore` with all its functions guarded. Raises
        FrameworkError if an item is not a function, or is async."""
        return guarded_store(store, self.guard, self.reward)

    def exchange(self, communication: Any) -> Any:
        """Wrap the communication backend in one that also sends what `rollouts` recorded, signed if
        this node has a key."""
        return Exchange(communication, self.claims, self.warn)

    def admitted(self, state: Any, swarm: Any) -> dict[Any, Any]:
        """The payloads for this node's data manager: the node's own, plus those admitted from its
        peers. ``swarm`` holds the payloads as received, ``{agent: {batch: [Payload]}}``; nothing in
        them can make this method raise."""
        own = state.get_latest_communication()
        try:
            self._begin(state)
            own = self.without_peers(own)
            # Received payloads under this node's own name are ignored: hivemind lets others
            # overwrite them, and this node knows what it sent.
            mine = {str(agent) for agent in own}
            peers = {
                agent: sent
                for agent, sent in swarm.items()
                if is_name(agent) and str(agent) not in mine
            }
            return own | self._reviewed(state, peers)
        except Exception as error:
            self._failed(error)
            return self.without_peers(own)

    def without_peers(self, payloads: dict[Any, Any]) -> dict[Any, Any]:
        """Keep only this node's own payloads, by agent."""
        return {agent: sent for agent, sent in payloads.items() if agent in self._own}

    def reward(self, function: RewardFunction, stage: int, state: Any) -> dict[Any, Any]:
        """Compute a stage's guarded rewards, ``{agent: {batch: [[G rewards] per node]}}``, all
        finite. Unless the guard has ``failures``, it raises what the reward function raises on this
        node's own trees, and TypeError if that returns no valid rewards for them."""
        found: list[Review] | None = None
        trees = trees_of(state, stage, state.trees.keys())
        try:
            self._begin(state)
            found = self._known(trees, state, stage)
        except Exception as error:
            self._failed(error)
        if self.guard.policy.watches:
            watched: dict[Any, Any] = function.call(state)
            return watched
        kept: list[list[float]] | None = None
        raw = self._raw(function, state, trees)
        try:
            if found is not None and raw is not None:
                kept = settled(self.guard, trees, found, raw)
        except Exception as error:
            self._failed(error)
        rewards: dict[Any, Any] = {
            agent: {b: [] for b in state.trees[agent]} for agent in state.trees
        }
        for i, tree in enumerate(trees):
            row = [0.0] * len(tree.texts) if kept is None else kept[i]
            rewards[tree.agent][tree.batch].append(row)
        return rewards

    def _raw(self, function: RewardFunction, state: Any, trees: Sequence[Tree]) -> list[Raw] | None:
        """The function's rewards; None if it failed too often, because that must not end the
        game."""
        try:
            return raw_rewards(function, state, trees, self._own, self.warn)
        except AbstainError as error:
            if function.failures is None:  # raised by the function itself
                raise
            self.warn(f"{function.name} failed too often: no completion earns a reward", error)
            self._log({"guard/failed": 1.0})
            return None

    def _begin(self, state: Any) -> None:
        """Forget the previous round. The trees in the state at the start of a round, before any
        from peers arrive, are this node's own."""
        if state.round == self._round:
            return
        self._own, self._found = frozenset(state.trees), {}
        if self.on_round is not None:
            self.on_round(state.round)
        self._round = state.round

    def _reviewed(self, state: Any, peers: dict[Any, Any]) -> dict[Any, Any]:
        stage = state.stage
        own = trees_of(state, stage, self._own)
        form = Form(
            tuple(own),
            group_size=self.trainer.args.num_generations,
            tokenizer=self.trainer.processing_class,
            longest=self.trainer.args.max_new_tokens,
        )
        known = [key for s, *key in self._found if s == stage]
        drawn = self.admission.drawn(peers, form, map(tuple, known))
        own, drawn = prompted(self._data, own, drawn, stage)
        found = self._judged([*own, *drawn], stage)
        args = self.trainer.args
        smallest = math.gcd(*form.sizes, getattr(args, "minibatch_size", 2))
        room = smallest - 1 - sum(map(form.tokenless, own))
        taken = self.admission.taken(drawn, form, found[len(own) :], self.guard.policy, room)
        admitted: dict[Any, Any] = {}
        for tree in filter(self._answered, taken):
            admitted.setdefault(tree.agent, {}).setdefault(tree.batch, []).append(tree.payload)
        count = sum(len(row) for batches in admitted.values() for row in batches.values())
        malformed = sum(tree.problem is not None for tree in drawn)
        counts = {"offered": len(drawn), "admitted": count, "malformed": malformed}
        self._log({f"guard/trees/{n}": float(v) for n, v in counts.items()} | {"guard/failed": 0.0})
        return admitted

    def _known(self, trees: Sequence[Tree], state: Any, stage: int) -> list[Review]:
        """The review of each tree; any tree not yet reviewed is reviewed now."""
        new = [tree for tree in trees if (stage, *tree.key) not in self._found]
        if new:
            if self._data is not None:
                new, _ = prompted(self._data, new, [], stage)
            self._judged(new, stage)
        return [self._found[stage, *tree.key] for tree in trees]

    def _judged(self, trees: Sequence[Tree], stage: int) -> list[Review]:
        """Review all trees at once; the reviews of valid trees are kept until their rewards are
        requested."""
        ours = {prompt_key(tree.prompt) for tree in trees if tree.agent in self._own}
        rows = [self._rows(replace(t, asked=prompt_key(t.prompt) in ours)) for t in trees]
        batch, given, decoded = parts_of([row for of_tree in rows for row in of_tree])
        if self.guard.identity is not None:
            # A tree is admitted as a whole, so it takes its signer's places as a whole: otherwise,
            # a copy with one spoilt completion would keep the signer's own tree out.
            places = [i for i, of_tree in enumerate(rows) for _ in of_tree]
            batch, given = self.guard.identity.admit(batch, given, together=places)
        whole = self.guard.review(batch, given, decoded)
        self._log(whole.metrics)
        found, at = [], 0
        for tree, of_tree in zip(trees, rows, strict=True):
            found.append(whole.at(range(at, at + len(of_tree))))
            at += len(of_tree)
            if tree.problem is None:
                self._found[stage, *tree.key] = found[-1]
        return found

    def _rows(self, tree: Tree) -> list[Row]:
        rows = tree.rows(self._round or 0, named=self.guard.identity is None)
        if tree.agent not in self._own:
            return rows
        given = None if self.review_own else accept("own")
        return [Row(self._sealed(row.completion), row.given or given, row.decoded) for row in rows]

    def _sealed(self, completion: Completion) -> Completion:
        """Sign a completion as this node's own, if the guard checks signatures."""
        if self.guard.identity is None or self.key is None:
            return completion
        from grpo_guard.nodes.identity.envelope import signed

        return signed(completion, self.key, run=self.guard.identity.run)

    def _answered(self, tree: Tree) -> bool:
        """Whether a tree's rewards can be counted. Also replaces the peer's reference answer with
        the task's own. If the guard has references, a question that is not among them is refused:
        its only reference would be the sender's, which could make correct answers lose."""
        if self.guard.references is None:
            return True
        ours = self.guard.references.of(tree.prompt)
        fields = tree.payload.world_state.environment_states
        if ours is not None and read(reference_from, fields.get("answer")) != ours:
            tree.payload.world_state.environment_states = {**fields, "answer": ours}
        return ours is not None

    def claims(self, payloads: dict[Any, list[Any]], agent: Any) -> dict[Any, list[Any]]:
        """The claims to send with each payload of this node's ``{batch: [Payload]}``; None for a
        payload without claims. ``agent`` is this node's name in the exchange."""
        trees = [
            Tree(agent, batch, place, payload)
            for batch, row in payloads.items()
            for place, payload in enumerate(row)
        ]
        claims_of: dict[Any, list[Any]] = {batch: [] for batch in payloads}
        sealed = self.guard.identity is not None
        if sealed:
            trees, _ = prompted(self._data, trees, [], self.state.stage)
        for tree in trees:
            claims = dict(getattr(tree.payload.actions, "claims", {}))
            if sealed:
                rows = tree.rows(self.state.round, named=False)
                signed = [self._sealed(row.completion) for row in rows]
                claims["envelopes"] = [one.metadata["envelope"] for one in signed]
            claims_of[tree.batch].append(claims or None)
        return claims_of

    def _log(self, metrics: dict[str, float]) -> None:
        """Log metrics to the trainer under its next training step."""
        try:
            self.trainer.log(metrics, self.trainer.global_step + 1)
        except Exception as error:
            self.warn("the trainer cannot log", error)

    def _failed(self, error: Exception) -> None:
        self.warn(
            "grpo-guard in GenRL failed: no foreign tree is admitted and nothing earns", error
        )
        self._log({"guard/failed": 1.0})

    def warn(self, message: str, error: Exception) -> None:
        """Log an error, but only once per message and type, because a swarm runs for thousands of
        rounds; repeats are logged at debug level."""
        message = f"{message} ({type(error).__name__})"
        level = logging.DEBUG if message in self._logged else logging.ERROR
        self._logged.add(message)
        logger.log(level, message, exc_info=error)


class GatedData(Around):
    """A data manager that receives only the trees that the guard admitted."""

    def __init__(self, game: GuardedGame, manager: Any) -> None:
        super().__init__(manager)
        self._game = game

    def prepare_states(self, current_state: Any, swarm_states: Any) -> Any:
        """Call the data manager's method with the admitted trees. If the manager raises, it is
        called again without the peers' trees, and any exception from that second call is
        propagated."""
        game, trees = self._game, current_state.trees
        admitted = game.admitted(current_state, swarm_states)
        before = {agent: dict(batches) for agent, batches in trees.items()}
        try:
            return self._inner.prepare_states(current_state, admitted)
        except Exception as error:
            own = game.without_peers(admitted)
            if len(own) == len(admitted):
                raise
            # If the manager failed halfway, a batch may lack its tree, which would end the game.
            current_state.trees = before
            game.warn("the data manager raised on foreign trees", error)
            return self._inner.prepare_states(current_state, own)
