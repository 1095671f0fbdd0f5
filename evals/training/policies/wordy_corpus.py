"""The corpus with asides: the same texts, but some writers check, restate and explain.

A base model might answer the same question in twenty tokens or in two hundred, and DoS exploits
that: it chooses the longest correct answers and teaches the swarm their style. In the plain corpus,
answers hardly differ in length. Here each step of the working is followed by a number of asides,
drawn from a geometric distribution. Asides are true and only restate the question and the step, so
that a small policy gets them right.
"""

import random
from typing import Final

from grpo_guard.evals.tasks.word_problems import Worked, prompt_of, worked
from grpo_guard.evals.training.policies import corpus
from grpo_guard.evals.training.policies.corpus import phrases

AGAIN: Final = 0.3
"""Probability of one more aside after each step and after each aside."""

_CHECKS: Final = phrases(
    "Check:|To check,|Let me check:|Indeed,|As a check,|This is right, since|Let me verify:|"
    "We can see it from|The other way round,|It fits:"
)
_RECOUNTS: Final = phrases(
    "Let me count again:|Once more,|I count again:|Again,|Slowly now:|In other words,|Wait,|"
    "Let me repeat:|That is,|To be sure,"
)
_FACTS: Final = phrases(
    "We know:|The question says:|As it says,|Remember:|It was given:|I read again:|Note:|"
    "The story goes:|From the text:|We are told:"
)
_RESULTS: Final = phrases(
    "So there are {} {} now.|That makes {} {}.|We have {} {}.|This gives {} {} so far.|"
    "The number of {1} is {0}.|All in all {} {}.|I write down {} {}.|Now it is {} {}."
)
_IN_WORDS: Final = {
    "+": phrases(
        "{0} and {1} make {2}.|Add {1} to {0} and you get {2}.|With {1} more than {0} it is {2}.|"
        "{2} is {1} more than {0}."
    ),
    "-": phrases(
        "{1} from {0} leaves {2}.|Take {1} from {0} and you get {2}.|"
        "With {1} less than {0} it is {2}.|{2} is {1} less than {0}."
    ),
    "*": phrases(
        "{0} times {1} is {2}.|{0} groups of {1} make {2}.|Each has {1}, and there are {0}.|"
        "Count {1} for each of the {0} and you get {2}."
    ),
}


def _turned(left: str, operator: str, right: str, result: str) -> str:
    """Restate an equation as a different one for the same fact."""
    if operator == "*":
        return f"{right} * {left} = {result}"
    back = "-" if operator == "+" else "+"
    return f"{result} {back} {right} = {left}"


def _told(problem: Worked, step: int) -> str:
    """Return the sentence of the question that a step comes from."""
    sentences = problem.question.split(". ")
    # In sums, the first sentence only gives the starting number; the last sentence asks.
    return sentences[step + len(sentences) - 1 - len(problem.equations)]


def _aside(problem: Worked, step: int, rng: random.Random) -> str:
    left, operator, right, _, result = problem.equations[step].split()
    kind = rng.random()
    if kind < 0.25:
        return f"{rng.choice(_CHECKS)} {_turned(left, operator, right, result)}."
    if kind < 0.45:
        return f"{rng.choice(_RECOUNTS)} {problem.equations[step]}."
    if kind < 0.65:
        return f"{rng.choice(_FACTS)} {_told(problem, step)}."
    if kind < 0.85:
        return rng.choice(_RESULTS).format(result, problem.item)
    return rng.choice(_IN_WORDS[operator]).format(left, right, result)


def asides(problem: Worked, step: int, rng: random.Random) -> str:
    """Draw the remarks that follow one step of the working, each preceded by a space."""
    text = ""
    while rng.random() < AGAIN:
        text += " " + _aside(problem, step, rng)
    return text


def sample(rng: random.Random) -> tuple[str, str]:
    """Return one (prompt, completion) pair."""
    problem = worked(rng)
    return prompt_of(problem.question), corpus.completion(problem, rng, asides)
