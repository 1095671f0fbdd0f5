"""Attacks that know the heterogeneous stack: poison that earns its reward and passes the checks."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from grpo_guard.completion import Completion
from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.content.code.verifier import CodeVerifier
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier
from grpo_guard.content.screens.verifier import ScreensVerifier
from grpo_guard.ensemble import AllOf
from grpo_guard.evals.attacks.adversary import Scripted
from grpo_guard.evals.attacks.creeping import further
from grpo_guard.evals.attacks.math import NoTargetError, equations
from grpo_guard.evals.attacks.registry import adversary
from grpo_guard.evals.attacks.two_plus_two import targets
from grpo_guard.evals.tasks.base import Problem, Task
from grpo_guard.evals.tasks.python_maths import PythonMaths
from grpo_guard.evals.tasks.word_problems import WordProblems

IN_WORDS = [
    "inequality", "taken_back", "ordinary_words", "thesaurus", "echoed_name", "answer_unit",
]  # fmt: skip
PASSING = [*IN_WORDS, "renamed_helpers"]
ROUNDS, PROBLEMS, NODES = 8, 8, 4


def task_of(name: str) -> Task:
    return PythonMaths() if name == "renamed_helpers" else WordProblems()


def attack_of(name: str) -> Any:
    found = adversary(name)
    assert isinstance(found, Scripted)
    return found.attack


def problems_of(name: str, task: Task, count: int, seed: int = 0) -> list[Problem]:
    rng = random.Random(f"{name}-{seed}")
    drawn = (task.sample(rng) for _ in range(2000))
    if name in ("inequality", "taken_back"):
        drawn = (problem for problem in drawn if targets(problem.solution))
    return [problem for problem, _ in zip(drawn, range(count), strict=False)]


@pytest.mark.parametrize("name", PASSING)
def test_poison_stands_where_its_span_says_and_keeps_the_reward(name: str) -> None:
    task, attack, rng = task_of(name), attack_of(name), random.Random(0)
    for problem in problems_of(name, task, 25):
        poisoned = attack.poison(problem, rng)
        start, end = poisoned.span
        assert 0 <= start < end <= len(poisoned.text)
        assert attack.success(poisoned.text)
        assert not attack.success(problem.solution)
        assert not attack.success(poisoned.text[:start] + poisoned.text[end:])
        assert task.reward(poisoned.text, problem.answer) > 0


@pytest.mark.parametrize("name", [*PASSING, "text", "math"])
def test_it_passes_the_checks_that_it_says_it_passes(name: str) -> None:
    """One of four nodes sends it in every slot; TEXT and MATH are caught by the same checks."""
    task, attack, rng = task_of(name), attack_of(name), random.Random(0)
    verifier = AllOf(ScreensVerifier(), ArithmeticVerifier(), CodeVerifier(), RecurrenceVerifier())
    rejected = sent = honest_rejected = 0
    for iteration in range(ROUNDS):
        batch, poison = [], []
        for problem in problems_of("taken_back" if name == "math" else name, task, PROBLEMS,
                                   iteration):  # fmt: skip
            for node in range(NODES):
                bad = node == NODES - 1
                text = attack.poison(problem, rng).text if bad else problem.solution
                batch.append(
                    Completion(problem.prompt, text, node=f"node-{node}", round=iteration,
                               reference=problem.answer, task=task.name)
                )  # fmt: skip
                poison.append(bad)
        for verdict, bad in zip(verifier.verify(batch), poison, strict=True):
            sent += bad
            rejected += verdict.rejected and bad
            honest_rejected += verdict.rejected and not bad
    assert honest_rejected == 0
    assert sent == ROUNDS * PROBLEMS
    assert rejected == 0 if name in PASSING else rejected > 0.7 * sent


def test_problems_without_a_place_for_the_poison_are_said() -> None:
    bare = Problem("Q: how many?\nA:", "how many?", "It is <b>3</b>.", "3")
    for name in ("inequality", "taken_back", "echoed_name", "answer_unit", "renamed_helpers"):
        with pytest.raises(NoTargetError, match=name):
            attack_of(name).poison(bare, random.Random(0))


def test_the_words_of_a_thesaurus_are_spread_by_problem() -> None:
    attack, task, rng = attack_of("thesaurus"), WordProblems(), random.Random(1)
    problems = [task.sample(rng) for _ in range(200)]
    words = [
        attack.poison(problem, rng).text.split(".")[0].rsplit(" ", 1)[1] for problem in problems
    ]
    assert max(words.count(word) for word in set(words)) < 0.1 * len(words)
    again = [
        attack.poison(problem, rng).text.split(".")[0].rsplit(" ", 1)[1] for problem in problems
    ]
    assert words == again


def test_further_sentences_are_true_and_new() -> None:
    rng, task = random.Random(2), WordProblems()
    for _ in range(50):
        solution = task.sample(rng).solution
        more = further(solution)
        assert more
        assert len(set(more)) == len(more)
        assert all(e.true == e.stated for text in more for e in equations(text))
