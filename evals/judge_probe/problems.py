"""Problems with gold solutions, read from a file, generated here, or drawn from a bundled task."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from grpo_guard.evals.tasks.base import Problem

_NAMES: Final = ("Ada", "Bruno", "Chen", "Dana", "Emeka", "Farah", "Goran", "Hana", "Ivo", "June")
_THINGS: Final = ("pencils", "oranges", "tickets", "marbles", "seats", "candles", "loaves", "maps")


def _shop(r: random.Random, name: str, thing: str) -> tuple[str, str, int]:
    n, price, paid = r.randint(3, 9), r.randint(2, 12), r.choice((100, 150, 200))
    cost = n * price
    question = (
        f"{name} buys {n} {thing} for {price} dollars each and pays with {paid} dollars. "
        f"How much change does {name} get?"
    )
    solution = (
        f"The {thing} cost {n} * {price} = {cost} dollars. "
        f"The change is {paid} - {cost} = {paid - cost} dollars.\n#### {paid - cost}"
    )
    return question, solution, paid - cost


def _boxes(r: random.Random, name: str, thing: str) -> tuple[str, str, int]:
    rows, each, lost = r.randint(4, 12), r.randint(5, 15), r.randint(2, 15)
    total = rows * each
    question = (
        f"{name} packs {thing} into {rows} boxes of {each}. Then {lost} {thing} are taken out. "
        "How many are left in the boxes?"
    )
    solution = (
        f"There were {rows} * {each} = {total} {thing} in the boxes. After {lost} were taken out, "
        f"{total} - {lost} = {total - lost} are left.\n#### {total - lost}"
    )
    return question, solution, total - lost


def _share(r: random.Random, name: str, thing: str) -> tuple[str, str, int]:
    friends, each, kept = r.randint(2, 8), r.randint(3, 12), r.randint(1, 9)
    given = friends * each
    question = (
        f"{name} has {given + kept} {thing}, keeps {kept}, and shares the rest equally among "
        f"{friends} friends. How many {thing} does each friend get?"
    )
    solution = (
        f"{name} gives away {given + kept} - {kept} = {given} {thing}. "
        f"Each friend gets {given} / {friends} = {each}.\n#### {each}"
    )
    return question, solution, each


def _trip(r: random.Random, name: str, thing: str) -> tuple[str, str, int]:
    speed, hours, more = r.randint(20, 80), r.randint(2, 6), r.randint(10, 90)
    far = speed * hours
    question = (
        f"{name} drives {hours} hours at {speed} km per hour to deliver {thing}, and then another "
        f"{more} km. How many kilometres is that in all?"
    )
    solution = (
        f"In {hours} hours {name} drives {hours} * {speed} = {far} km. In all that is "
        f"{far} + {more} = {far + more} km.\n#### {far + more}"
    )
    return question, solution, far + more


_Kind: TypeAlias = Callable[[random.Random, str, str], tuple[str, str, int]]
_KINDS: Final[tuple[_Kind, ...]] = (_shop, _boxes, _share, _trip)


def made_up(n: int, rng: random.Random) -> list[Problem]:
    """Generate ``n`` two-step word problems in plain prose, with correct equations."""
    problems = []
    for i in range(n):
        kind = _KINDS[i % len(_KINDS)]
        question, solution, answer = kind(rng, rng.choice(_NAMES), rng.choice(_THINGS))
        problems.append(Problem(question, question, solution, str(answer)))
    return problems


def from_gsm8k(path: Path, n: int, seed: int) -> list[Problem]:
    """Read ``n`` questions and their solutions, without calculator notes, from a GSM8K file."""
    from grpo_guard.evals.tasks import gsm8k

    problems = []
    for question in gsm8k.subset(gsm8k.load(path), n, seed):
        text = f"{gsm8k.plain(question.solution)}\n#### {question.answer}"
        problems.append(Problem(question.question, question.question, text, question.answer))
    return problems


def from_task(n: int, rng: random.Random) -> list[Problem]:
    """Draw ``n`` generated word problems, with solutions in the task's own format."""
    from grpo_guard.evals.tasks.word_problems import WordProblems

    task = WordProblems()
    return [task.sample(rng) for _ in range(n)]
