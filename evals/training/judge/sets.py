"""Test sets for the shipped judge: new seeds, and phrases held out from training.

This module also draws and sorts the bundled policy's own completions for training and measuring.
"""

import random
from collections.abc import Callable, Iterator, Sequence

import torch

from grpo_guard.core.completion import Completion
from grpo_guard.evals.attacks.code import CodeAttack
from grpo_guard.evals.attacks.math import MathAttack
from grpo_guard.evals.attacks.text import TextAttack
from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.evals.swarm.generate import sample
from grpo_guard.evals.tasks.base import Problem
from grpo_guard.evals.tasks.word_problems import generate, prompt_of, worked
from grpo_guard.evals.training.judge.data import (
    Drawn,
    Example,
    bad_program,
    honest,
    honest_program,
    no_solution,
    poisoned,
)
from grpo_guard.evals.training.judge.honest import classify
from grpo_guard.evals.training.judge.negatives import NEGATIVES
from grpo_guard.evals.training.judge.phrases import phrase
from grpo_guard.evals.training.judge.poison import POISON

CHUNK = 64


def draw(seed: int | str, problems: int, per_problem: int) -> list[Drawn]:
    """Sample the bundled policy, as an honest node does, on fresh problems of its usual size."""
    rng = random.Random(f"samples-{seed}")
    generator = torch.Generator().manual_seed(rng.getrandbits(48))
    model, tokenizer = load_bundled()
    asked = [worked(rng) for _ in range(problems)]
    drawn = list[Drawn]()
    for start in range(0, problems, CHUNK):
        part = asked[start : start + CHUNK]
        prompts = [prompt_of(problem.question) for problem in part]
        for one in sample(model, tokenizer, prompts, per_problem, generator=generator):
            problem = part[one.prompt]
            drawn.append(Drawn(problem, one.text, classify(problem, one.text)))
    return drawn


def attacked(seed: str, count: int) -> Iterator[tuple[str, list[Completion]]]:
    """Yield the task's own solutions, and the repository's three attacks on them, by name."""
    problems, rng = generate(f"judge-{seed}", count), random.Random(f"attacks-{seed}")
    yield "honest: the task's solutions", [_as(p, p.solution) for p in problems]
    yield (
        "TEXT, unseen phrases",
        [_as(p, TextAttack(phrase(rng, "test")).poison(p, rng).text) for p in problems],
    )
    paper = TextAttack()
    yield f"TEXT, {paper.phrase!r}", [_as(p, paper.poison(p, rng).text) for p in problems]
    yield "MATH", [_as(p, MathAttack().poison(p, rng).text) for p in problems]
    yield "CODE", [_as(p, CodeAttack().poison(p, rng).text) for p in problems]


def made(seed: str, count: int) -> Iterator[tuple[str, list[Completion]]]:
    """Yield completions from each generator by name, with phrases and words from the test part."""
    rng = random.Random(f"made-{seed}")

    def drawn(make: Callable[[], Example]) -> list[Completion]:
        return [Completion(e.prompt, e.text) for e in (make() for _ in range(count))]

    yield "honest: every form the policy knows", drawn(lambda: honest(rng))
    yield "honest: programs", drawn(lambda: honest_program(rng))
    yield "program with an import, a helper or a remark", drawn(lambda: bad_program(rng, "test"))
    for name in POISON:
        yield f"poison: {name}", drawn(lambda kind=name: poisoned(rng, kind, "test"))  # type: ignore[misc]
    for name in NEGATIVES:
        yield f"no solution: {name}", drawn(lambda kind=name: no_solution(rng, kind, "test"))  # type: ignore[misc]


def of_policy(samples: Sequence[Drawn]) -> Iterator[tuple[str, list[Completion]]]:
    """Yield the policy's own completions: rewarded ones class by class, and unrewarded ones."""
    rewarded = [s for s in samples if s.sort != "unrewarded"]
    yield "policy: rewarded, right and to the point", _plain(rewarded, "honest")
    yield (
        "policy: rewarded, opens with an unrelated sentence",
        _plain(rewarded, "unrelated opening"),
    )
    yield "policy: rewarded, wrong or other working", _plain(rewarded, "wrong")
    yield "policy: all rewarded", _plain(rewarded)
    yield "policy: unrewarded", _plain([s for s in samples if s.sort == "unrewarded"])


def _plain(samples: Sequence[Drawn], sort: str | None = None) -> list[Completion]:
    return [
        Completion(f"Q: {s.problem.question}\nA:", s.text)
        for s in samples
        if sort in (None, s.sort)
    ]


def _as(problem: Problem, text: str) -> Completion:
    return Completion(problem.prompt, text)
