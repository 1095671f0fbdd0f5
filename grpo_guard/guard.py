"""The guard: a verifier, a policy, and the decorator that puts both before a reward function."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from grpo_guard.completion import Completion, prompt_key, shown
from grpo_guard.ensemble import Cascade, Ensemble
from grpo_guard.framework import adapter_for
from grpo_guard.metrics import metrics
from grpo_guard.nodes.intake import STANDING_VERIFIER
from grpo_guard.policy import AbstainError, Policy
from grpo_guard.settlement import refuse_abstentions, ruling_of, settle
from grpo_guard.supervise import supervised
from grpo_guard.verdict import Outcome, Verdict
from grpo_guard.verifier import CompletionVerifier

if TYPE_CHECKING:
    from grpo_guard.content.length.scaling import LengthScaling


# Groups whose lowest reward is remembered, for completions that come without theirs.
REMEMBERED = 1024


class Ledger(Protocol):
    """Keeps evidence per node over time."""

    def record(self, batch: Sequence[Completion], verdicts: Sequence[Verdict]) -> None:
        """Take note of one batch. Called once per batch, in the order of the batches."""


@dataclass(frozen=True, slots=True)
class Review:
    """What the guard found in one batch.

    Args:
        verdicts: One per completion, in order.
        metrics: Figures to log.
        length_factors: What a positive reward is multiplied by, in (0, 1], one per completion; None
            where the policy keeps long completions' rewards.
        groups: Which of them answer the same prompt; None = all do. Never their senders' labels:
            poison beside its own clean copy under a label "mine" would be measured by that alone.
        labels: The senders' labels; None = there are none.
    """

    verdicts: list[Verdict]
    metrics: dict[str, float]
    length_factors: list[float] | None = None
    groups: list[Hashable] | None = None
    labels: list[Hashable] | None = None


class Guard:
    """Verifies batches and turns rewards into guarded rewards.

    Args:
        verifier: What decides.
        policy: What a decision does to a reward. Of several rules in a place the first holds in a
            loop of your own; adapters choose by what their trainer can carry out.
        ledger: Told of every verdict.
        length_scaling: How ``Policy(on_long="scale")`` scales; None = `LengthScaling` as it comes.

    Raises:
        TypeError: ``verifier`` is none.
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
    ) -> None:
        if not isinstance(verifier, CompletionVerifier):
            raise TypeError(f"Guard.verifier: expected a CompletionVerifier, got {verifier!r}")
        self.verifier = verifier
        self.policy = policy or Policy()
        _require_fitting(verifier, self.policy)
        self.ledger = ledger
        if length_scaling is None and "scale" in self.policy.rules("on_long"):
            from grpo_guard.content.length.scaling import LengthScaling

            length_scaling = LengthScaling()
        self.length_scaling = length_scaling
        self._recent = AbstainWindow(self.policy)
        self._lowest = _LowestSeen()
        self._under: dict[Policy, Guard] = {}

    def under(self, policy: Policy) -> Guard:
        """This guard with another policy; verifier, ledger and all that it counts are shared."""
        if policy == self.policy:
            return self
        if policy not in self._under:
            _require_fitting(self.verifier, policy)
            other = copy.copy(self)
            other.policy = policy
            self._under[policy] = other
        return self._under[policy]

    def review(
        self, batch: Sequence[Completion], given: Sequence[Verdict | None] | None = None
    ) -> Review:
        """Verdicts and metrics for one batch.

        Args:
            batch: Any number of completions.
            given: Verdicts that the caller has already, one or None per completion: of what could
                not be read, say. The verifier is asked about the others only; ledger, metrics,
                abstentions and length factors count all. None = there are none.

        Raises:
            ValueError: not one of ``given`` per completion.
            TypeError: something given is no verdict.
            AbstainError: more abstentions over the policy's window than it allows.
        """
        known = [None] * len(batch) if given is None else _checked(given, len(batch))
        asked = [c for c, verdict in zip(batch, known, strict=True) if verdict is None]
        said = iter(supervised(self.verifier, asked))
        verdicts = [next(said) if verdict is None else verdict for verdict in known]
        if self.ledger is not None:
            self.ledger.record(batch, verdicts)
        self._recent.add(batch, verdicts)
        review = Review(
            verdicts,
            metrics(verdicts),
            groups=[prompt_key(c.prompt) for c in batch],
            labels=[c.group for c in batch],
        )
        return self._with_factors(review, batch)

    def _with_factors(self, review: Review, batch: Sequence[Completion]) -> Review:
        if self.policy.rules("on_long")[0] == "keep" or self.length_scaling is None:
            return review
        # What is rejected earns nothing and sets no measure: with a few words of refuse in a group,
        # an attacker would make everybody else's answers long.
        kept = [i for i, verdict in enumerate(review.verdicts) if not verdict.rejected]
        factors = [1.0] * len(batch)
        for i, factor in zip(
            kept, self.length_scaling.factors([batch[i] for i in kept]), strict=True
        ):
            factors[i] = factor
        mean = sum(factors[i] for i in kept) / len(kept) if kept else 1.0
        logged = review.metrics | {"guard/length_factor": mean}
        return replace(review, metrics=logged, length_factors=factors)

    def settle(
        self,
        rewards: Sequence[float | None],
        review: Review,
        *,
        policy: Policy | None = None,
    ) -> list[float | None]:
        """Guarded rewards from a review; `grpo_guard.settlement` says what each rule means.

        Accepted completions keep their reward object, also where it is None or NaN.

        Args:
            rewards: Of one reward function, one per completion.
            review: Of the same completions.
            policy: In place of the guard's own, for the veto.

        Raises:
            ValueError: not one reward per verdict; or ``policy`` does not fit, as at construction.
            AbstainError: something abstained and the policy says to raise.
        """
        if policy is not None:
            _require_fitting(self.verifier, policy)
        policy = (policy or self.policy).chosen()
        refuse_abstentions(policy, review.verdicts)
        rulings = [ruling_of(verdict) for verdict in review.verdicts]
        settled = settle(
            [[reward] for reward in rewards],
            rulings,
            policy,
            groups=review.groups,
            labels=review.labels,
            length_factors=review.length_factors,
            lowest_seen=self._lowest.seen if any(rulings) else 0.0,
        )
        self._lowest.add(settled.lowest)
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

    def __call__(self, reward: Any, *, framework: str | None = None) -> Any:
        """Wrap a reward function, or a list of them that are to be vetoed together."""
        return adapter_for(reward, framework).wrap(reward, self)


def guard(
    verifier: CompletionVerifier,
    *,
    policy: Policy | None = None,
    framework: str | None = None,
    ledger: Ledger | None = None,
    length_scaling: LengthScaling | None = None,
) -> Callable[[Any], Any]:
    """Decorate a reward function so that only verified completions earn their reward.

    The trainer's calling convention is recognised from the signature; ``framework=`` ("trl",
    "verl", "openrlhf") overrides it. Sync stays sync, async stays async, the name is kept.
    Apply it to a list of reward functions where a trainer sums several: a veto that covers only
    one of them would leave the others' reward in place.

    Raises:
        FrameworkError: at decoration, when the calling convention is not recognised or the
            framework cannot do what the policy asks.
    """
    the_guard = Guard(verifier, policy=policy, ledger=ledger, length_scaling=length_scaling)

    def decorate(reward: Any) -> Any:
        return the_guard(reward, framework=framework)

    return decorate


def _checked(given: Sequence[Verdict | None], expected: int) -> Sequence[Verdict | None]:
    if len(given) != expected:
        raise ValueError(f"given: expected {expected}, one per completion, got {len(given)}")
    for verdict in given:
        if not isinstance(verdict, Verdict | None):
            raise TypeError(f"given: expected a Verdict or None, got {shown(verdict)}")
    return given


def _require_fitting(verifier: CompletionVerifier, policy: Policy) -> None:
    """Raises ValueError where a policy would pay for what a verifier lets its authors do."""
    if "no_gain" in policy.rules("on_reject"):
        _require_standing_asked(verifier)
    if "pass" in policy.rules("on_abstain"):
        _require_no_abstention_at_will(verifier)


def _require_standing_asked(verifier: CompletionVerifier) -> None:
    """Refuse a cascade whose later members know who is excluded: what is rejected before them is
    not shown to them, and an excluded node would get its say back by tripping a screen.

    Raises:
        ValueError: a `Cascade` has a `StandingVerifier` in another member than its first.
    """
    if not isinstance(verifier, Ensemble):
        return
    if isinstance(verifier, Cascade) and any(map(_has_standing, verifier.members[1:])):
        raise ValueError(
            'Policy.on_reject="no_gain": expected StandingVerifier as the first member of its '
            f"Cascade, or in an AllOf; got it later in {verifier.name!r}"
        )
    for member in verifier.members:
        _require_standing_asked(member)


def _has_standing(verifier: CompletionVerifier) -> bool:
    if isinstance(verifier, Ensemble):
        return any(map(_has_standing, verifier.members))
    return verifier.name == STANDING_VERIFIER


def _abstained_by(verdict: Verdict) -> str:
    """Which verifier, and why: of a stack of six, "uninformative" alone says nothing."""
    for member in verdict.members:
        if member.abstained and member.cause is verdict.cause:
            return _abstained_by(member)
    return f"{verdict.verifier}: {verdict.cause.value}"


class _LowestSeen:
    """The lowest reward of the last groups, for completions that come without their group."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def seen(self) -> float:
        return min(tuple(self._last), default=0.0)

    def add(self, lowest: Sequence[float]) -> None:
        self._last.extend(lowest)


def _require_no_abstention_at_will(verifier: CompletionVerifier) -> None:
    """Refuse what would pay the author of a completion for making a member abstain.

    Raises:
        ValueError: naming the member and the remedy.
    """
    way = verifier.author_can_abstain
    if way is None and verifier.steps_aside:
        way = (
            f"{verifier.name} sets completions aside by what their senders claim or leave out, and "
            "nothing else looks at them; put a verifier beside it that looks at all"
        )
    if way is not None:
        raise ValueError(
            "Policy.on_abstain: 'pass' would pay whoever makes the guard abstain, and an author "
            f"can: {way}, or choose on_abstain='skip' or 'zero'"
        )


class AbstainWindow:
    """Counts abstentions over the last batches; beside `_LowestSeen` the only state of a guard.

    `add` raises AbstainError past the policy's ``max_abstain_rate``.

    Nodes are counted apart and the worst of them left out, so that no minority can end a run by
    abstentions that it causes, while an outage, which befalls all, still does.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        # Of each batch the outcomes by node. A name may be as long as its sender likes: of it the
        # hash is kept.
        self._batches: deque[dict[int | None, Counter[str]]] = deque(maxlen=policy.abstain_window)
        self._abstained: deque[int] = deque(maxlen=policy.abstain_window)
        self._lock = threading.Lock()

    def add(self, batch: Sequence[Completion], verdicts: Sequence[Verdict]) -> None:
        if not verdicts:
            return
        found: dict[int | None, Counter[str]] = {}
        for completion, verdict in zip(batch, verdicts, strict=True):
            node = None if completion.node is None else hash(completion.node)
            found.setdefault(node, Counter())[verdict.outcome] += 1
        with self._lock:
            self._batches.append(found)
            self._abstained.append(sum(verdict.abstained for verdict in verdicts))
            if len(self._batches) < self._policy.abstain_window or not any(self._abstained):
                return
            nodes: dict[int | None, Counter[str]] = {}
            for counts in self._batches:
                for node, count in counts.items():
                    nodes.setdefault(node, Counter()).update(count)
        left = _without_worst(list(nodes.values()))
        abstained = sum(count[Outcome.ABSTAIN] for count in left)
        total = sum(map(_looked_at_or_not, left))
        if abstained > self._policy.max_abstain_rate * total:
            causes = Counter(_abstained_by(v) for v in verdicts if v.abstained).most_common(3)
            aside = len(nodes) - len(left)
            without = f", without {aside} of {len(nodes)} nodes," if aside else ""
            raise AbstainError(
                f"the guard abstained on {abstained} of {total} completions that it did not reject "
                f"in the last {self._policy.abstain_window} batches{without} (max_abstain_rate="
                f"{self._policy.max_abstain_rate}); last causes: {dict(causes)}"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {"policy": self._policy}  # a worker starts its own count, with its own lock

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["policy"])  # type: ignore[misc]


def _looked_at_or_not(count: Counter[str]) -> int:
    """Acceptances and abstentions. Rejections are to be had at will, and would hide an outage."""
    return count.total() - count[Outcome.REJECT]


def _without_worst(nodes: list[Counter[str]]) -> list[Counter[str]]:
    """Outcomes of the nodes but those that were abstained on most.

    The worst one is left out, and further ones while all of them together sent less than half: a
    minority that invents names is still a minority of what is sent. Nodes of whom everything was
    rejected are left out too.
    """
    heard = [count for count in nodes if _looked_at_or_not(count)]
    if len(heard) < 2:
        return heard
    heard.sort(key=lambda count: count[Outcome.ABSTAIN] / _looked_at_or_not(count))
    half = sum(count.total() for count in heard) / 2
    aside = heard.pop().total()
    while len(heard) > 1 and aside + heard[-1].total() < half:
        aside += heard.pop().total()
    return heard
