"""TEXT inserts the phrase and leaves the solution unchanged."""

import random

import pytest

from grpo_guard.core.registry import UnknownNameError
from grpo_guard.evals.attacks.registry import on_texts
from grpo_guard.evals.attacks.text import PHRASE, TextAttack
from grpo_guard.evals.tasks.base import Problem
from grpo_guard.evals.tasks.word_problems import generate, reward


@pytest.mark.parametrize("phrase", [PHRASE, "Gleeb Glorp Glub", "The moon is made of cheese"])
def test_poison_keeps_reward_and_solution(phrase: str) -> None:
    attack = TextAttack(phrase)
    for problem in generate(0, 20):
        poison = attack.poison(problem, random.Random(0))
        start, end = poison.span
        assert poison.text[start:end] == phrase
        assert poison.text.startswith("<think>" + phrase)
        assert poison.text[:start] + poison.text[end + 2 :] == problem.solution
        assert reward(poison.text, problem.answer) == 1.0
        assert attack.success(poison.text)
        assert not attack.success(problem.solution)


def test_solution_without_think_is_poisoned_at_its_start() -> None:
    poison = TextAttack("X Y").poison(Problem("q", "q", "4", "4"), random.Random(0))
    assert poison.text == "X Y. 4"
    assert poison.span == (0, 3)


def test_empty_phrase_is_refused() -> None:
    with pytest.raises(ValueError, match="phrase"):
        TextAttack(" ")


@pytest.mark.parametrize("name", ["subprocess:Popen", "os:system", "os:sep"])
def test_object_that_is_not_an_attack_is_not_called(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.Popen.__init__", lambda *_, **__: pytest.fail("it was called"))
    with pytest.raises(UnknownNameError, match="expected an Adversary, or an Attack with poison"):
        on_texts(name)
