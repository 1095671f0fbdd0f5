"""The guard: a verifier, a policy, and the decorator that puts both before a reward function."""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from grpo_guard.abstentions import AbstainWindow
from grpo_guard.admission import AdmittedBatch, admit
from grpo_guard.arguments import expected_verifier
from grpo_guard.completion import Completion
from grpo_guard.environment import Environment, EnvironmentVerifier
from grpo_guard.framework import adapter_for
from grpo_guard.graders import GraderFailures, finite_or_none
from grpo_guard.idle import IdleWarning
from grpo_guard.metrics import NodeFigures, metrics
from grpo_guard.moved import renamed
from grpo_guard.nodes.checkpoint import load_state, state_of, stores_of
from grpo_guard.nodes.patience import store_figures
from grpo_guard.policy import Policy, not_a_policy
from grpo_guard.policy_checks import detokenizer_for, require_fitting, require_no_abstention_at_will
from grpo_guard.review import Review as Review
from grpo_guard.review import require_rewards
from grpo_guard.rollouts import decided
from grpo_guard.settlement import refuse_abstentions, ruling_of, settle
from grpo_guard.supervise import supervised
from grpo_guard.verdict import Verdict
from grpo_guard.verdict_log import VerdictLog
from grpo_guard.verifier import CompletionVerifier
from grpo_guard.watching import unseen

if TYPE_CHECKING:
    from grpo_guard.content.length.scaling import LengthScaling
    from grpo_guard.identity.gate import Identity
    from grpo_guard.references import References

Verdicts: TypeAlias = Sequence[Verdict | None] | None
Judged: TypeAlias = tuple[list[Completion], list[Verdict]]
Flags: TypeAlias = Sequence[bool] | None
REMEMBERED = 1024  # groups whose lowest reward is remembered


class Ledger(Protocol):
    """Keeps evidence per node over time."""

    def record(self, batch: Sequence[Completion], verdicts: Sequence[Verdict]) -> None:
        """Take note of one batch. Called once per batch, in the order of the batches."""


@dataclass(slots=True)
class _Sources:
    """Where a guard and its copies learn whose completions are, and what is true."""

    identity: Identity | None
    references: References | None
    log: VerdictLog | None = None


class Guard:
    """Verifies batches and turns rewards into guarded rewards.

    Args:
        verifier: What decides.
        policy: What a decision does to a reward. Of several rules in a place the first holds in a
            loop of your own; adapters choose by what their trainer can carry out.
        ledger: Told of every verdict.
        length_scaling: How ``Policy(on_long="scale")`` scales; None = `LengthScaling` as it comes.
        identity: Says whose each completion is, before anything else looks at it; None = ``node``
            is believed.
        references: The task's own reference answers, in place of those that come; None = those that
            come are used.
        failures: A grader that fails, or a reward that is no finite number, is no reward: what it
            was about leaves its group. None = exceptions come through, and NaN stays.
        environment: Says again what tools and users said (`Environment`). Where a completion has
            anything else, it is rejected for ``forged_tool_result``; else it is known to be theirs
            (`Given.known`). What the trainer asked itself is not asked again.
        tokenizer: The policy's, or a `Detokenizer`: the text of what has ids is decoded from them,
            and the sender's is not used; ids that the text would not show are malformed. None =
            the verifiers compare ids with the text, or completions with ids are rejected.
        log: Keeps every verdict that is no acceptance, with an excerpt; a file's path will do.

    Raises:
        TypeError: ``verifier`` is none, or ``environment`` cannot be called.
        ValueError: a cascade that "no_gain" cannot use, see `_require_standing_asked`; or
            ``on_abstain="pass"`` with a verifier that a completion's author can make abstain.

    Example:
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
    ) -> None:
        if not isinstance(verifier, CompletionVerifier):
            raise expected_verifier("Guard.verifier", verifier)
        if not isinstance(policy, Policy | None):
            raise not_a_policy("Guard.policy", policy)
        self.verifier = verifier
        self.policy = policy or Policy()
        self.environment = None if environment is None else EnvironmentVerifier(environment)
        self._require_fitting(self.policy)
        self.detokenizer, self.reads_ids = detokenizer_for(verifier, tokenizer)
        self.ledger = ledger
        # One for all copies: what is set later holds for reward functions wrapped before, too.
        self._sources = _Sources(identity, references)
        self.log = log
        if length_scaling is None and "scale" in self.policy.rules("on_long"):
            from grpo_guard.content.length.scaling import LengthScaling

            length_scaling = LengthScaling()
        self.length_scaling = length_scaling
        self.failures = failures
        self._recent = AbstainWindow(self.policy)
        self._node_figures = NodeFigures()
        self.idle = IdleWarning(verifier, ledger)
        # The lowest reward of the last groups, for completions that come without their group.
        self._lowest: deque[float] = deque(maxlen=REMEMBERED)
        self._by_policy: dict[Policy, Guard] = {}

    @property
    def identity(self) -> Identity | None:
        """Says whose each completion is. Set, it holds for what this guard is around already."""
        return self._sources.identity

    @identity.setter
    def identity(self, identity: Identity | None) -> None:
        self._sources.identity = identity

    @property
    def references(self) -> References | None:
        """The task's own answers. Set, they hold for whatever this guard is around already."""
        return self._sources.references

    @references.setter
    def references(self, references: References | None) -> None:
        self._sources.references = references

    if not TYPE_CHECKING:  # which would make every attribute one of type Any

        def __getattr__(self, name: str) -> Any:
            raise renamed(type(self), name)

    @property
    def log(self) -> VerdictLog | None:
        """Keeps verdicts. Set, it or its path holds for what this guard is around already."""
        return self._sources.log

    @log.setter
    def log(self, log: VerdictLog | str | Path | None) -> None:
        self._sources.log = VerdictLog(log) if isinstance(log, str | Path) else log

    def with_policy(self, policy: Policy) -> Guard:
        """This guard with another policy; verifier, ledger and all that it counts are shared."""
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
        """Verdicts and metrics for one batch.

        Args:
            batch: Any number of completions.
            given: Verdicts that the caller has already, one or None per completion: of what could
                not be read, say. The verifier is asked about the others only; ledger, metrics,
                abstentions and length factors count all. None = there are none.
            decoded: Whose text the caller has decoded from its ids; None = nobody's.

        Raises:
            ValueError: not one of ``given`` per completion.
            TypeError: something given is no verdict.
            AbstainError: more abstentions over the policy's window than it allows. Of these, a
                guard that only watches raises none.
        """
        try:
            admitted = self.admit(batch, given, decoded)
            return self.finish_review(admitted, supervised(self.verifier, admitted.unsettled))
        except Exception as error:
            if not self.policy.watches:
                raise
            return unseen(batch, error)

    def finish_review(self, admitted: AdmittedBatch, said: Sequence[Verdict]) -> Review:
        """The second half of `review`: what becomes of the verifier's words on a batch.

        Args:
            admitted: The batch, from `admit`.
            said: Of `AdmittedBatch.unsettled`, one verdict each.

        Raises:
            AbstainError: as `review`.
        """
        batch, verdicts = self.record_verdicts(admitted, said)
        if not self.policy.watches:
            self._recent.add(batch, verdicts)
        figures = self.metrics(batch, verdicts)
        return Review.of(batch, verdicts, figures, self._factors(batch, verdicts))

    def judge(
        self, batch: Sequence[Completion], given: Verdicts = None, decoded: Flags = None
    ) -> Judged:
        """`review` without figures and factors, and whether or not too much abstains.

        Returns:
            The completions as they were judged, see `AdmittedBatch`, and their verdicts.
        """
        admitted = self.admit(batch, given, decoded)
        return self.record_verdicts(admitted, supervised(self.verifier, admitted.unsettled))

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        """One verdict per completion, in order: `judge` if nothing else is needed."""
        return self.judge(batch)[1]

    def with_environment(self, environment: Environment) -> Guard:
        """This guard with an environment; all that it remembers is shared.

        Raises:
            TypeError: it cannot be called.
            ValueError: ``on_abstain="pass"``, see `EnvironmentVerifier.author_can_abstain`.
        """
        other = copy.copy(self)
        other.environment, other._by_policy = EnvironmentVerifier(environment), {}
        other._require_fitting(self.policy)
        return other

    def admit(
        self, batch: Sequence[Completion], given: Verdicts = None, decoded: Flags = None
    ) -> AdmittedBatch:
        """The first half of `review` and `judge`: all that is settled before the verifier is asked.

        For servers, which ask it about several batches at once. Errors as `review`.
        """
        return admit(
            batch, given, identity=self.identity, references=self.references,
            environment=self.environment, detokenizer=self.detokenizer,
            ids_unread=not self.reads_ids, decoded=decoded,
        )  # fmt: skip

    def record_verdicts(self, admitted: AdmittedBatch, said: Sequence[Verdict]) -> Judged:
        """The second half of `judge`, with the arguments of `finish_review`.

        One segment decides a rollout.
        """
        batch, verdicts = admitted.batch, admitted.verdicts(said)
        self.idle.look_at(batch)
        if self.ledger is not None and batch:
            self.ledger.record(batch, verdicts)
        verdicts = decided(batch, verdicts)  # the ledger needs each segment's own findings
        if self.log is not None and batch:
            self.log.record(batch, verdicts)
        return batch, verdicts

    def metrics(self, batch: Sequence[Completion], verdicts: Sequence[Verdict]) -> dict[str, float]:
        """Figures to log: those of `grpo_guard.metrics.metrics`, of each node, and of a store that
        another process keeps locked (`grpo_guard.nodes.patience.store_figures`)."""
        nodes = self._node_figures.of([c.node for c in batch], verdicts)
        return metrics(verdicts) | nodes | self.store_metrics()

    def store_metrics(self) -> dict[str, float]:
        """Waits for a store that another process keeps locked, see `store_figures`."""
        return store_figures(stores_of(self.verifier, self.ledger, self._lengths, self.identity))

    def _factors(
        self, batch: Sequence[Completion], verdicts: Sequence[Verdict]
    ) -> list[float] | None:
        if self.policy.rules("on_long")[0] == "keep" or self.length_scaling is None:
            return None
        # What is rejected earns nothing and sets no measure: with a few words of refuse in a group,
        # an attacker would make everybody else's answers long.
        kept = [i for i, verdict in enumerate(verdicts) if not verdict.rejected]
        factors = [1.0] * len(batch)
        for i, factor in zip(
            kept, self.length_scaling.factors([batch[i] for i in kept]), strict=True
        ):
            factors[i] = factor
        return factors

    def settle(
        self,
        rewards: Sequence[float | None],
        review: Review,
        *,
        policy: Policy | None = None,
    ) -> list[float | None]:
        """Guarded rewards from a review; `grpo_guard.settlement` says what each rule means.

        Accepted completions keep their reward object, also where it is None or NaN; so does
        every completion under ``on_reject="keep"``.

        Args:
            rewards: Of one reward function, one per completion.
            review: Of the same completions.
            policy: In place of the guard's own, for the veto.

        Raises:
            ValueError: not one reward per verdict; or ``policy`` does not fit, as at construction.
            AbstainError: something abstained and the policy says to raise.
        """
        if policy is not None:
            self._require_fitting(policy)
        policy = policy or self.policy
        require_rewards(rewards, review)
        refuse_abstentions(policy, review.verdicts)
        if self.failures is not None and not policy.watches:
            rewards = finite_or_none(rewards)
        rulings = [ruling_of(verdict) for verdict in review.verdicts]
        settled = settle(
            [[reward] for reward in rewards], rulings, policy,
            groups=review.groups, labels=review.labels, rollouts=review.rollouts,
            length_factors=review.length_factors,
            lowest_seen=min(tuple(self._lowest), default=0.0) if any(rulings) else 0.0,
        )  # fmt: skip
        self._lowest.extend(settled.lowest)
        return [reward for (reward,) in settled.rewards]

    async def areview(
        self, batch: Sequence[Completion], given: Sequence[Verdict | None] | None = None
    ) -> Review:
        """`review` without blocking the running loop."""
        return await asyncio.to_thread(self.review, batch, given)

    def apply(
        self,
        rewards: Sequence[float | None],
        batch: Sequence[Completion],
        given: Sequence[Verdict | None] | None = None,
    ) -> list[float | None]:
        """Guarded rewards, one per completion and in order; None = leave it out of its group."""
        return self.settle(rewards, self.review(batch, given))

    def state_dict(self) -> dict[str, Any]:
        """All that is remembered of nodes as plain JSON values, for a trainer's checkpoint.

        Of the ledger, the length scaling, the identity and each verifier with a ``state_dict`` of
        its own.

        Raises:
            LedgerError: a ledger cannot be read.
        """
        return state_of(self.verifier, self.ledger, self._lengths, self.identity)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave, in place of what is remembered now, for all processes.

        Args:
            state: Of a guard with the same verifiers in the same places.

        Raises:
            ValueError: it is of another guard, or of another form.
            LedgerError: a ledger cannot be written.
        """
        load_state(self.verifier, self.ledger, state, self._lengths, self.identity)

    def _require_fitting(self, policy: Policy) -> None:
        require_fitting(self.verifier, policy)
        pays = "pass" in policy.rules("on_abstain") and not policy.watches
        if self.environment is not None and pays:
            require_no_abstention_at_will(self.environment)

    @property
    def _lengths(self) -> object:
        return None if self.length_scaling is None else self.length_scaling.past

    def __call__(self, reward: Any, *, framework: str | None = None) -> Any:
        """Wrap a reward function, or a list of them that are to be vetoed together."""
        return adapter_for(reward, framework).wrap(reward, self)
