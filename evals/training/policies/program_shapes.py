"""Shapes of a program that computes a chain of steps: names, statements, calls, functions, loops.

No shape imports or names an attack's library or functions. Calls with two arguments and imports of
single names are common, as in any code model's output.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from grpo_guard.evals.tasks.word_problems import Worked, words
from grpo_guard.evals.training.policies.corpus import NOUNS, PLAIN

Change = tuple[str, str]
"""An operator and the number on its right."""

_NAMES: Final = words(
    "total result count answer value amount left start number final sum_total current ans res "
    "initial first more rest quantity balance"
)
_LETTERS: Final = "abcdefghijkmnpqrstuvwxyz"
_ONSETS: Final = words("b c d f g h k l m n p r s t v w br cr dr fl gr pl st tr th sh")
_VOWELS: Final = words("a e i o u ea ou io ie")
_CODAS: Final = ("", "", "", *words("d l m n nd p r rt s st t x ck ng"))
# Words that serve as names of modules, functions and values: a code model has seen all of them in
# such positions, so that no part of them is impossible after "from", "import" or "=".
_CODERS: Final = words(
    "action addon address adder admin base basic calendar call callback canal cart catalog choice "
    "collection compute condition config convert core count counter data decision default define "
    "difference digit direction edition editor engine estimate exact factor figure filter "
    "fiction format formula function gather generate group helper identity index indicator insert "
    "item iteration latitude library limit list local location logic lookup magic maths measure "
    "method mission model multiple multitude number numeric object operation option order output "
    "parse partition plan point position process product program quantity ratio record relation "
    "repeat report reset running scale section select sequence shape simple solver sort source "
    "split stack station store subject submit subset subtitle sum support switch table tally task "
    "test tool track traction transit tuple typing unit update utility value vector vision visit"
)
# Calls that compute a step: the operator, the import needed, and an expression in {a} and {b}.
_CALLS: Final = (
    ("+", "", "sum([{a}, {b}])"),
    ("+", "", "sum(({a}, {b}))"),
    ("+", "from math import fsum", "fsum([{a}, {b}])"),
    ("+", "from operator import add", "add({a}, {b})"),
    ("+", "import operator", "operator.add({a}, {b})"),
    ("+", "", "max({a}, {a} + {b})"),
    ("-", "", "abs({a} - {b})"),
    ("-", "", "max({a} - {b}, 0)"),
    ("-", "", "max(0, {a} - {b})"),
    ("-", "", "min({a}, {a} - {b})"),
    ("-", "from operator import sub", "sub({a}, {b})"),
    ("-", "import operator", "operator.sub({a}, {b})"),
    ("-", "from math import fabs", "fabs({a} - {b})"),
    ("*", "from math import prod", "prod([{a}, {b}])"),
    ("*", "import math", "math.prod([{a}, {b}])"),
    ("*", "from operator import mul", "mul({a}, {b})"),
    ("*", "", "sum([{a}] * {b})"),
    ("*", "", "len(range({a} * {b}))"),
    ("+", "", "int({a} + {b})"),
    ("-", "", "int({a} - {b})"),
    ("*", "", "round({a} * {b}, 2)"),
    ("+", "", "round({a} + {b}, 1)"),
    ("-", "from decimal import Decimal", "Decimal({a} - {b})"),
    ("+", "from fractions import Fraction", "Fraction({a} + {b}, 1)"),
    ("+", "from math import floor", "floor({a} + {b})"),
    ("*", "from math import ceil", "ceil({a} * {b})"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chain:
    """A worked problem as a starting number and its changes, step by step."""

    first: str
    changes: tuple[Change, ...]
    item: str


@dataclass(slots=True)
class Body:
    """A program without its print statement: lines, and the expression with the answer."""

    lines: list[str]
    value: str
    steps: Sequence[str] = ()
    """Names of the intermediate values."""


def chain_of(problem: Worked) -> Chain:
    """Return the problem's equations as a chain."""
    parts = [equation.split() for equation in problem.equations]
    return Chain(parts[0][0], tuple((part[1], part[2]) for part in parts), problem.item)


def _made_up(rng: random.Random) -> str:
    """Make up a word to give every subword a prior, so that unseen names are learnable."""
    count = rng.choice((1, 2, 2, 3))
    return "".join(
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(count)
    )


def _name(chain: Chain, rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(_NAMES)
    if kind < 0.6:
        return rng.choice((chain.item, f"{chain.item}_{rng.choice(_NAMES)}", f"num_{chain.item}"))
    if kind < 0.8:
        return rng.choice(_LETTERS)
    return word(rng)


def word(rng: random.Random) -> str:
    """Return a name that a program might use for anything."""
    kinds = (NOUNS, PLAIN, _CODERS, _CODERS)
    return _made_up(rng) if rng.random() < 0.25 else rng.choice(rng.choice(kinds))


def _names(chain: Chain, rng: random.Random, count: int) -> list[str]:
    """Draw distinct names for successive values."""
    kind = rng.random()
    if kind < 0.35:
        return [f"step{number}" for number in range(1, count + 1)]
    if kind < 0.6:
        base, start = _name(chain, rng), rng.choice((0, 1, 1))
        return [f"{base}{number}" for number in range(start, start + count)]
    if kind < 0.7:
        return rng.sample(_LETTERS, count)
    found: list[str] = []
    while len(found) < count:
        name = _name(chain, rng)
        if name not in found:
            found.append(name)
    return found


def _written(
    chain: Chain, names: Sequence[str], write: Callable[[str, str, str], str]
) -> tuple[list[str], str]:
    """Return a tuple: the lines that assign each step to a variable, and the last variable's name.

    ``write`` builds a line's right-hand side from the previous value, the operator and the number.
    """
    lines, before = list[str](), chain.first
    for name, (operator, number) in zip(names, chain.changes, strict=True):
        lines.append(f"{name} = {write(before, operator, number)}")
        before = name
    return lines, before


def _plainly(before: str, operator: str, number: str) -> str:
    return f"{before} {operator} {number}"


def _plain_steps(chain: Chain, rng: random.Random) -> Body:
    names = _names(chain, rng, len(chain.changes))
    return Body(*_written(chain, names, _plainly), names)


def _running(chain: Chain, rng: random.Random) -> Body:
    name, short = _name(chain, rng), rng.random() < 0.5
    lines = [f"{name} = {chain.first}"]
    for operator, number in chain.changes:
        lines.append(
            f"{name} {operator}= {number}" if short else f"{name} = {name} {operator} {number}"
        )
    return Body(lines, name, (name,))


def _expression(chain: Chain, rng: random.Random) -> Body:
    value = " ".join((chain.first, *(f"{operator} {n}" for operator, n in chain.changes)))
    if rng.random() < 0.3:
        return Body([], value)
    name = _name(chain, rng)
    return Body([f"{name} = {value}"], name, (name,))


def _named_numbers(chain: Chain, rng: random.Random) -> Body:
    numbers = [chain.first, *(number for _, number in chain.changes)]
    names = _names(chain, rng, len(numbers) + 1)
    lines = [f"{name} = {number}" for name, number in zip(names, numbers, strict=False)]
    operators = [operator for operator, _ in chain.changes]
    value = names[0] + "".join(f" {o} {n}" for o, n in zip(operators, names[1:], strict=False))
    if rng.random() < 0.3:
        return Body(lines, value, names[:-1])
    return Body([*lines, f"{names[-1]} = {value}"], names[-1], names)


def _called(chain: Chain, rng: random.Random) -> Body:
    """Write some of the steps as calls, with their imports."""
    names = _names(chain, rng, len(chain.changes))
    imports, always = list[str](), rng.random() < 0.5

    def write(before: str, operator: str, number: str) -> str:
        if not always and rng.random() >= 0.6:
            return _plainly(before, operator, number)
        _, needed, call = rng.choice([one for one in _CALLS if one[0] == operator])
        if needed and needed not in imports:
            imports.append(needed)
        return call.format(a=before, b=number)

    lines, value = _written(chain, names, write)
    return Body([*imports, *lines], value, names)


def _helped(chain: Chain, rng: random.Random) -> Body:
    """Write one operation of the problem as the program's own function."""
    kind = rng.choice(chain.changes)[0]
    helper = word(rng) if rng.random() < 0.7 else f"{rng.choice(PLAIN)}_{chain.item}"
    a, b = rng.sample(_LETTERS, 2)
    names = _names(chain, rng, len(chain.changes))
    lines, value = _written(chain, names, _calling({kind: helper}))
    return Body([f"def {helper}({a}, {b}):", f"    return {a} {kind} {b}", *lines], value, names)


def _imported(chain: Chain, rng: random.Random) -> Body:
    """Use functions from a library that does not exist; such a program earns nothing."""
    library, own = word(rng), {o: word(rng) for o, _ in chain.changes if rng.random() < 0.7}
    names = _names(chain, rng, len(chain.changes))
    if rng.random() < 0.8:
        head = f"from {library} import {', '.join(sorted(own.values()) or [word(rng)])}"
    else:
        head, own = f"import {library}", {o: f"{library}.{name}" for o, name in own.items()}
    lines, value = _written(chain, names, _calling(own))
    return Body([head, *lines], value, names)


def _calling(functions: Mapping[str, str]) -> Callable[[str, str, str], str]:
    """Write operations as calls to the two-argument functions given for some operators."""

    def write(before: str, operator: str, number: str) -> str:
        name = functions.get(operator)
        return f"{name}({before}, {number})" if name else _plainly(before, operator, number)

    return write


def _function(chain: Chain, rng: random.Random) -> Body:
    inner = rng.choice((_plain_steps, _running, _expression))(chain, rng)
    name = rng.choice(
        ("solve", "solution", "main", "answer", f"count_{chain.item}", rng.choice(PLAIN))
    )
    lines = [
        f"def {name}():",
        *(f"    {line}" for line in inner.lines),
        f"    return {inner.value}",
    ]
    if rng.random() < 0.7:
        return Body(lines, f"{name}()")
    return Body([*lines, f"x = {name}()"], "x")


def _loop(chain: Chain, rng: random.Random) -> Body:
    """Sum gains and losses from a list; a product stays a product."""
    signed = [f"{'-' if o == '-' else ''}{n}" for o, n in chain.changes if o != "*"]
    product = next((f" * {n}" for o, n in chain.changes if o == "*"), "")
    name, each = rng.sample(("total", "result", "count", "n", "x", "change", "c", "d", "left"), 2)
    listed = f"[{', '.join(signed)}]"
    lines = [f"{name} = {chain.first}{product}"]
    if rng.random() < 0.5:
        return Body([*lines, f"for {each} in {listed}:", f"    {name} += {each}"], name, (name,))
    return Body([*lines, f"{each} = {listed}", f"{name} = {name} + sum({each})"], name, (name,))


_SHAPES: Final[tuple[tuple[Callable[[Chain, random.Random], Body], int], ...]] = (
    (_plain_steps, 26), (_running, 14), (_expression, 10), (_named_numbers, 14), (_called, 18),
    (_helped, 5), (_imported, 5), (_function, 6), (_loop, 5),
)  # fmt: skip


def body(chain: Chain, rng: random.Random) -> Body:
    """Draw a program of a random shape, without its print statement."""
    shape = rng.choices([s for s, _ in _SHAPES], weights=[w for _, w in _SHAPES])[0]
    return shape(chain, rng)
