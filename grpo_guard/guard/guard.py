"""Apply a verifier and a policy to batches of completions or, as a decorator, to rewards."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from grpo_guard.core.arguments import worded_class
from grpo_guard.core.completion import Completion
from grpo_guard.core.moved import renamed
from grpo_guard.core.rollouts import decided
from grpo_guard.core.supervise import supervised
from grpo_guard.core.verdict import Verdict
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.guard.abstentions import AbstainWindow
from grpo_guard.guard.admission import AdmittedBatch, admit, certain, completions
from grpo_guard.guard.argument_checks import log_of, require_attribute, require_parts
from grpo_guard.guard.environment import Environment, EnvironmentVerifier
from grpo_guard.guard.framework import adapter_for, only_reward
from grpo_guard.guard.idle import IdleWarning
from grpo_guard.guard.lowest_rewards import LowestRewards
from grpo_guard.guard.metrics import NodeFigures, metrics
from grpo_guard.guard.odd_batches import ForeignIdsWarning, RejectionWarning
from grpo_guard.guard.policy import Policy
from grpo_guard.guard.policy_checks import detokenizer_for, require_fitting
from grpo_guard.guard.review import Review as Review
from grpo_guard.guard.review import unseen
from grpo_guard.guard.reward_checks import RewardCheck
from grpo_guard.guard.settlement import refuse_abstentions, ruling_of, settle
from grpo_guard.guard.verdict_log import VerdictLog
from grpo_guard.guard.workers.texts import Workers
from grpo_guard.nodes.checkpoint import Remembers, load_state, memories_of, state_of, stores_of
from grpo_guard.nodes.patience import store_figures

if TYPE_CHECKING:
    from grpo_guard.content.length.scaling import LengthScaling
    from grpo_guard.guard.graders import GraderFailures
    from grpo_guard.guard.references import References
    from grpo_guard.nodes.identity.gate import Identity


class Ledger(Protocol):
    """Accumulates evidence per node over time."""

    def record(self, batch: Sequence[Completion], verdicts: Sequence[Verdict]) -> None:
        """Record one batch. Called once for each batch, in order."""


@dataclass(slots=True)
class _Shared:
    """The parts that a guard shares with its copies, so that later changes also affect reward
    functions already wrapped."""

    identity: Identity | None
    references: References | None
    workers: Workers
    log: VerdictLog | None = None


Verdicts: TypeAlias = Sequence[Verdict | None] | None
Judged: TypeAlias = tuple[list[Completion], list[Verdict]]
Flags: TypeAlias = Sequence[bool] | None


@worded_class
class Guard:
    """Verifies batches and turns rewards into guarded rewards.

    Args:
        verifier: The verifier that decides on each completion.
        policy: What a decision does to a reward. If it has several rules, `apply` uses
            the first, and adapters use the first one that their trainer can carry out.
        ledger: The ledger that receives every verdict.
        length_scaling: How ``Policy(on_long="scale")`` scales; None for `LengthScaling` defaults.
        identity: Proves who sent each completion, before any other check; if None, ``node`` is
            trusted.
        references: The task's own reference answers; if None, those sent with completions are used.
        failures: Treats a failing grader, or a reward that is not a finite number, as no reward, so
            that the completions leave their groups. If None, exceptions propagate and NaN stays.
        environment: Reproduces what tools and users said (`Environment`). A completion that
            deviates is rejected for ``forged_tool_result``; otherwise its given spans are marked as
            known (`Given.known`). The environment is not asked about the trainer's own tool calls.
        tokenizer: The policy's tokenizer or a `Detokenizer`, to decode completions' ids instead of
            using the sender's text; ids that would not show up in the text are malformed. If None,
            the verifier must compare ids with text or have a tokenizer; otherwise ids are rejected.
        log: Keeps every verdict other than acceptances, with an excerpt; can be the path of a file.
        workers: Number of processes that read texts, see `Workers`; 0 for none, None for half of
            the cores on large batches.

    Raises:
        TypeError: an argument has the wrong type, or ``verifier`` has no name.
        ValueError: ``on_reject="no_gain"`` with a cascade that asks an `ExclusionVerifier` after
            another member, or ``on_abstain="pass"`` with a verifier that a completion's author can
            make abstain; or ``log`` cannot be written.

    Examples:
        >>> guard = Guard(verifier, policy=Policy(on_reject="drop"))
        >>> rewards = guard.apply(rewards, completions)
    """

    def __init__(
        self,
        verifier: CompletionVerifier,
        *,
        policy: Policy | None = None,
        ledger: Ledger | None = None,
        length_scaling: LengthScaling | None = None,
        identity: Identity | None = None,
        references: References | None = None,
        failures: GraderFailures | None = None,
        environment: Environment | None = None,
        tokenizer: Any = None,
        log: VerdictLog | str | Path | None = None,
        workers: int | None = None,
    ) -> None:
        require_parts(verifier, policy, ledger, length_scaling, identity, references, failures)
        self.verifier = verifier
        self.policy = policy or Policy()
        self.environment = None if environment is None else EnvironmentVerifier(environment)
        self._shared = _Shared(identity, references, Workers(workers))
        self._require_fitting(self.policy)
        self.detokenizer, self.reads_ids = detokenizer_for(verifier, tokenizer)
        self.ledger = ledger
        self.log = log
        if length_scaling is None and "scale" in self.policy.rules("on_long"):
            from grpo_guard.content.length.scaling import LengthScaling

            length_scaling = LengthScaling()
        self.length_scaling = length_scaling
        self.failures = failures
        self._recent = AbstainWindow(self.policy)
        self._node_figures = NodeFigures()
        self.idle = IdleWarning(verifier, ledger)
        self.rejections = RejectionWarning()
        self._rewards = RewardCheck()
        self._foreign_ids = ForeignIdsWarning()
        # The lowest reward of recent groups, for completions that arrive without their group.
        self._lowest = LowestRewards()
        self._by_policy: dict[Policy, Guard] = {}

    @property
    def identity(self) -> Identity | None:
        """The check of who sent each completion. Setting it affects functions already wrapped."""
        return self._shared.identity

    @identity.setter
    def identity(self, identity: Identity | None) -> None:
        self._shared.identity = identity

    @property
    def references(self) -> References | None:
        """The task's own reference answers. Setting them affects functions already wrapped."""
        return self._shared.references

    @references.setter
    def references(self, references: References | None) -> None:
        self._shared.references = references

    @property
    def workers(self) -> Workers:
        """The processes that read texts. Setting them affects functions already wrapped."""
        return self._shared.workers

    @workers.setter
    def workers(self, workers: Workers | int | None) -> None:
        self._shared.workers = workers if isinstance(workers, Workers) else Workers(workers)
        self._require_fitting(self.policy)

    def reading(self) -> AbstractContextManager[None]:
        """Context in which `workers` read the verifier's texts, for callers that run the verifier
        themselves between `admit` and `finish_review`."""
        return self.workers.reading(self.verifier, unasked=not self.policy.pays_abstentions)

    if not TYPE_CHECKING:  # a type checker would give every attribute the type Any

        def __getattr__(self, name: str) -> Any:
            raise renamed(type(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        require_attribute(self, type(self) is Guard, name, value)
        super().__setattr__(name, value)

    @property
    def log(self) -> VerdictLog | None:
        """The log of verdicts. Setting it or its path affects functions already wrapped."""
        return self._shared.log

    @log.setter
    def log(self, log: VerdictLog | str | Path | None) -> None:
        self._shared.log = log_of(log)

    def with_policy(self, policy: Policy) -> Guard:
        """Return this guard with another policy; the verifier, ledger and counts are shared."""
        if policy == self.policy:
            return self
        if policy not in self._by_policy:
            self._require_fitting(policy)
            other = copy.copy(self)
            other.policy = policy
            self._by_policy[policy] = other
        return self._by_policy[policy]

    def review(
        self, batch: Sequence[Completion], given: Verdicts = None, decoded: Flags = None
    ) -> Review:
        """Return verdicts and metrics for one batch.

        Args:
            batch: Any number of completions.
            given: Verdicts the caller already has, one or None per completion, for example for
                unreadable rows; None if there are none. The verifier judges only the other
                completions; ledger, metrics, abstentions and length factors cover all of them.
            decoded: Whether the caller decoded each text from its ids; None if it decoded none.

        Raises:
            ValueError: ``given`` does not have one entry per completion.
            TypeError: an entry of ``given`` is not a verdict.
            AbstainError: there are more abstentions in the policy's window than the policy allows.
                A guard that only watches raises none of these errors.
        """
        try:
            admitted = self.admit(batch, given, decoded)
            return self.finish_review(admitted, self._verify(admitted.unsettled))
        except Exception as error:
            if not self.policy.watches:
                raise
            return unseen(batch, error)

    def read_early(
        self, batch: Sequence[Completion], given: Verdicts = None, decoded: Flags = None
    ) -> None:
        """Start reading, in the background, completions that `review` will be called with later, as
        far as its arguments are known. Verdicts stay the same, and `review` records them. See
        `Workers.read_early`."""
        known = certain(
            batch, given, references=self.references, environment=self.environment,
            reads_text=self.detokenizer is None and self.reads_ids, decoded=decoded,
        )  # fmt: skip
        self.workers.read_early(self.verifier, known, unasked=not self.policy.pays_abstentions)

    def finish_review(self, admitted: AdmittedBatch, found: Sequence[Verdict]) -> Review:
        """The second half of `review`, which can raise AbstainError: turn the verifier's verdicts,
        one for each completion in `AdmittedBatch.unsettled`, into a review."""
        batch, verdicts = self.record_verdicts(admitted, found)
        self.rejections.look_at(batch, verdicts)
        if not self.policy.watches:
            self._recent.add(batch, verdicts)
        figures = self.metrics(batch, verdicts) | admitted.waited
        return Review.of(batch, verdicts, figures, self._factors(batch, verdicts))

    def judge(
        self, batch: Sequence[Completion], given: Verdicts = None, decoded: Flags = None
    ) -> Judged:
        """Return the completions as `review` judges them, see `AdmittedBatch`, and their verdicts,
        without metrics, length factors or a limit on abstentions."""
        admitted = self.admit(batch, given, decoded)
        return self.record_verdicts(admitted, self._verify(admitted.unsettled))

    def _verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        with self.reading():
            return supervised(self.verifier, batch)

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        """Return one verdict per completion, in order; `judge` also returns the completions."""
        return self.judge(batch)[1]

    def with_environment(self, environment: Environment) -> Guard:
        """Return this guard with an environment; everything that the guard remembers is shared.
        Raises TypeError if the environment cannot be called, or is async, or ValueError under
        ``on_abstain="pass"``, see `EnvironmentVerifier.author_can_abstain`."""
        other = copy.copy(self)
        other.environment, other._by_policy = EnvironmentVerifier(environment), {}
        other._require_fitting(self.policy)
        return other

    def admit(
        self, batch: Sequence[Completion], given: Verdicts = None, decoded: Flags = None
    ) -> AdmittedBatch:
        """Run the first half of `review` and `judge`: everything that comes before the verifier.

        For servers, which verify several batches at once. Raises the same errors as `review`.
        """
        batch = completions(batch)
        self._foreign_ids.look_at(batch, self.verifier, self.detokenizer)
        return admit(
            batch, given, identity=self.identity, references=self.references,
            environment=self.environment, detokenizer=self.detokenizer,
            ids_unread=not self.reads_ids, decoded=decoded,
        )  # fmt: skip

    def record_verdicts(self, admitted: AdmittedBatch, found: Sequence[Verdict]) -> Judged:
        """Run the second half of `judge`, with the arguments of `finish_review`. A rollout's worst
        segment decides for all of its segments."""
        batch, verdicts = admitted.batch, admitted.verdicts(found)
        self.idle.look_at(batch, verdicts)
        if self.ledger is not None and batch:
            self.ledger.record(batch, verdicts)
        verdicts = decided(batch, verdicts)  # the ledger needs each segment's own findings
        if self.log is not None and batch:
            self.log.record(batch, verdicts)
        return batch, verdicts

    def metrics(self, batch: Sequence[Completion], verdicts: Sequence[Verdict]) -> dict[str, float]:
        """Figures to log: those of `grpo_guard.guard.metrics.metrics`, counts per node, waits for a
        locked store (`store_metrics`), and those of `Workers.figures`."""
        nodes = self._node_figures.of([c.node for c in batch], verdicts)
        return metrics(verdicts) | nodes | self.store_metrics() | self.workers.figures()

    def store_metrics(self) -> dict[str, float]:
        """Figures on waits for a store that another process keeps locked, see `store_figures`."""
        return store_figures(stores_of(self.verifier, self.ledger, *self._memories.values()))

    def _factors(
        self, batch: Sequence[Completion], verdicts: Sequence[Verdict]
    ) -> list[float] | None:
        if self.policy.rules("on_long")[0] == "keep" or self.length_scaling is None:
            return None
        from grpo_guard.content.length.scaling import factors_of_accepted

        return factors_of_accepted(self.length_scaling, batch, verdicts)

    def settle(
        self, rewards: Sequence[float | None], review: Review, *, policy: Policy | None = None
    ) -> list[float | None]:
        """Turn rewards into guarded rewards; `grpo_guard.guard.settlement` defines each rule.

        Accepted completions keep their reward object, even if it is None or NaN. Under
        ``on_reject="keep"`` all completions do, whatever the reward's type.

        Args:
            rewards: Rewards from one reward function, one per completion.
            review: The review of the same completions.
            policy: A policy to use for the veto instead of the guard's own.

        Raises:
            TypeError: a reward is neither a number nor None, and the guard does not only watch.
            ValueError: the number of rewards is wrong, or ``policy`` does not suit the verifier.
            AbstainError: a verdict is an abstention and the policy says to raise.
        """
        if policy is not None:
            self._require_fitting(policy)
            if policy.pays_abstentions and not self.policy.pays_abstentions:
                self.workers.require_none_lost()
        policy = policy or self.policy
        watches = policy.watches
        returned, counted = self._rewards.read(rewards, review, self.failures, watches=watches)
        refuse_abstentions(policy, review.verdicts)
        rulings = [ruling_of(verdict) for verdict in review.verdicts]
        settled = settle(
            [[reward] for reward in counted], rulings, policy,
            groups=review.groups, labels=review.labels, rollouts=review.rollouts,
            length_factors=review.length_factors,
            lowest_seen=self._lowest.least if any(rulings) else 0.0,
        )  # fmt: skip
        self._lowest.add(settled.lowest)
        return returned if watches else [reward for (reward,) in settled.rewards]

    async def areview(self, batch: Sequence[Completion], given: Verdicts = None) -> Review:
        """Run `review` in a thread, without blocking the running event loop."""
        return await asyncio.to_thread(self.review, batch, given)

    def apply(
        self, rewards: Sequence[float | None], batch: Sequence[Completion], given: Verdicts = None
    ) -> list[float | None]:
        """Return guarded rewards, in order; None for a completion to leave out of its group."""
        return self.settle(rewards, self.review(batch, given))

    def state_dict(self) -> dict[str, Any]:
        """Everything remembered about nodes by the ledger, length scaling, identity check and any
        verifier with its own ``state_dict``, as plain JSON values for a trainer's checkpoint.
        Raises LedgerError if a ledger cannot be read."""
        return state_of(self._memories)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the current state, for all processes, with the `state_dict` of a guard with the
        same verifiers in the same places. Raises ValueError if the state belongs to another guard
        or is malformed, or LedgerError if a ledger cannot be written."""
        load_state(self._memories, state)

    def _require_fitting(self, policy: Policy) -> None:
        require_fitting(self.verifier, policy, self.environment, self.workers)

    @property
    def _memories(self) -> dict[str, Remembers]:
        lengths = None if self.length_scaling is None else self.length_scaling.past
        return memories_of(
            self.verifier, ledger=self.ledger, lengths=lengths, identity=self.identity
        )

    def __call__(self, *reward: Any, framework: str | None = None, **given: Any) -> Any:
        """Wrap a reward function, or a list of functions that share one veto; see `only_reward`."""
        function = only_reward(reward, given)
        return adapter_for(function, framework).wrap(function, self)
