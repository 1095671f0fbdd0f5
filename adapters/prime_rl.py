"""prime-rl: rejected traces are removed from their group before the baseline, and from the batch.

prime-rl's registries of algorithms and admission gates are closed, so both parts of the guard are
installed in code, before the orchestrator runs (`install`, docs/other-trainers.md).
`GuardedScoring` runs ahead of a group-relative algorithm, whose own formula then sees only the
remaining traces; `GuardGate` turns away groups with too few traces left, reports figures, and saves
and resumes the guard's memory of nodes with the run.

A trace that is left out carries prime-rl's own mark for a trace without a score, an error: samplers
and gates skip it, and the records show the reason. But the sink lists a group's traces before they
are scored, and would ship this trace without an advantage; so its token masks are cleared, and it
yields no sample.

Each branch of a trace is a completion with its token ids, see `grpo_guard.adapters.traces`; its
round is the policy's version. Written against prime-rl at 559b44772e47 (21 August 2026):
orchestrator/algo/{base,grpo,routing}.py, curriculum/{base,gates/base}.py, train_sink.py.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

from grpo_guard.adapters.received import Unread, claimed, read
from grpo_guard.adapters.reward_function import fitted, require_ids_read, without_lengths
from grpo_guard.adapters.traces import drawn_log_probs, review_all
from grpo_guard.core.arguments import require_count
from grpo_guard.core.verdict import Verdict
from grpo_guard.guard import Guard
from grpo_guard.guard.framework import FrameworkError
from grpo_guard.guard.graders import finite_or_none
from grpo_guard.guard.settlement import refuse_abstentions

REJECTED, UNSEEN, NO_REWARD = "GuardRejected", "GuardAbstained", "NoFiniteReward"
"""Error types of traces that are left out: rejected, abstained on, or without a finite reward."""
_CANNOT: Final = without_lengths("prime-rl")
_TRAINERS: Final = (
    "sampling_mask",
    "advantages",
    "loss_weights",
    "reference_logprobs",
    "trainer_logprobs",
)


class GuardedScoring:
    """Mixin that guards `GRPOAlgorithm`, or any other algorithm that compares all traces of a
    group; list it before the algorithm in a class's bases.

    The algorithm receives copies of the episodes that contain only the remaining traces. If the
    policy changes a reward ("zero", a number), only a copy of the trace gets the new value, and the
    records keep the original grade.

    Raises:
        FrameworkError: the policy asks for something that prime-rl cannot do, or the guard has no
            tokenizer for the ids that prime-rl trains on.
        AbstainError: the policy says to raise, or the guard abstained on too many traces; the error
            stops the orchestrator.
    """

    guard: ClassVar[Guard]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "guard" in vars(cls):
            require_ids_read(cls.guard, "prime-rl")
            cls.guard = fitted(cls.guard, "prime-rl", _CANNOT)

    async def score_group(self, episodes: list[Any]) -> None:
        """Guard and score a finished group. Called once by prime-rl, before admission."""
        traces = list(_trainable(episodes))
        if not traces:
            return
        review = await asyncio.to_thread(
            review_all, self.guard, [(trace, _version(episode)) for episode, trace in traces]
        )
        for _, trace in traces:
            _put_right(trace)
        if self.guard.policy.watches:
            refuse_abstentions(self.guard.policy, review.verdicts)
            await super().score_group(episodes)  # type: ignore[misc]
            return
        rewards = [trace.reward for _, trace in traces]
        kept = self.guard.settle(finite_or_none(rewards), review.regrouped(None))
        left = {
            id(trace): trace if reward == was else _with_reward(trace, reward)
            for (_, trace), reward, was in zip(traces, kept, rewards, strict=True)
            if reward is not None
        }
        if left:
            await super().score_group(  # type: ignore[misc]
                [
                    e.model_copy(
                        update={"traces": [left[id(t)] for t in e.traces if id(t) in left]}
                    )
                    for e in episodes
                ]
            )
        for (_, trace), verdict in zip(traces, review.verdicts, strict=True):
            if id(trace) not in left:
                _leave_out(trace, verdict)


class GuardGate:
    """An `AdmissionGate` that refuses groups in which the guard left fewer than ``least`` traces. A
    baseline needs at least 2, because a single trace's reward minus its own mean is 0. Groups that
    the guard left intact always pass, because distillation trains on groups of one. The guard's
    memory of nodes is saved and resumed with the run.

    Raises:
        ValueError: ``least`` is below 1.
    """

    def __init__(self, guard: Guard, least: int = 2) -> None:
        require_count("GuardGate.least", least)
        self.guard, self.least = guard, least
        self._counts: Counter[str] = Counter()

    def admit(self, group: list[Any]) -> bool:
        """Whether the group is admitted: the guard left out nothing, or enough traces remain."""
        traces = [t for episode in group for t in episode.traces if t.agent.trainable]
        kinds = [kind for t in traces if (kind := _kind(t)) is not None]
        self._counts.update(kinds)
        self._counts["traces"] += len(traces)
        enough = not kinds or sum(not trace.has_error for trace in traces) >= self.least
        self._counts["groups"] += 1
        self._counts["turned_away"] += not enough
        return enough

    def metrics(self) -> dict[str, float]:
        """Shares of rejected and other left-out traces, and of groups turned away, since the last
        call; prime-rl logs them under ``curriculum/<env>/gate/``."""
        counts, self._counts = self._counts, Counter()
        shares = {
            "reject_rate": (REJECTED, "traces"),
            "abstain_rate": (UNSEEN, "traces"),
            "no_reward_rate": (NO_REWARD, "traces"),
            "turned_away_rate": ("turned_away", "groups"),
        }
        return {k: counts[of] / counts[n] for k, (of, n) in shares.items() if counts[n]}

    def state_dict(self) -> dict[str, Any]:
        """The guard's state, for prime-rl's checkpoint."""
        return self.guard.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the guard's state from a checkpoint; raises ValueError if the checkpoint belongs
        to another guard."""
        self.guard.load_state_dict(state_dict)


def install(guard: Guard, *, algorithms: Sequence[str] = ("grpo",), least: int = 2) -> None:
    """Guard all environments in this process's orchestrator that use one of these algorithms.

    Args:
        guard: The guard to apply.
        algorithms: Names in prime-rl's registry: ``grpo``, ``max_rl``, ``echo``.
        least: Minimum number of traces that a group must have left after the guard, as for
            `GuardGate`.

    Raises:
        FrameworkError: the policy asks for something that prime-rl cannot do, or an algorithm is
            guarded already.
        KeyError: prime-rl has no such algorithm.
    """
    import prime_rl.orchestrator.algo as algo
    import prime_rl.orchestrator.train_source as train_source

    for name in algorithms:
        own = algo.ALGORITHM_CLASSES[name]
        if issubclass(own, GuardedScoring):
            raise FrameworkError(f"prime-rl: algorithm {name!r} is already guarded")
        guarded = type(f"Guarded{own.__name__}", (GuardedScoring, own), {"guard": guard})
        algo.ALGORITHM_CLASSES[name] = guarded

    class GuardedCurriculum(train_source.Curriculum):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.gates["guard"] = GuardGate(guard, least)

    train_source.Curriculum = GuardedCurriculum


def _trainable(episodes: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each trainable trace with its episode, chosen as prime-rl does: traces of the policy in
    training, without errors, with at least one token that the policy sampled."""
    for episode in episodes:
        for trace in episode.traces:
            drawn = any(any(node.mask) for node in trace.nodes)
            if drawn and not trace.has_error and trace.agent.trainable:
                yield episode, trace


def _version(episode: Any) -> int | None:
    """The policy's version when the episode began."""
    policy = getattr(getattr(episode.run, "work", None), "policy", None)
    version = getattr(policy, "start", None)
    return version if type(version) is int else None


def _put_right(trace: Any) -> None:
    """Repair the numbers in a trace that prime-rl turns into tensors no matter what the trace
    earns: invalid log-probs become 0. From another node's trace, also remove all values that the
    trainer computes itself, plus the sampler's support: a mask that excludes a token turns the
    token's log-prob into minus infinity."""
    theirs = claimed(trace.info, "node") is not None
    for node in trace.nodes:
        if isinstance(read(drawn_log_probs, node), Unread):
            node.logprobs = [0.0] * sum(map(bool, node.mask))
        for name in _TRAINERS if theirs else ():
            if getattr(node, name, None) is not None:
                setattr(node, name, None)


def _with_reward(trace: Any, reward: float) -> Any:
    """A copy of the trace with only this reward, which shares the trace's nodes: the algorithm
    writes its results there."""
    from verifiers.v1 import Reward

    return trace.model_copy(update={"rewards": {"guard": Reward(score=reward)}})


def _leave_out(trace: Any, verdict: Verdict) -> None:
    from verifiers.v1 import Error

    kind = REJECTED if verdict.rejected else UNSEEN if verdict.abstained else NO_REWARD
    why = "the reward is not a finite number" if verdict.accepted else verdict.reason
    trace.errors = [*trace.errors, Error(type=kind, message=why)]
    trace.ok = False
    for node in trace.nodes:
        node.mask = [False] * len(node.mask)
        node.advantages = node.loss_weights = None


def _kind(trace: Any) -> str | None:
    last = trace.errors[-1].type if trace.has_error and trace.errors else None
    return last if last in (REJECTED, UNSEEN, NO_REWARD) else None
