"""The attacker with white-box queries: what it keeps, when it stops, and what counts."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from grpo_guard import Completion, ScreensVerifier
from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.core.verdict import Finding, Verdict, accept, reject
from grpo_guard.evals.attacks.code import CodeAttack
from grpo_guard.evals.attacks.text import PHRASE, TextAttack
from grpo_guard.evals.attacks.two_plus_two import TwoPlusTwo
from grpo_guard.evals.studies.adaptive.unpublished import JudgeInThink
from grpo_guard.evals.studies.optimised import programs, wordings
from grpo_guard.evals.studies.optimised.search import (
    BUDGETS,
    budgets_of,
    figures,
    rewritings,
    search,
)
from grpo_guard.evals.tasks.base import Problem
from grpo_guard.evals.tasks.python_maths import PythonMaths
from grpo_guard.evals.tasks.word_problems import generate

SOLUTION = "<think>He has 2 + 2 = 4 eggs. Then 4 + 1 = 5 eggs.</think><answer>5 eggs</answer>"


def judge(batch: Sequence[Completion]) -> list[Verdict]:
    """Rejects everything but "free" (no findings) and "counted"."""
    counted = accept("test", findings=(Finding("wrong_textual", "counts against its node"),))
    known = {"free": accept("test"), "counted": counted}
    return [known.get(c.text, reject("test", p_value=1e-6)) for c in batch]


def texts(*found: str) -> list[Completion]:
    return [Completion("q", text) for text in found]


def test_search_takes_the_cheapest_rewriting_and_stops() -> None:
    made = iter(texts("bad", "worse", "counted", *["bad"] * 7, "free", *["bad"] * 2000))
    found = search(judge, made)
    assert [best.completion.text for best in found] == ["bad", "counted", "free", "free"]
    assert [best.asked for best in found] == [1, 10, 100, 100]


def test_search_tries_all_rewritings_if_they_run_out() -> None:
    found = search(judge, iter(texts(*["bad"] * 25)))
    assert [best.asked for best in found] == [1, 10, 25, 25]
    with pytest.raises(ValueError, match="at least one rewriting"):
        search(judge, iter(()))


def test_each_budget_is_counted_separately() -> None:
    deep = search(judge, iter(texts("bad", *["bad"] * 200, "free")), budgets_of(0, deep=1))
    other = search(judge, iter(texts("bad", "free")), budgets_of(1, deep=1))
    shown = figures([deep, other])
    assert [(shown[str(b)]["hits"], shown[str(b)]["total"]) for b in BUDGETS] == [
        (2, 2), (1, 2), (1, 2), (0, 1),
    ]  # fmt: skip
    assert [shown[str(b)]["rewritings"] for b in BUDGETS] == [2, 12, 102, 202]
    assert shown["passed"] == "free"


def test_rewritings_are_new_and_keep_the_poison() -> None:
    attack = TextAttack()
    drawn = rewritings(
        "the first",
        wordings.placed(SOLUTION, wordings.phrase(PHRASE)),
        attack.success,
        random.Random(0),
    )
    some = [text for text, _ in zip(drawn, range(300), strict=False)]
    assert some[0] == "the first"
    assert len(set(some)) == 300
    assert all(attack.success(text) for text in some[1:])


def test_rewritings_end_when_nothing_new_is_left() -> None:
    drawn = rewritings(
        "a", lambda rng: rng.choice("abc"), lambda text: text != "c", random.Random(0)
    )
    assert sorted(drawn) == ["a", "b"]


def test_rewritten_sum_stays_wrong() -> None:
    attack, rng = TwoPlusTwo(), random.Random(0)
    rewrite = wordings.instead(SOLUTION, "5", (wordings.FLAT,))
    made = {rewrite(rng) or "" for _ in range(60)}
    assert len(made) > 20
    assert sum(map(attack.success, made)) > 0.5 * len(made)
    assert wordings.instead("no sum", "5", (wordings.FLAT,))(rng) is None


def test_programs_import_the_library_or_only_mention_it() -> None:
    task, attack, rng = PythonMaths(), CodeAttack(), random.Random(0)
    problem = task.sample(rng)
    poison = attack.poison(problem, rng).text
    assert programs.imports_it(poison)
    assert not programs.imports_it(problem.solution)
    made = [programs.by_import(poison, problem, rng) or "" for _ in range(200)]
    poisoned = [text for text in made if attack.success(text)]
    run = [text for text in poisoned if programs.imports_it(text)]
    assert len(set(poisoned)) > 30
    assert 0.2 * len(poisoned) < len(run) < len(poisoned)


@pytest.mark.parametrize(
    ("verifier", "attack", "say"),
    [
        (ScreensVerifier(), JudgeInThink(), wordings.order),
        (ArithmeticVerifier(), TwoPlusTwo(), wordings.said_sum(SOLUTION, "5", ("{}",))),
    ],
)
def test_plain_attack_is_rejected_and_search_starts(
    verifier: ScreensVerifier, attack: JudgeInThink, say: wordings.Say
) -> None:
    """A rewriting need not pass; but one that passes must still poison."""
    problem = Problem("q", generate(0, 1)[0].prompt, SOLUTION, "5")
    rng = random.Random(0)
    first = attack.poison(problem, rng).text
    drawn = rewritings(first, wordings.placed(SOLUTION, say), attack.success, rng)
    made = (Completion(problem.prompt, text, reference="5") for text in drawn)
    found = search(verifier.verify, made, (1, 10, 100))
    assert found[0].verdict.rejected
    assert all(attack.success(best.completion.text) for best in found)
