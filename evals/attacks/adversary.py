"""The malicious nodes of a swarm: their actions in a round, and the knowledge they act on."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from grpo_guard.evals.attacks.base import Attack, NoTargetError, Poisoned
from grpo_guard.evals.tasks.base import Problem, Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from grpo_guard.evals.swarm.config import SwarmConfig
    from grpo_guard.evals.swarm.generate import Sampled
    from grpo_guard.evals.swarm.members import Peer
    from grpo_guard.evals.swarm.terms import Terms

COVER_SAMPLES = 4
"""Number of samples that an attacker draws for each completion used as cover for its poison."""


@dataclass(frozen=True, slots=True)
class Forged:
    """A completion forged by a malicious node.

    Args:
        text: The text to send.
        span: The poison's [start, end) in characters; None if the completion carries no poison.
        ids: Token ids to send; if None, the tokenizer's ids for the text, followed by EOS.
        logprobs: The log-probs that the sender attributes to its sampler.
        withheld: Whether the slot stays empty: nothing is sent, and the other fields hold the
            completion that was withheld.
        node: The name that the completion is sent under. Defaults to the slot's own.
        given: Spans that the sender claims tools returned, in characters. A swarm never receives
            such a claim, because it has no tools.
        masked: Whether the sender claims a sampling mask of only the sampled tokens. A swarm never
            receives such a claim either, because its nodes do not replay masks.
    """

    text: str
    span: tuple[int, int] | None = None
    ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    withheld: bool = False
    node: str | None = None
    given: tuple[tuple[int, int], ...] = ()
    masked: bool = False


@dataclass(slots=True)
class View:
    """What the malicious nodes, acting as one, know and can do in a round.

    They hold the swarm's live weights (in a heterogeneous swarm those of node-0, the strongest
    assumption), know the reward and the answers, and keep any state in ``memory``, which must
    contain only plain JSON values so that an interrupted run can be resumed.
    """

    terms: Terms
    peer: Peer
    iteration: int
    rng: random.Random
    draw: Callable[[Sequence[str], int], list[list[Sampled]]]
    """Draws samples: (prompts, n) -> n honest samples per prompt."""
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> SwarmConfig:
        """The swarm's configuration."""
        return self.terms.config

    @property
    def task(self) -> Task:
        """The swarm's problems and reward."""
        return self.terms.task

    @property
    def model(self) -> PreTrainedModel:
        """The model with the live weights."""
        return self.peer.model

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer."""
        return self.peer.tokenizer

    @property
    def assigned(self) -> list[Problem]:
        """The coin's problems for the malicious nodes in this round; none unless vertical."""
        return self.terms.assigned(self.iteration, self.terms.problems(self.iteration))

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the malicious nodes, in slot order."""
        return self.config.node_names[self.config.honest_nodes :]

    def correct(self, problem: Problem, samples: Sequence[Sampled]) -> list[Sampled]:
        """Select the samples that earn the reward and end with EOS."""
        eos = self.tokenizer.eos_token_id
        return [
            one
            for one in samples
            if one.ids[-1] == eos and self.task.reward(one.text, problem.answer) > 0
        ]


class Adversary(ABC):
    """All malicious nodes of a swarm, acting as one.

    Attributes:
        name: Name in results.
        setting: The setting in which the paper runs the attack, or in which the attack makes sense;
            the other one can be tried as well.
        only: The only setting in which the attack works; None if it works in both.
        task: The task that the attack runs on unless another is requested.
        max_new_tokens: Tokens that the behaviour needs on the bundled policy; None for the default.
    """

    name: str
    setting: ClassVar[str] = "horizontal"
    only: ClassVar[str | None] = None
    task: ClassVar[str] = "word_problems"
    max_new_tokens: ClassVar[int | None] = None

    def meet(self, peer: Peer) -> None:
        """Inspect the policy before the first round."""
        del peer

    def choose(self, view: View, count: int) -> list[Problem]:
        """Choose the malicious nodes' problems; called only in the vertical setting."""
        return [view.task.sample(view.rng) for _ in range(count)]

    @abstractmethod
    def submit(self, view: View, problems: Sequence[Problem], slots: int) -> list[list[Forged]]:
        """Return ``slots`` completions for each problem, in order."""

    @abstractmethod
    def success(self, text: str) -> bool:
        """Return whether an honest node's completion shows the behaviour."""

    def probes(self, task: Task, count: int) -> list[Problem] | None:
        """Return held-out problems to measure success on; None to use the round's problems.

        Identical calls must return identical problems, because a swarm asks only once.
        """
        return None

    def observe(self, texts: Sequence[str], memory: dict[str, Any]) -> None:
        """Receive the honest nodes' completions of a round, before `success` is called on them."""
        del texts, memory


def closed(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    """Return the ids of a text, followed by EOS."""
    return (*tokenizer.encode(text, add_special_tokens=False), int(tokenizer.eos_token_id))


def cover(
    view: View, problems: Sequence[Problem], count: int, *, wrong: bool = False
) -> list[list[Forged]]:
    """Draw honest samples as cover for poison, ``count`` per problem; ``wrong`` prefers unrewarded.

    Samples without reward are the paper's "gibberish": they lower a group's mean, which raises the
    poison's advantage. The policy's own samples are used, because made-up words would be improbable
    tokens with a negative advantage, which ruin a small model instead of teaching it.
    """
    if not count:
        return [[] for _ in problems]
    # Draw more than needed, so that there is a choice.
    samples_each = COVER_SAMPLES * count if wrong else max(COVER_SAMPLES, count)
    drawn = view.draw([problem.prompt for problem in problems], samples_each)
    found = []
    for problem, samples in zip(problems, drawn, strict=True):
        if wrong:
            samples = sorted(samples, key=lambda s: view.task.reward(s.text, problem.answer))
        found.append([Forged(one.text, ids=one.ids) for one in samples[:count]])
    return found


def poisoned_slots(view: View, slots: int) -> int:
    """Return the number of slots in a group that get poison: in a shared group, all ``slots``.

    A vertical group belongs to the attacker alone, so equal rewards would leave no advantage. Half
    of its slots therefore get poison, and the rest get completions without reward (the paper's
    appendix B, "half poison, half gibberish").
    """
    return slots - slots // 2 if view.config.setting == "vertical" else slots


class Scripted(Adversary):
    """Poisons the data set's own solution; can also be used as an `Attack` on texts."""

    @abstractmethod
    def poison(self, problem: Problem, rng: random.Random) -> Poisoned:
        """Return a completion that keeps the reward and carries the behaviour to be taught.

        Raises:
            NoTargetError: the solution offers nothing to poison.
        """

    def submit(self, view: View, problems: Sequence[Problem], slots: int) -> list[list[Forged]]:
        """Send forged completions where possible, and honest samples in the other slots."""
        poisoned = poisoned_slots(view, slots)
        texts = 1 if view.config.copies else poisoned
        made = [
            [self.forge(view, problem) for _ in range(texts)] * (poisoned // texts)
            for problem in problems
        ]
        lacking = max(sum(one is None for one in row) for row in made) if made else 0
        honest = cover(view, problems, lacking)
        rest = cover(view, problems, slots - poisoned, wrong=True)
        rows = []
        for row, spare, others in zip(made, honest, rest, strict=True):
            left = iter(spare)
            rows.append([one if one is not None else next(left) for one in row] + others)
        return rows

    def forge(self, view: View, problem: Problem) -> Forged | None:
        """Forge one poisoned completion; None if the problem offers nothing to poison."""
        try:
            found = self.poison(problem, view.rng)
        except NoTargetError:
            return None
        return Forged(found.text, found.span, given=found.given, masked=found.masked)


class OfTexts(Scripted):
    """An attack on individual texts, carried out by all malicious nodes."""

    def __init__(self, attack: Attack) -> None:
        self.attack, self.name = attack, attack.name

    def poison(self, problem: Problem, rng: random.Random) -> Poisoned:
        """Delegate to the attack."""
        return self.attack.poison(problem, rng)

    def success(self, text: str) -> bool:
        """Delegate to the attack."""
        return self.attack.success(text)


class FromSamples(Adversary):
    """Poisons samples from the live policy; the remaining slots get honest samples.

    Attributes:
        samples: Number of samples drawn for each problem; more if there are more slots.
        fresh_cover: Whether honest samples are drawn separately, not taken from ``samples``.
    """

    samples: ClassVar[int] = 12
    fresh_cover: ClassVar[bool] = False

    def submit(self, view: View, problems: Sequence[Problem], slots: int) -> list[list[Forged]]:
        """Fill the slots for poison from `made`, the others from `spare`."""
        drawn = view.draw(list(map(self.asked, problems)), max(self.samples, slots))
        if self.fresh_cover:
            rest = cover(view, problems, slots)
        else:
            rest = [self.spare(view, *pair) for pair in zip(problems, drawn, strict=True)]
        rows = []
        for problem, samples, honest in zip(problems, drawn, rest, strict=True):
            poison = self.made(view, problem, samples, self.wanted(view, slots))
            rows.append(poison + honest[: slots - len(poison)])
        return rows

    @abstractmethod
    def made(
        self, view: View, problem: Problem, samples: Sequence[Sampled], count: int
    ) -> list[Forged]:
        """Turn a problem's samples into at most ``count`` poisoned completions."""

    def asked(self, problem: Problem) -> str:
        """Return the prompt used to draw the samples."""
        return problem.prompt

    def spare(self, view: View, problem: Problem, samples: Sequence[Sampled]) -> list[Forged]:
        """Select the samples to send unchanged."""
        return [Forged(one.text, ids=one.ids) for one in samples]

    def wanted(self, view: View, slots: int) -> int:
        """Return the number of slots to poison, provided there is enough poison."""
        return slots


def adversary_of(attack: Adversary | Attack) -> Adversary:
    """Wrap an attack on texts in `OfTexts`; return an adversary unchanged."""
    return attack if isinstance(attack, Adversary) else OfTexts(attack)
