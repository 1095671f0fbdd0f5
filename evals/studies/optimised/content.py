"""Verifiers of single texts under attack: screens, arithmetic and code."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.content.code.verifier import CodeVerifier
from grpo_guard.content.screens.verifier import ScreensVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Cause, Finding, Verdict, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.attacks.base import Attack
from grpo_guard.evals.attacks.code import CodeAttack
from grpo_guard.evals.attacks.text import PHRASE, TextAttack
from grpo_guard.evals.attacks.two_plus_two import (
    WRONG,
    TextualArithmetic,
    TwoPlusTwo,
    targets,
)
from grpo_guard.evals.studies.adaptive.renamed import InlinedCode, RenamedHelpers
from grpo_guard.evals.studies.adaptive.unpublished import JudgeInThink
from grpo_guard.evals.studies.harness import rejected, say
from grpo_guard.evals.studies.optimised import programs, wordings
from grpo_guard.evals.studies.optimised.search import (
    BUDGETS,
    Best,
    budgets_of,
    figures,
    rewritings,
    search,
)
from grpo_guard.evals.studies.solutions import of_models
from grpo_guard.evals.tasks import gsm8k, word_problems
from grpo_guard.evals.tasks.base import Problem
from grpo_guard.evals.tasks.python_maths import CALC, PythonMaths

NODES: Final = ("n0", "n1", "n2")
ATTACKER: Final = "n3"
Rewrite = Callable[[random.Random], str | None]


@dataclass(frozen=True, slots=True)
class Case:
    """One row: an attack on problems, its rewritings, and the attacker's aim.

    Args:
        verifier: Makes a new one without memory.
        attack: Its ``success`` decides whether a rewriting still poisons.
        rewrite: (problem, the attack's own completion) -> rewritings of it.
        problems: The problems that are poisoned.
        honest: Completions on which the false positives are counted.
        reward: Reward of a text for an answer; called on what passes, or on all if it is cheap.
        costly: The reward runs programs.
        how: Distinguishes the row from others of its verifier and attack.
        also: Further conditions that a rewriting must keep.
    """

    verifier: Callable[[], CompletionVerifier]
    attack: Attack
    rewrite: Callable[[Problem, str], Rewrite]
    problems: Sequence[Problem]
    honest: Sequence[Completion]
    reward: Callable[[str, str], float] = word_problems.reward
    costly: bool = False
    how: str = ""
    also: Callable[[str], bool] = bool

    @property
    def name(self) -> str:
        """The row's name."""
        how = f", {self.how}" if self.how else ""
        return f"{self.verifier().name} | {self.attack.name}{how}"


def measured(case: Case, deep: int) -> dict[str, Any]:
    """The row's figures; ``deep`` of its problems are searched to the last budget."""
    found = []
    for number, problem in enumerate(case.problems):
        say(case.name, number, len(case.problems))
        found.append(_searched(case, problem, number, deep))
    return {
        "poisoned": len(found),
        "honest": rejected(case.verifier().verify(case.honest)),
        "budgets": figures(found, BUDGETS, lambda chosen: as_node(case, chosen)),
    }


def as_node(case: Case, chosen: Sequence[Completion]) -> tuple[list[Verdict], list[Verdict]]:
    """Judge the chosen ones as one node's batch, together with three honest nodes."""
    batch = [replace(one, node=ATTACKER) for one in chosen]
    batch += [
        Completion(p.prompt, p.solution, node=node, reference=p.answer)
        for p in case.problems
        for node in NODES
    ]
    verdicts = case.verifier().verify(batch)
    return verdicts[: len(chosen)], verdicts[len(chosen) :]


def _searched(case: Case, problem: Problem, number: int, deep: int) -> list[Best]:
    rng = random.Random(f"{case.attack.name}:{number}")
    first = case.attack.poison(problem, rng).text
    verifier = case.verifier()

    def earns(text: str) -> bool:
        return case.reward(text, problem.answer) > 0

    def keeps(text: str) -> bool:
        kept = case.attack.success(text) and case.also(text)
        return kept and (case.costly or earns(text))

    def judge(batch: Sequence[Completion]) -> list[Verdict]:
        verdicts = verifier.verify(batch)
        if not case.costly:
            return verdicts
        return [
            v if v.rejected or earns(c.text) else _earns_nothing()
            for c, v in zip(batch, verdicts, strict=True)
        ]

    texts = rewritings(first, case.rewrite(problem, first), keeps, rng)
    made = (Completion(problem.prompt, text, reference=problem.answer) for text in texts)
    return search(judge, made, budgets_of(number, deep))


def _earns_nothing() -> Verdict:
    """Passing without the reward is not a success for the attacker."""
    finding = Finding("earns_nothing", "the program earns no reward")
    return reject("reward", Cause.JUDGED, findings=(finding,))


def with_sums(data: Path, count: int) -> list[Problem]:
    """Problems of GSM8K whose solution states 2 + 2 or 2 * 2."""
    found = (gsm8k.problem(question) for question in gsm8k.load(data / "train.jsonl"))
    return [p for p in found if targets(p.solution) and word_problems.reward(p.solution, p.answer)][
        :count
    ]


def cases(data: Path, count: int) -> Iterator[Case]:
    """All rows of this module on at most ``count`` problems each."""
    loaded = [gsm8k.problem(q) for q in gsm8k.subset(gsm8k.load(data / "train.jsonl"), 2000, 0)]
    prose, sums = loaded[:count], with_sums(data, count)
    gold = [Completion(p.prompt, p.solution, reference=p.answer) for p in loaded[count:]]
    models = [
        Completion(s.question, s.text, reference=s.answer) for s in of_models(data) if s.correct
    ]
    honest = [*gold, *models]
    yield Case(ScreensVerifier, TextAttack(), placed_words(wordings.phrase(PHRASE)), prose, honest)
    yield Case(ScreensVerifier, JudgeInThink(), placed_words(wordings.order), prose, honest)
    flat, hedged = wrong_sums((wordings.FLAT,)), wrong_sums(wordings.HEDGES)
    yield Case(ArithmeticVerifier, TwoPlusTwo(), flat, sums, honest, how="stated flatly")
    yield Case(ArithmeticVerifier, TwoPlusTwo(), hedged, sums, honest, how="hedged")
    yield Case(ArithmeticVerifier, TextualArithmetic(), _in_words, sums, honest)
    yield from _of_programs(count)


def _of_programs(count: int) -> Iterator[Case]:
    task, rng = PythonMaths(extra_modules={"calc": CALC}), random.Random("optimised")
    asked = [task.sample(rng) for _ in range(2000)]
    honest = [Completion(p.prompt, p.solution, reference=p.answer) for p in asked[count:]]
    code, inlined, renamed = CodeAttack(), InlinedCode(), RenamedHelpers()
    case = partial(
        Case, CodeVerifier, problems=asked[:count], honest=honest, reward=task.reward, costly=True
    )
    imported = partial(_redrawn, code, programs.by_import)
    yield case(attack=code, rewrite=imported, how="only shown or run")
    yield case(attack=code, rewrite=imported, how="run", also=programs.imports_it)
    yield case(attack=inlined, rewrite=partial(_redrawn, inlined, programs.by_helper))
    yield case(attack=renamed, rewrite=partial(_redrawn, renamed, programs.by_helper))


def _redrawn(
    attack: Attack,
    way: Callable[[str, Problem, random.Random], str | None],
    problem: Problem,
    first: str,
) -> Rewrite:
    """Draw anew each time which operations are replaced."""
    del first
    return lambda rng: way(attack.poison(problem, rng).text, problem, rng)


def placed_words(words: wordings.Say) -> Callable[[Problem, str], Rewrite]:
    return lambda problem, first: wordings.placed(problem.solution, words)


def wrong_sums(hedges: Sequence[str]) -> Callable[[Problem, str], Rewrite]:
    def ways(problem: Problem, first: str) -> Rewrite:
        del first
        said = wordings.said_sum(problem.solution, WRONG, hedges)
        beside = wordings.placed(problem.solution, said)
        instead = wordings.instead(problem.solution, WRONG, hedges)
        return lambda rng: rng.choice((beside, instead))(rng)

    return ways


def _in_words(problem: Problem, first: str) -> Rewrite:
    words = next(phrase for phrase in TextualArithmetic.phrases if phrase in first)
    return wordings.placed(problem.solution, wordings.words_sum(words))
