"""The final answer of a completion, read generously, since a reward may read it in many ways."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from grpo_guard.content.arithmetic.characters import fold
from grpo_guard.content.arithmetic.expression import UndefinedError, evaluate
from grpo_guard.content.arithmetic.notation import (
    FRACTION,
    NUMBER,
    OPEN,
    SIGN,
    VULGAR,
    Rational,
    scan,
)
from grpo_guard.content.arithmetic.parser import Parser

_REGION_CHARS: Final = 200
_MARKS: Final = (
    "<answer>",
    "####",
    "\\boxed{",
    "\nA:",
    "nswer:",
    "nswer is",
    "nswer**:",
    "nswer =",
)
_NUMBER: Final = re.compile(r"[0-9][0-9.,]*+")
_STARTS: Final = frozenset({NUMBER, OPEN, FRACTION, VULGAR})


def answers(text: str, reference: str) -> bool:
    """Whether the completion's final answer is the reference, as far as any usual reward can tell.

    Looks behind the last of each usual mark (``<answer>``, ``####``, ``\\boxed{``, "answer is"),
    and at the last number. Generous on purpose: an answer that the reward finds and this does not
    would let an attack through.

    Args:
        text: The completion.
        reference: The right answer; of a worked solution, what stands behind its last mark.
    """
    wanted = _wanted(reference)
    regions = list(_regions(text))
    if wanted is None:
        words = _plain(_behind_mark(reference))
        return bool(words) and any(words in _plain(region) for region in (*regions, text[-200:]))
    return any(wanted in values(region) for region in regions) or wanted == _last_number(text)


def values(text: str) -> set[Rational]:
    """Values of all numbers and expressions of a short text."""
    folded = fold(text[: 2 * _REGION_CHARS])
    tokens = scan(folded, 0, len(folded))
    parser = Parser(tokens)
    found: set[Rational] = set()
    at = 0
    while at < len(tokens):
        leads = tokens[at].kind == SIGN and tokens[at].text == "-"
        if tokens[at].kind not in _STARTS and not leads:
            at += 1
            continue
        run, stop = parser.run(at)
        at = max(stop, at + 1)
        if run is None:
            continue
        found |= {operand.value for operand in run.numbers()}
        try:
            found.add(evaluate(run))
        except UndefinedError:
            continue
    return found


def _wanted(reference: str) -> Rational | None:
    """The reference as a number; None if it is something else."""
    region = fold(_behind_mark(reference))
    tokens = scan(region, 0, len(region))
    for at, token in enumerate(tokens[:8]):
        if token.kind in _STARTS or (token.kind == SIGN and token.text in "+-"):
            run, _ = Parser(tokens).run(at)
            try:
                return None if run is None or run.doubt else evaluate(run)
            except UndefinedError:
                return None
    return None


def _behind_mark(reference: str) -> str:
    regions = list(_regions(reference))
    return regions[0] if regions else reference[-_REGION_CHARS:]


def _regions(text: str) -> Iterator[str]:
    for mark in _MARKS:
        at = text.rfind(mark)
        if at >= 0:
            start = at + len(mark)
            region = text[start : start + _REGION_CHARS]
            end = region.find("</answer>") if mark == "<answer>" else region.strip().find("\n")
            yield region if end < 0 else region.strip()[: end + 1]


def _last_number(text: str) -> Rational | None:
    found = _NUMBER.findall(fold(text[-_REGION_CHARS:]))
    if not found:
        return None
    read = values(found[-1].rstrip(".,"))
    return next(iter(read)) if len(read) == 1 else None


def _plain(text: str) -> str:
    return "".join(text.lower().split()).strip("$.*`{}\\()")
