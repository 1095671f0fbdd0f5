"""The obvious remedies: limits of length, a filter of copies, the data set's own solution.

The code of "Hail to the Thief" sends copies of one text, the data set's solution plus the poison,
and either of the last two detects that. Neither detects an attacker who knows of it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Cause, Finding, Verdict, accept, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.defences.base import ByRound
from grpo_guard.evals.tasks.base import Problem

_WORD: Final = re.compile(r"\w+|[^\w\s]")
# Iglewicz and Hoaglin's rule for outliers: 3.5 deviations, estimated as 1.4826 MAD.
_FAR: Final = 3.5
_OF_MAD: Final = 1.4826
# In a group of near copies one changed word would otherwise be far away.
_LEAST_SPREAD: Final = 0.05
_FEWEST: Final = 4


class MaxLengthVerifier(CompletionVerifier):
    """Rejects what is longer than the task needs: the paper's only remedy for DoS.

    Args:
        tokens: Longest completion that passes, with EOS.
    """

    name = "max_length"

    def __init__(self, tokens: int) -> None:
        if tokens < 1:
            raise ValueError(f"max_length.tokens: expected at least 1, got {tokens}")
        self.tokens = tokens

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        return [self._verdict(len(c.completion_ids or c.text.split())) for c in batch]

    def _verdict(self, length: int) -> Verdict:
        if length <= self.tokens:
            return accept(self.name)
        message = f"{length} tokens, but the task needs at most {self.tokens}"
        return reject(self.name, Cause.OVERLONG, message)


class WholeRounds(CompletionVerifier):
    """Rejects all of a node's completions in a round in which it left slots empty.

    A node that sends only what suits it chooses what is trained on. Here only one choice per round
    is left, all or nothing. An honest node that loses one message loses the whole round.

    Args:
        owed: Completions that a node owes in a round; one batch must hold the whole round.
    """

    name = "whole_rounds"

    def __init__(self, owed: int) -> None:
        if owed < 1:
            raise ValueError(f"whole_rounds.owed: expected at least 1, got {owed}")
        self.owed = owed

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        sent = Counter(completion.node for completion in batch)
        return [self._verdict(sent[completion.node]) for completion in batch]

    def _verdict(self, sent: int) -> Verdict:
        if sent >= self.owed:
            return accept(self.name)
        return reject(self.name, message=f"{sent} completions of the {self.owed} that are owed")


class ExactDuplicates(CompletionVerifier):
    """Rejects completions that occur more than once, word for word, among those of a prompt."""

    name = "exact_duplicates"

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        keys = [(completion.prompt_text, *completion.text.split()) for completion in batch]
        times = Counter(keys)
        return [self._verdict(times[key]) for key in keys]

    def _verdict(self, times: int) -> Verdict:
        if times == 1:
            return accept(self.name)
        finding = Finding("duplicate", f"{times} completions of this prompt say the same")
        return reject(self.name, findings=(finding,))


class DistanceToSolution(ByRound):
    """Rejects completions whose distance from the data set's solution is unlike their group's.

    Distance is 1 - Jaccard's index of the sets of words and signs. What lies more than 3.5 robust
    deviations from the group's median is rejected, on either side: poison made of the solution is
    nearer than honest work, nonsense is farther. A deviation counts as at least 0.05. Nothing is
    rejected among fewer than four completions, or for a prompt that the round does not ask, whose
    solution is not known here; so this covers only horizontal swarms.

    Args:
        problems: Round -> its problems, with solutions.
    """

    name = "distance_to_solution"

    def __init__(self, problems: Callable[[int], Sequence[Problem]]) -> None:
        self.problems = problems
        self._solutions: dict[str, frozenset[str]] = {}

    def begin_round(self, round: int, prompts: Sequence[str]) -> None:
        """From now on the solutions of this round's problems count."""
        del prompts
        self._solutions = {one.prompt: _words(one.solution) for one in self.problems(round)}

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        verdicts = [accept(self.name)] * len(batch)
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for place, completion in enumerate(batch):
            if completion.prompt_text in self._solutions:
                groups[completion.prompt_text].append(place)
        for prompt, places in groups.items():
            solution = self._solutions[prompt]
            found = [_distance(_words(batch[place].text), solution) for place in places]
            centre = median(found)
            spread = max(_LEAST_SPREAD, _OF_MAD * median(abs(one - centre) for one in found))
            for place, one in zip(places, found, strict=True):
                if len(places) >= _FEWEST and abs(one - centre) > _FAR * spread:
                    message = f"distance {one:.2f} from the solution, {centre:.2f} in its group"
                    finding = Finding("distance", message)
                    verdicts[place] = reject(self.name, findings=(finding,))
        return verdicts


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold()))


def _distance(one: frozenset[str], other: frozenset[str]) -> float:
    either = len(one | other)
    return 1 - len(one & other) / either if either else 0.0
