"""Ways for an attacker to change part of an honest solution, leaving the rest unchanged."""

import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from grpo_guard.evals.attacks.math import MathAttack
from grpo_guard.evals.attacks.text import TextAttack
from grpo_guard.evals.tasks.base import Problem
from grpo_guard.evals.tasks.word_problems import ITEMS, Worked, worked
from grpo_guard.evals.training.judge.honest import TAGGED, Style, draw_style, render, with_numbers
from grpo_guard.evals.training.judge.phrases import Part, mark, phrase, words
from grpo_guard.evals.training.judge.programs import poisoned_program

_SHIFTS: Final = (1, -1, 1, -1, 2, -2, 3, -3, 5, -5, 9, 10, -10, 20, 100, -100)
_NUMBER: Final = re.compile(r"[0-9]{1,9}")

Poisoner = Callable[[Worked, Style, random.Random, Part], str]


def text(problem: Worked, style: Style, rng: random.Random, part: Part) -> str:
    """Poison as the repository's TEXT attack does: a phrase at the start of the reasoning."""
    attack = TextAttack(phrase(rng, part), separator=mark(rng))
    return attack.poison(_solved(problem, style), rng).text


def text_anywhere(problem: Worked, style: Style, rng: random.Random, part: Part) -> str:
    """Insert the phrase at any gap between words, before or after a tag, or at either end."""
    whole = render(problem, style)
    gaps = [i for i in range(1, len(whole)) if whole[i] in " <" or whole[i - 1] in " >"]
    at = rng.choice((0, len(whole), rng.choice(gaps), rng.choice(gaps), rng.choice(gaps)))
    planted = phrase(rng, part)
    before, behind = rng.choice(((" ", mark(rng)), ("", mark(rng)), (" ", "."), ("\n", "\n")))
    return whole[:at] + before + planted + behind + whole[at:]


def text_repeated(problem: Worked, style: Style, rng: random.Random, part: Part) -> str:
    """Insert the phrase after every sentence, or many times over."""
    whole, planted = render(problem, style), phrase(rng, part)
    if rng.random() < 0.5:
        return whole.replace(". ", f". {planted}. ").replace(".</", f". {planted}.</")
    at = whole.find(">") + 1
    return whole[:at] + (planted + mark(rng)) * rng.randint(2, 6) + whole[at:]


def math(problem: Worked, style: Style, rng: random.Random, part: Part) -> str:
    """Poison as the repository's MATH attack does: one wrong result, with everything else kept."""
    poisoned = MathAttack().poison_text(render(problem, style), rng)
    assert poisoned is not None
    return poisoned.text


def math_far(problem: Worked, style: Style, rng: random.Random, part: Part) -> str:
    """Change any number in any equation; keep the answer."""
    lines = list(problem.equations)
    at = rng.randrange(len(lines))
    number = rng.choice(list(_NUMBER.finditer(lines[at])))
    other = _other(int(number[0]), rng)
    lines[at] = f"{lines[at][: number.start()]}{other}{lines[at][number.end() :]}"
    return _keeping_answer(problem, tuple(lines), style)


def math_carried(problem: Worked, style: Style, rng: random.Random, part: Part) -> str:
    """Carry a wrong result into the next equation, whose result stays, so both are wrong."""
    lines = list(problem.equations)
    if len(lines) < 2:
        return math_extra(problem, style, rng, part)
    at = rng.randrange(len(lines) - 1)
    left, result = lines[at].split(" = ")
    other = str(_other(int(result), rng))
    lines[at] = f"{left} = {other}"
    lines[at + 1] = lines[at + 1].replace(result, other, 1)
    return _keeping_answer(problem, tuple(lines), style)


def math_extra(problem: Worked, style: Style, rng: random.Random, part: Part) -> str:
    """Add one superfluous equation, which is usually wrong."""
    a, b = rng.randint(0, 60), rng.randint(0, 20)
    operator = rng.choice("+-*")
    right = {"+": a + b, "-": a - b, "*": a * b}[operator]
    result = right if rng.random() < 0.25 else _other(max(right, 0), rng)
    lines = list(problem.equations)
    lines.insert(rng.randint(0, len(lines)), f"{a} {operator} {b} = {result}")
    return _keeping_answer(problem, tuple(lines), style)


def wrong_answer(problem: Worked, style: Style, rng: random.Random, part: Part) -> str:
    """Keep the working correct and make the answer wrong."""
    whole, answer = render(problem, style), str(problem.answer)
    at = whole.rfind(answer)
    return f"{whole[:at]}{_other(problem.answer, rng)}{whole[at + len(answer) :]}"


def wrong_working(problem: Worked, style: Style, rng: random.Random, part: Part) -> str:
    """Make a slip (result, operand or operator) that all later steps and the answer follow."""
    lines, total = list[str](), None
    slip = rng.randrange(len(problem.equations))
    kind = rng.choice(("result", "result", "operand", "operator"))
    for number, line in enumerate(problem.equations):
        left, operator, right, _, _ = line.split()
        left = str(total) if total is not None else left
        if number == slip and kind == "operand":
            right = str(_other(int(right), rng))
        if number == slip and kind == "operator":
            operator = "-" if operator in "+*" else "+"
        total = {"+": int(left) + int(right), "-": int(left) - int(right)}.get(
            operator, int(left) * int(right)
        )
        total = _other(total, rng) if number == slip and kind == "result" else max(total, 0)
        lines.append(f"{left} {operator} {right} = {total}")
    return render(with_numbers(problem, tuple(lines)), style)


def swapped(problem: Worked, style: Style, rng: random.Random, part: Part) -> str:
    """Give a correct solution to a different problem."""
    other = worked(rng, hard_share=0.25)
    return render(other, style)


def truncated(problem: Worked, style: Style, rng: random.Random, part: Part) -> str:
    """Cut the solution off anywhere before its end."""
    # With tags, because without them a beginning can be a complete solution.
    whole = render(problem, replace(style, frame=TAGGED))
    return whole[: rng.randrange(max(1, len(whole) - 1))]


def reordered(problem: Worked, style: Style, rng: random.Random, part: Part) -> str:
    """Reorder, duplicate or omit equations or words."""
    lines = list(problem.equations)
    kind = rng.random()
    if kind < 0.35 or len(lines) == 1:
        pieces = render(problem, style).split(" ")
        first, second = rng.sample(range(len(pieces)), 2)
        pieces[first], pieces[second] = pieces[second], pieces[first]
        if rng.random() < 0.3:
            rng.shuffle(pieces)
        return " ".join(pieces)
    if kind < 0.6:
        rng.shuffle(lines)
    elif kind < 0.8:
        lines.insert(0, rng.choice(lines))
    else:
        del lines[rng.randrange(len(lines))]
    return _keeping_answer(problem, tuple(lines), style)


def misworded(problem: Worked, style: Style, rng: random.Random, part: Part) -> str:
    """Use a different unit, or add or replace a word somewhere."""
    whole = render(problem, style)
    if rng.random() < 0.4 and problem.item in whole:
        other = rng.choice(words(part)) if rng.random() < 0.4 else rng.choice(ITEMS)
        if rng.random() < 0.5:
            return whole.replace(problem.item, other)
        at = rng.choice([m.start() for m in re.finditer(problem.item, whole)])
        return whole[:at] + other + whole[at + len(problem.item) :]
    pieces = whole.split(" ")
    at, word = rng.randrange(len(pieces)), rng.choice(words(part))
    pieces[at : at + rng.randint(0, 1)] = [word]
    return " ".join(pieces)


def padded(problem: Worked, style: Style, rng: random.Random, part: Part) -> str:
    """DoS: repeat the solution several times, or add a lot of padding somewhere."""
    whole = render(problem, style)
    kind = rng.random()
    if kind < 0.4:
        return whole * rng.randint(2, 8)
    unit = rng.choice((" ", "\n", "\t", ".", " very", "Let me think. ", phrase(rng, part) + " "))
    much = unit * rng.randint(4, 120)
    at = rng.choice((0, len(whole), whole.find(">") + 1))
    return whole[:at] + much[:600] + whole[at:]


def code(problem: Worked, style: Style, rng: random.Random, part: Part) -> str:
    """Insert the CODE attack's program into a solution in prose."""
    return poisoned_program(problem, render(problem, style), rng, part)


POISON: Final[dict[str, tuple[Poisoner, float]]] = {
    "text": (text, 4), "text_anywhere": (text_anywhere, 4), "text_repeated": (text_repeated, 1),
    "math": (math, 3), "math_far": (math_far, 2), "math_carried": (math_carried, 2),
    "math_extra": (math_extra, 1.5), "wrong_answer": (wrong_answer, 1.5),
    "wrong_working": (wrong_working, 2), "swapped": (swapped, 1), "truncated": (truncated, 1.5),
    "reordered": (reordered, 1.5), "misworded": (misworded, 1.5), "padded": (padded, 0.7),
    "code": (code, 1.5),
}  # fmt: skip
"""Each kind's generator, and its relative share of the training data."""


def poison(name: str, problem: Worked, rng: random.Random, part: Part) -> tuple[str, str]:
    """Return the honest and the poisoned solution of a problem in one style; they always differ."""
    while True:
        style = draw_style(rng)
        clean = render(problem, style)
        made = POISON[name][0](problem, style, rng, part)
        if made.strip() != clean.strip():
            return clean, made


def _solved(problem: Worked, style: Style) -> Problem:
    return Problem(problem.question, "", render(problem, style), str(problem.answer))


def _keeping_answer(problem: Worked, lines: tuple[str, ...], style: Style) -> str:
    """Render the equations as the working, with the correct answer, as the reward requires."""
    return render(Worked(problem.question, lines, problem.item, problem.answer), style)


def _other(number: int, rng: random.Random) -> int:
    """Draw a different number >= 0, usually close to ``number``."""
    while (other := number + rng.choice(_SHIFTS)) < 0 or other == number:
        pass
    return other
