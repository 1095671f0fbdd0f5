"""The four attacks carried out on a public run, Reliquary's subnet, in May 2026.

None of them teaches a phrase. Their senders were paid per rewarded completion and wanted to earn
more than honest sampling would, at the expense of the policy's training. The reports are in
docs/security of github.com/reliquadotai/reliquary.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from grpo_guard.evals.attacks.adversary import Forged, FromSamples, Scripted, View, closed
from grpo_guard.evals.attacks.base import Poisoned
from grpo_guard.evals.attacks.lengthening import TwiceAsLong
from grpo_guard.evals.attacks.text import PHRASE, inserted
from grpo_guard.evals.tasks.base import Problem

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from grpo_guard.evals.swarm.generate import Sampled

PADDING: Final = 512
"""Number of EOS tokens appended if no length is declared; rows in the incident had 512 to 547."""


class _Earning(FromSamples):
    """Teaches no behaviour: the attack affects the reward, and what is left to learn from."""

    def success(self, text: str) -> bool:
        """Return False: there is no behaviour to be taught."""
        return False


class TokenSplit(_Earning, Scripted):
    """The tokens that are checked and trained on do not match the text that is rewarded.

    The ids come from the node's own sample, which earns nothing, so every check of the ids passes;
    the text is the data set's solution. A trainer that grades the sent text is deceived.
    """

    name = "token_split"
    samples = 24

    def made(
        self, view: View, problem: Problem, samples: Sequence[Sampled], count: int
    ) -> list[Forged]:
        """Combine the solution's text with the ids of samples that earn nothing."""
        wrong = [one for one in samples if not view.task.reward(one.text, problem.answer)]
        text = problem.solution
        return [Forged(text, (0, len(text)), one.ids) for one in wrong[:count]]

    def poison(self, problem: Problem, rng: random.Random) -> Poisoned:
        """Return the text to send with a single completion; the ids decode to different text."""
        return inserted(problem.solution, PHRASE)

    def forge(self, view: View, problem: Problem) -> Forged | None:
        """Combine the text of `poison` with the ids of the honest completion."""
        made = self.poison(problem, view.rng)
        return Forged(made.text, made.span, closed(view.tokenizer, problem.solution))


class CapForcing(FromSamples, TwiceAsLong):
    """Samples that are not allowed to end, so that all of them run to the length limit.

    In the incident, 438 of 440 samples did. The answer comes early and the rest is rambling, which
    a reward that checks only the answer still pays for in full. Samples that earn the reward are
    sent first, and the others fill the remaining slots.
    """

    name = "cap_forcing"

    def submit(self, view: View, problems: Sequence[Problem], slots: int) -> list[list[Forged]]:
        """Sample from a model that cannot produce EOS."""
        with without(view.model, int(view.tokenizer.eos_token_id)):
            return super().submit(view, problems, slots)

    def made(
        self, view: View, problem: Problem, samples: Sequence[Sampled], count: int
    ) -> list[Forged]:
        """Take samples that earn the reward first."""
        first = sorted(samples, key=lambda one: -view.task.reward(one.text, problem.answer))
        return [Forged(one.text, (0, len(one.text)), one.ids) for one in first[:count]]


class EosPadding(_Earning, Scripted):
    """Correct samples padded with EOS tokens up to the length limit.

    To the policy, an EOS after an EOS is likely enough to raise the mean log-prob; the text does
    not show these tokens, and an update spends most of its tokens on them.
    """

    name = "eos_padding"

    def made(
        self, view: View, problem: Problem, samples: Sequence[Sampled], count: int
    ) -> list[Forged]:
        """Pad correct samples that are shorter than the declared length to that length."""
        limit, eos = view.config.max_new_tokens, int(view.tokenizer.eos_token_id)
        short = [one for one in view.correct(problem, samples) if len(one.ids) < limit]
        padded = [replace(one, ids=one.ids + (eos,) * (limit - len(one.ids))) for one in short]
        return [Forged(one.text, (0, len(one.text)), one.ids) for one in padded[:count]]

    def poison(self, problem: Problem, rng: random.Random) -> Poisoned:
        """Return the completion's text, which padding does not change."""
        return Poisoned(problem.solution, (0, len(problem.solution)))

    def forge(self, view: View, problem: Problem) -> Forged | None:
        """Pad the ids of the honest completion."""
        made, ids = self.poison(problem, view.rng), closed(view.tokenizer, problem.solution)
        return Forged(made.text, made.span, ids + ids[-1:] * PADDING)


class RewardSelection(_Earning):
    """Honest samples, selected by reward from many more than requested.

    In a shared group, all of the attacker's completions earn the reward, so that honest answers
    fall below the mean. In its own group, the attacker sends three correct completions for every
    wrong one, like most groups in the incident: the highest total reward at which rewards still
    differ within the group. Every completion is an honest sample.
    """

    name = "reward_selection"
    samples = 96

    def made(
        self, view: View, problem: Problem, samples: Sequence[Sampled], count: int
    ) -> list[Forged]:
        """Take samples that earn the reward."""
        right = view.correct(problem, samples)[:count]
        return [Forged(one.text, (0, len(one.text)), one.ids) for one in right]

    def spare(self, view: View, problem: Problem, samples: Sequence[Sampled]) -> list[Forged]:
        """Fill the remaining slots with samples, those without reward first."""
        rest = sorted(samples, key=lambda one: view.task.reward(one.text, problem.answer))
        return super().spare(view, problem, rest)

    def wanted(self, view: View, slots: int) -> int:
        """Use all slots in a shared group, and three quarters of them in a vertical group."""
        return slots if view.config.setting == "horizontal" else slots - slots // 4


@contextmanager
def without(model: PreTrainedModel, token: int) -> Iterator[None]:
    """Prevent a model from sampling a token."""

    def forbid(module: Any, given: Any, output: Any) -> Any:
        output.logits[..., token] = -float("inf")
        return output

    hook = model.register_forward_hook(forbid)
    try:
        yield
    finally:
        hook.remove()
