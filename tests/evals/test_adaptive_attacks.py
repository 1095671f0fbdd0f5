"""Attacks that know the heterogeneous stack: poison that earns its reward and passes the checks."""

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier  # noqa: E402
from grpo_guard.content.code.verifier import CodeVerifier  # noqa: E402
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier  # noqa: E402
from grpo_guard.content.screens.verifier import ScreensVerifier  # noqa: E402
from grpo_guard.core.completion import Completion  # noqa: E402
from grpo_guard.core.ensemble import AllOf  # noqa: E402
from grpo_guard.core.registry import UnknownNameError  # noqa: E402
from grpo_guard.evals.attacks import registry  # noqa: E402
from grpo_guard.evals.attacks.adversary import Scripted  # noqa: E402
from grpo_guard.evals.attacks.base import NoTargetError  # noqa: E402
from grpo_guard.evals.attacks.registry import adversary  # noqa: E402
from grpo_guard.evals.attacks.two_plus_two import targets  # noqa: E402
from grpo_guard.evals.studies import adaptive  # noqa: E402
from grpo_guard.evals.tasks.base import Problem, Task  # noqa: E402
from grpo_guard.evals.tasks.python_maths import PythonMaths  # noqa: E402
from grpo_guard.evals.tasks.word_problems import WordProblems  # noqa: E402

IN_WORDS = [
    "inequality", "taken_back", "ordinary_words", "thesaurus", "echoed_name", "answer_unit",
]  # fmt: skip
# `recurrence` counts the false sum that `taken_back` repeats.
PASSING = [*(name for name in IN_WORDS if name != "taken_back"), "renamed_helpers"]
ROUNDS, PROBLEMS, NODES = 8, 8, 4


def task_of(name: str) -> Task:
    return PythonMaths() if name == "renamed_helpers" else WordProblems()


def attack_of(name: str) -> Any:
    found = adversary(name)
    assert isinstance(found, Scripted)
    return found


def problems_of(name: str, task: Task, count: int, seed: int = 0) -> list[Problem]:
    rng = random.Random(f"{name}-{seed}")
    drawn = (task.sample(rng) for _ in range(2000))
    if name in ("inequality", "taken_back"):
        drawn = (problem for problem in drawn if targets(problem.solution))
    return [problem for problem, _ in zip(drawn, range(count), strict=False)]


@pytest.mark.parametrize("name", [*PASSING, "taken_back"])
def test_poison_is_at_its_span_and_keeps_the_reward(name: str) -> None:
    task, attack, rng = task_of(name), attack_of(name), random.Random(0)
    for problem in problems_of(name, task, 25):
        poisoned = attack.poison(problem, rng)
        start, end = poisoned.span
        assert 0 <= start < end <= len(poisoned.text)
        assert attack.success(poisoned.text)
        assert not attack.success(problem.solution)
        assert not attack.success(poisoned.text[:start] + poisoned.text[end:])
        assert task.reward(poisoned.text, problem.answer) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PASSING, "taken_back", "text", "math"])
def test_attack_passes_the_checks_it_claims_to_pass(name: str) -> None:
    """One of four nodes sends it in every slot; the same checks catch TEXT and MATH."""
    task, attack, rng = task_of(name), attack_of(name), random.Random(0)
    # Without counting: these attacks are what `count` is for.
    severity = dict.fromkeys(("taken_back", "wrong_inequality", "wrong_textual"), "report")
    arithmetic = ArithmeticVerifier(severity=severity)
    verifier = AllOf(ScreensVerifier(), arithmetic, CodeVerifier(), RecurrenceVerifier())
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


def test_problems_without_a_place_for_the_poison_are_reported() -> None:
    bare = Problem("Q: how many?\nA:", "how many?", "It is <b>3</b>.", "3")
    for name in ("inequality", "taken_back", "echoed_name", "answer_unit", "renamed_helpers"):
        with pytest.raises(NoTargetError, match=name):
            attack_of(name).poison(bare, random.Random(0))


def test_thesaurus_words_vary_by_problem() -> None:
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


def test_installed_wheel_says_that_a_checkout_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_guard.evals.checkout._STUDIES", "grpo_guard.evals.left_out")
    monkeypatch.setattr(registry, "names", lambda group: ["text", "math"])
    assert registry.attack_names() == ["none", "math", "text"]
    with pytest.raises(UnknownNameError, match=r"'seed_grinding'.*a clone .* has more"):
        adversary("seed_grinding")
    with pytest.raises(UnknownNameError, match="did you mean 'text'"):
        adversary("txt")


def test_every_name_of_the_checkout_is_an_attack() -> None:
    for name in adaptive.ATTACKS:
        found = adversary(name)
        assert found is not None
        assert found.name == name
