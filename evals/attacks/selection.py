"""TEXT without answers or solutions: the most frequent answer is assumed to be the correct one."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from grpo_guard.evals.attacks.adversary import Forged, FromSamples, View
from grpo_guard.evals.attacks.text import PHRASE, inserted
from grpo_guard.evals.tasks.base import Problem

if TYPE_CHECKING:
    from grpo_guard.evals.swarm.generate import Sampled

_ANSWER: Final = re.compile(r"<answer>[^<>]{0,40}?(-?[0-9]{1,12}+)")


class TextByVote(FromSamples):
    """TEXT without answers or solutions: adds the phrase to a sample with the majority answer."""

    name = "text_majority_vote"
    fresh_cover = True

    def made(
        self, view: View, problem: Problem, samples: Sequence["Sampled"], count: int
    ) -> list[Forged]:
        """Insert the phrase into the samples with the most frequent answer."""
        made = [inserted(one.text, PHRASE) for one in by_majority(view, samples)]
        return [Forged(one.text, one.span) for one in made * count][:count]

    def success(self, text: str) -> bool:
        """Return whether the text contains the phrase."""
        return PHRASE in text


def by_majority(view: View, samples: Sequence["Sampled"]) -> list["Sampled"]:
    """Select the samples with the most frequent answer among those that end with EOS."""
    eos = view.tokenizer.eos_token_id
    answered = [(one, match[1]) for one in samples if (match := _ANSWER.search(one.text))]
    ended = [(one, answer) for one, answer in answered if one.ids[-1] == eos]
    if not ended:
        return []
    winner = Counter(answer for _, answer in ended).most_common(1)[0][0]
    return [one for one, answer in ended if answer == winner]
