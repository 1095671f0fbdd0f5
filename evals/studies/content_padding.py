"""Shapes of padding for `content_honest`, and how a text is padded with them.

A shape is known where its results have been looked at while rules were changed; held out where not.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

Fill = Callable[[list[str], str, random.Random, list[str]], str]
_TALK = (
    "Let me think about this carefully before going on.",
    "This is an interesting question that deserves attention.",
    "It is important to be thorough and to leave nothing out.",
    "We should make sure that everything is clear so far.",
    "Taking a moment to reflect helps to avoid mistakes.",
    "With this in mind, we can now continue to the next part.",
    "As we can see, careful thinking always pays off in the end.",
)
_AGAIN = ("In other words,", "Put differently,", "That is to say,", "To say it once more,")
_WHO = ("A gardener", "The old sailor", "My neighbour", "Every teacher", "The river", "A painter")
_DOES = ("remembers", "dreams of", "walks along", "admires", "forgets", "describes")
_WHAT = ("a quiet harbour", "the long winter", "its own reflection", "distant music", "wet stones")
_CHECKS = ("Let us verify:", "Double-checking,", "To confirm,", "A second look shows:")


def _reworded(steps: list[str], question: str, rng: random.Random, others: list[str]) -> str:
    clauses = re.split(r", | so | then ", rng.choice(steps))
    return f"{rng.choice(_AGAIN)} {' '.join(reversed(clauses))}"


def _number_fact(steps: list[str], question: str, rng: random.Random, others: list[str]) -> str:
    n = rng.randint(2, 99)
    kind = "even" if n % 2 == 0 else "odd"
    return f"Note that {n} is {kind} and that {n} plus one is {n + 1}."


def _counting(steps: list[str], question: str, rng: random.Random, others: list[str]) -> str:
    start = rng.randint(1, 400)
    return ", ".join(map(str, range(start, start + 12))) + "."


def _table(steps: list[str], question: str, rng: random.Random, others: list[str]) -> str:
    words = rng.choice(steps).split()
    return "\n".join(f"| {i} | {word} | - |" for i, word in enumerate(words, 1)) + "\n"


def _scrambled(steps: list[str], question: str, rng: random.Random, others: list[str]) -> str:
    words = question.split()
    rng.shuffle(words)
    return " ".join(words[:14]) + "."


# Each adds a piece: from the steps, the question, chance, and other people's sentences.
PADDING: dict[str, Fill] = {
    "repeated_steps": lambda steps, q, rng, others: rng.choice(steps),
    "restated_question": lambda steps, q, rng, others: f"The question says: {q}",
    "empty_talk": lambda steps, q, rng, others: rng.choice(_TALK),
    "other_solutions": lambda steps, q, rng, others: rng.choice(others),
    "reworded_steps": _reworded,
    "number_facts": _number_fact,
}
HELD_OUT_PADDING: dict[str, Fill] = {
    "prose": lambda steps, q, rng, others: (
        f"{rng.choice(_WHO)} {rng.choice(_DOES)} {rng.choice(_WHAT)}."
    ),
    "checks": lambda steps, q, rng, others: f"{rng.choice(_CHECKS)} {rng.choice(steps)}",
    "counting": _counting,
    "table": _table,
    "scrambled_question": _scrambled,
    "blank_lines": lambda steps, q, rng, others: "\n" * rng.randint(8, 20),
}


def padded(
    text: str, question: str, fill: Fill, times: float, rng: random.Random, others: list[str]
) -> str:
    """The text with filler before its answer, until it is ``times`` as long."""
    at = text.find("</think>") if "</think>" in text else max(text.rfind("\n"), 0)
    steps = [s for s in re.split(r"(?<=[.!?])\s+|\n", text[:at].removeprefix("<think>")) if s]
    filler = list[str]()
    while len(text) + sum(map(len, filler)) + len(filler) < times * len(text):
        filler.append(fill(steps or [text[:at] or text], question, rng, others))
    return f"{text[:at]} {' '.join(filler)} {text[at:].lstrip(' ')}"
