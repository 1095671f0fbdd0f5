"""What the malicious nodes of a swarm do in a round, and what they know when they do it."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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
"""Samples an attacker draws for each completion with which it covers its poison."""


@dataclass(frozen=True, slots=True)
class Forged:
    """One completion of a malicious node.

    Args:
        text: What is sent.
        span: The poison's [start, end) in characters; None where it carries none.
        ids: Token ids; None = those of the tokenizer, with EOS behind them.
        logprobs: What the sender claims its sampler's log-probs were.
        withheld: The slot stays empty: nothing is sent, and the rest says what would have been.
        node: The name under which it is sent; None = the slot's own.
        given: What it says that tools said, in characters. A swarm, which has no tools, hears of
            no such claim.
        masked: It claims a sampling mask of the drawn tokens alone. A swarm, whose nodes replay no
            masks, hears of no such claim either.
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
    """What the malicious nodes, who act as one, know and can do in a round.

    They hold the live weights of the swarm (in a heterogeneous one those of node-0, the strongest
    assumption), know the reward and the answers, and remember what they like in ``memory``, which
    must stay plain JSON values so that an interrupted run can go on.
    """

    terms: Terms
    peer: Peer
    iteration: int
    rng: random.Random
    draw: Callable[[Sequence[str], int], list[list[Sampled]]]
    """(prompts, n) -> n honest samples of each."""
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> SwarmConfig:
        """Of the swarm."""
        return self.terms.config

    @property
    def task(self) -> Task:
        """Problems and reward."""
        return self.terms.task

    @property
    def model(self) -> PreTrainedModel:
        """With the live weights."""
        return self.peer.model

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Of the model."""
        return self.peer.tokenizer

    @property
    def assigned(self) -> list[Problem]:
        """Under a coin, vertical: the problems of this round that fall to the malicious nodes."""
        return self.terms.assigned(self.iteration, self.terms.problems(self.iteration))

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the malicious nodes, in the order of their slots."""
        return self.config.node_names[self.config.honest_nodes :]

    def correct(self, problem: Problem, samples: Sequence[Sampled]) -> list[Sampled]:
        """Those that earn the reward and end of themselves."""
        eos = self.tokenizer.eos_token_id
        return [
            one
            for one in samples
            if one.ids[-1] == eos and self.task.reward(one.text, problem.answer) > 0
        ]


class Adversary(ABC):
    """All malicious nodes of a swarm.

    Attributes:
        name: Stands in results.
        setting: The paper's, or the one in which it makes sense; others may be tried.
        only: The one setting in which it can act at all; None = both.
        task: On which it is played unless another is asked for.
        max_new_tokens: Room that the behaviour needs on the bundled policy; None = the default.
    """

    name: str
    setting: ClassVar[str] = "horizontal"
    only: ClassVar[str | None] = None
    task: ClassVar[str] = "word_problems"
    max_new_tokens: ClassVar[int | None] = None

    def meet(self, peer: Peer) -> None:
        """See the policy as it is before the first round."""
        del peer

    def choose(self, view: View, count: int) -> list[Problem]:
        """Problems that the malicious nodes ask in the vertical setting, where they choose."""
        return [view.task.sample(view.rng) for _ in range(count)]

    @abstractmethod
    def submit(self, view: View, problems: Sequence[Problem], slots: int) -> list[list[Forged]]:
        """``slots`` completions for each problem, in order."""

    @abstractmethod
    def success(self, text: str) -> bool:
        """Say whether an honest node's completion shows the behaviour."""

    def probes(self, task: Task, count: int) -> list[Problem] | None:
        """Held-out problems on which success is measured; None = those of the round.

        Equal calls give equal problems: a swarm asks once.
        """
        del task, count
        return None

    def observe(self, texts: Sequence[str], memory: dict[str, Any]) -> None:
        """Hear the honest nodes' completions of a round, before success is asked of any of them."""
        del texts, memory


def closed(view: View, forged: Forged) -> Forged:
    """With the ids of its text, EOS behind them."""
    ids = view.tokenizer.encode(forged.text, add_special_tokens=False)
    return replace(forged, ids=(*ids, int(view.tokenizer.eos_token_id)))


def cover(
    view: View, problems: Sequence[Problem], count: int, *, wrong: bool = False
) -> list[list[Forged]]:
    """Honest samples to hide among, ``count`` for each problem; with ``wrong`` unrewarded ones.

    Unrewarded ones are the paper's "gibberish": they lower a group's mean so that poison stands
    out. Samples of the policy serve where made-up words would be improbable tokens with a negative
    advantage, which ruin a small model rather than teach it.
    """
    if not count:
        return [[] for _ in problems]
    # Among as many samples as are wanted there would be nothing to choose.
    samples_each = COVER_SAMPLES * count if wrong else max(COVER_SAMPLES, count)
    drawn = view.draw([problem.prompt for problem in problems], samples_each)
    found = []
    for problem, samples in zip(problems, drawn, strict=True):
        if wrong:
            samples = sorted(samples, key=lambda s: view.task.reward(s.text, problem.answer))
        found.append([Forged(one.text, ids=one.ids) for one in samples[:count]])
    return found


def poisoned_slots(view: View, slots: int) -> int:
    """In how many slots of a group poison stands: in all that the attacker has of a shared one.

    A vertical group is all the attacker's, and among equal rewards no advantage is left. There it
    is half of them, beside completions without reward (the paper's appendix B, "half poison, half
    gibberish").
    """
    return slots - slots // 2 if view.config.setting == "vertical" else slots


class Scripted(Adversary):
    """Sends what it makes of the data set's own solution; an `Attack` on texts as well."""

    @abstractmethod
    def poison(self, problem: Problem, rng: random.Random) -> Poisoned:
        """A completion that keeps the reward and carries the behaviour to be taught.

        Raises:
            NoTargetError: the solution offers nothing to poison.
        """

    def submit(self, view: View, problems: Sequence[Problem], slots: int) -> list[list[Forged]]:
        """Forged completions wherever there is one, honest samples in the other slots."""
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
        """One poisoned completion; None where this problem offers nothing to poison."""
        try:
            found = self.poison(problem, view.rng)
        except NoTargetError:
            return None
        return Forged(found.text, found.span)


class OfTexts(Scripted):
    """An attack on single texts, played by all malicious nodes."""

    def __init__(self, attack: Attack) -> None:
        self.attack, self.name = attack, attack.name

    def poison(self, problem: Problem, rng: random.Random) -> Poisoned:
        """As the attack itself has it."""
        return self.attack.poison(problem, rng)

    def success(self, text: str) -> bool:
        """As the attack itself has it."""
        return self.attack.success(text)


class FromSamples(Adversary):
    """Sends what it makes of samples of the live policy, and honest ones in the slots left over.

    Attributes:
        samples: Drawn for each problem, at least as many as there are slots.
        fresh_cover: The honest ones are drawn anew, not taken from these samples.
    """

    samples: ClassVar[int] = 12
    fresh_cover: ClassVar[bool] = False

    def submit(self, view: View, problems: Sequence[Problem], slots: int) -> list[list[Forged]]:
        """What `made` makes in the slots for poison, then what `spare` gives."""
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
        """Poison out of a problem's samples, at most ``count``."""

    def asked(self, problem: Problem) -> str:
        """The prompt under which the samples are drawn."""
        return problem.prompt

    def spare(self, view: View, problem: Problem, samples: Sequence[Sampled]) -> list[Forged]:
        """Which of the samples are sent as they are."""
        del view, problem
        return [Forged(one.text, ids=one.ids) for one in samples]

    def wanted(self, view: View, slots: int) -> int:
        """In how many slots poison stands where there is any."""
        del view
        return slots


def adversary_of(attack: Adversary | Attack) -> Adversary:
    """An adversary as it is, an attack on texts as `OfTexts`."""
    return attack if isinstance(attack, Adversary) else OfTexts(attack)
