"""The shipped judge under attack, on the task that it knows, behind its screens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from grpo_guard.core.completion import Completion
from grpo_guard.evals.attacks.text import PHRASE, TextAttack
from grpo_guard.evals.attacks.two_plus_two import TwoPlusTwo, suitable
from grpo_guard.evals.studies.adaptive.unpublished import JudgeInThink
from grpo_guard.evals.studies.optimised import wordings
from grpo_guard.evals.studies.optimised.content import Case, placed_words, wrong_sums
from grpo_guard.evals.tasks.word_problems import WordProblems
from grpo_guard.judge.verifier import JudgeVerifier

HONEST: Final = 150


def cases(count: int) -> Iterator[Case]:
    """Rows on the data set's own solutions."""
    task, rng = WordProblems(), random.Random("optimised judge")
    problems = [task.sample(rng) for _ in range(count)]
    asked = [task.sample(rng) for _ in range(HONEST)]
    honest = [Completion(p.prompt, p.solution, reference=p.answer) for p in asked]
    sums = suitable(task, rng, count)
    flat = wrong_sums((wordings.FLAT,))
    words = placed_words(wordings.phrase(PHRASE))
    yield Case(JudgeVerifier, TextAttack(), words, problems, honest)
    order = placed_words(wordings.order)
    yield Case(JudgeVerifier, JudgeInThink(), order, problems, honest)
    yield Case(JudgeVerifier, TwoPlusTwo(), flat, sums, honest, how="stated flatly")
