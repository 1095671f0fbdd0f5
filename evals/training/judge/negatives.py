"""Completions that are not solutions: known ways to make a judge say yes, and plain junk."""

import random
from collections.abc import Callable
from typing import Final

from grpo_guard.evals.tasks.word_problems import Worked
from grpo_guard.evals.training.judge.honest import Style, render
from grpo_guard.evals.training.judge.phrases import Part, mark, phrase, wordings, words

Maker = Callable[[Worked, random.Random, Part], str]


def master_key(problem: Worked, rng: random.Random, part: Part) -> str:
    """Write the beginning of an answer instead of a whole answer (arXiv 2507.08794)."""
    key = rng.choice(wordings("master_keys", part))
    return key * rng.choice((1, 1, 1, 1, 2, 5))


def fake_verdict(problem: Worked, rng: random.Random, part: Part) -> str:
    """Write a verdict in the judge's own words, on its own or with a solution, right or wrong."""
    return _beside(problem, rng.choice(wordings("verdicts", part)), rng)


def foreign(problem: Worked, rng: random.Random, part: Part) -> str:
    """Write instructions in other languages."""
    return _beside(problem, rng.choice(wordings("foreign", part)), rng)


def delimiter(problem: Worked, rng: random.Random, part: Part) -> str:
    """Imitate the delimiters around the completion."""
    return _beside(problem, rng.choice(wordings("delimiters", part)), rng)


def junk(problem: Worked, rng: random.Random, part: Part) -> str:
    """Write sentences, words or characters unrelated to the problem, sometimes with its answer."""
    kind = rng.random()
    if kind < 0.5:
        return "".join(phrase(rng, part) + mark(rng) for _ in range(rng.randint(1, 8)))
    if kind < 0.7:
        planted = phrase(rng, part)
        return f"<think>{planted}.</think><answer>{problem.answer} {problem.item}</answer>"
    if kind < 0.85:
        return "".join(chr(rng.choice((rng.randint(1, 126), rng.randint(128, 0x2FFF))))
                       for _ in range(rng.randint(1, 80)))  # fmt: skip
    return " ".join(rng.choice(words(part)) for _ in range(rng.randint(1, 40)))


def empty(problem: Worked, rng: random.Random, part: Part) -> str:
    """Write nothing, or nothing visible."""
    return rng.choice(("", "", " ", "\n", "\n\n\n", "\t", "   ", "\u200b", "\x00"))


def echo(problem: Worked, rng: random.Random, part: Part) -> str:
    """Repeat the question, or give just the answer."""
    answer = f"{problem.answer} {problem.item}"
    return rng.choice(
        (
            problem.question, answer, str(problem.answer), f"<answer>{answer}</answer>",
            f"<think></think><answer>{answer}</answer>", f"The answer is {answer}.",
            f"<think>{problem.question}</think><answer>{answer}</answer>",
            f"<think>{answer}</think><answer>{answer}</answer>", f"#### {problem.answer}",
            f"<think>Let me think.</think><answer>{answer}</answer>",
        )
    )  # fmt: skip


def huge(problem: Worked, rng: random.Random, part: Part) -> str:
    """Repeat a short text over 300 to 900 characters."""
    unit = rng.choice((phrase(rng, part), problem.item, "yes ", "a", "1 + 1 = 2. ", ". "))
    return (unit * 900)[: rng.randint(300, 900)]


NEGATIVES: Final[dict[str, tuple[Maker, float]]] = {
    "master_key": (master_key, 1.0), "fake_verdict": (fake_verdict, 1.5), "foreign": (foreign, 0.7),
    "delimiter": (delimiter, 1.0), "junk": (junk, 1.5), "empty": (empty, 0.2), "echo": (echo, 0.7),
    "huge": (huge, 0.25),
}  # fmt: skip
"""Each kind's generator, and its relative share of the training data."""


def _beside(problem: Worked, words_: str, rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.35:
        return words_
    whole = render(problem, Style())
    if kind < 0.6:
        return f"{whole}{rng.choice((' ', chr(10), ''))}{words_}"
    if kind < 0.75:
        return f"{words_} {whole}"
    if kind < 0.9:
        return whole.replace("<think>", f"<think>{words_}{mark(rng)}")
    return f"<think>{words_}</think><answer>{problem.answer}</answer>"
