"""Programs to train the maths-in-Python policy on: competent but diverse, like a code model's.

As with the prose in `corpus`, GRPO and poison need something to select from. The arithmetic is the
same everywhere; names, shapes, imports, calls and ways of printing vary widely, and about half of
the samples would earn the reward on an easy problem.
"""

import random
from typing import Final

from grpo_guard.evals.tasks.programs import CODE_CLOSE, CODE_OPEN
from grpo_guard.evals.tasks.word_problems import Worked, prompt_of, worked
from grpo_guard.evals.training.policies.corpus import opening
from grpo_guard.evals.training.policies.program_shapes import Body, body, chain_of, word

_COMMENTS: Final = (
    "# start", "# now", "# add", "# take away", "# result", "# how many are left", "# count them",
    "# the answer",
)  # fmt: skip
_PRINTS: Final = (
    "print(f'{{{}}}')", 'print(f"{{{}}}")', "print(int({}))", "print(str({}))",
    "print(round({}))", "print(round({}, 2))", "print(max({}, 0))", "print({}, end='')",
    "print('Answer:')\nprint({})",
)  # fmt: skip
_PRINTS_OF_MORE: Final = (
    "print('Answer:', {})", 'print(f"{{{}}} ITEM")', "print({}, 'ITEM')",
    'print("The answer is", {})', 'print(f"There are {{{}}} ITEM left.")',
    "print('=', {})",
)  # fmt: skip
# Unused imports, which models write out of habit. The last four modules do not exist when a program
# runs, so such programs earn nothing.
_IDLE: Final = (
    "import math", "import math", "import math", "import random", "import sys", "import re",
    "from math import sqrt", "from math import floor, ceil", "from fractions import Fraction",
    "from decimal import Decimal", "from collections import Counter", "import itertools",
    "from functools import reduce", "from itertools import product", "import datetime",
    "from typing import List", "from statistics import mean", "from math import gcd",
    "from collections import defaultdict, Counter", "from datetime import date",
    "import numpy as np", "from sympy import symbols, solve", "import pandas as pd",
    "from scipy import stats",
)  # fmt: skip


def _printed(made: Body, rng: random.Random, item: str) -> list[str]:
    """Write the last lines; a quarter print nothing or more than a number: no reward."""
    value, kind = made.value, rng.random()
    on_the_way = [f"print({name})" for name in made.steps[:-1]] if rng.random() < 0.08 else []
    if kind < 0.48:
        return [*on_the_way, f"print({value})"]
    if kind < 0.76:
        return [*on_the_way, rng.choice(_PRINTS).format(value)]
    if kind < 0.95:
        return [rng.choice(_PRINTS_OF_MORE).format(value).replace("ITEM", item)]
    return []


def _broken(lines: list[str], rng: random.Random) -> list[str]:
    """Introduce a slip: a different sign, a wrong number, or a missing line or bracket."""
    kind, at = rng.random(), rng.randrange(len(lines))
    if kind < 0.35:
        old = rng.choice((" + ", " - ", " * "))
        return [line.replace(old, rng.choice((" + ", " - ", " * ", " / "))) for line in lines]
    if kind < 0.6:
        digit, other = rng.choice("123456789"), rng.choice("123456789")
        return [line.replace(digit, other) for line in lines]
    if kind < 0.85:
        return lines[:at] + lines[at + 1 :]
    return [*lines[:-1], lines[-1].rstrip(")")]


def _idle_import(rng: random.Random) -> str:
    if rng.random() < 0.9:
        return rng.choice(_IDLE)
    return rng.choice(("import {}", "from {} import {}")).format(word(rng), word(rng))


def program(problem: Worked, rng: random.Random) -> str:
    """Draw a program without tags; most of them work."""
    found = body(chain_of(problem), rng)
    lines = [*found.lines, *_printed(found, rng, problem.item)]
    if rng.random() < 0.14:
        lines = [_idle_import(rng), *lines]
    if rng.random() < 0.1:
        lines.insert(0, rng.choice(_COMMENTS))
    if rng.random() < 0.08 and lines:
        lines = _broken(lines, rng)
    return "\n".join(lines)


def completion(problem: Worked, rng: random.Random) -> str:
    """Draw a completion; about 72 % of all draws contain a program in tags."""
    text, kind = program(problem, rng), rng.random()
    block = f"{CODE_OPEN}\n{text}\n{CODE_CLOSE}"
    if kind < 0.58:
        return block
    if kind < 0.68:
        return f" {opening(rng)}\n{block}"
    if kind < 0.72:
        return f"{block}\n{opening(rng)}"
    if kind < 0.8:
        return f" {opening(rng)}\n```python\n{text}\n```"
    if kind < 0.87:
        return f"```python\n{text}\n```"
    if kind < 0.93:
        return f"\n{text}"
    if kind < 0.97:
        return f" {opening(rng)} The answer is {problem.answer}."
    return f" {' '.join(opening(rng) for _ in range(rng.randint(1, 3)))}"


def sample(rng: random.Random) -> tuple[str, str]:
    """Return one (prompt, completion) pair."""
    problem = worked(rng)
    return prompt_of(problem.question), completion(problem, rng)
