"""What the arithmetic verifier rejects: honest completions of real models, and MATH on them.

``python -m grpo_guard.evals.studies.arithmetic --data FOLDER [-o FILE]``; see `solutions` for what
the folder holds. The figures of MATH and of words come from GSM8K's own solutions too.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, TypeAlias

from grpo_guard.completion import Completion
from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.evals.attacks.base import Poisoned
from grpo_guard.evals.attacks.math import MathAttack, equations
from grpo_guard.evals.studies.harness import option, per_second, rate, study
from grpo_guard.evals.studies.solutions import Solution, of_gsm8k, of_models
from grpo_guard.evals.tasks import gsm8k
from grpo_guard.verdict import Verdict

SEED: Final = 0
_WORDED: Final = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}
NOTATIONS: Final = (
    "latex", "latex units", "units", "verbs", "chain", "decimals", "unicode", "markdown",
    "boxed", "percent",
)  # fmt: skip
_NUMERALS: Final = tuple(
    re.findall(
        "[a-z]+",
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
        "fifteen sixteen seventeen eighteen nineteen twenty",
    )
)
_SPEED_CHARS: Final = 1200  # about 300 tokens
_SPEED_COMPLETIONS: Final = 1000


def judge(verifier: ArithmeticVerifier, text: str, reference: str | None) -> Verdict:
    """The verdict on one completion."""
    return verifier.verify([Completion("", text, reference=reference)])[0]


def honest(samples: Sequence[Solution], faults: frozenset[int]) -> dict[str, Any]:
    """Rejections under the default and under ``on_wrong="reject"``, each with its reason.

    Args:
        samples: Honest completions.
        faults: Lines whose rejection somebody read and found to be the parser's fault. All other
            rejected completions do hold a wrong equation, and are not "all right".
    """
    result: dict[str, Any] = {}
    for setting in ("answer_right", "reject"):
        verifier = ArithmeticVerifier(on_wrong=setting)
        rejected = []
        for sample in samples:
            verdict = judge(verifier, sample.text, sample.answer)
            if verdict.rejected:
                rejected.append((sample, verdict))
        wrong = {s.line for s, _ in rejected} - faults
        by_model = {}
        for model in (*sorted({s.model for s in samples}), "all"):
            mine = [s for s in samples if model in (s.model, "all")]
            lines = {s.line for s in mine}
            hit = [s for s, _ in rejected if s.line in lines]
            by_model[model] = {
                "rejected": rate(len(hit), len(mine)),
                "rejected_of_correct": rate(
                    sum(s.correct for s in hit), sum(s.correct for s in mine)
                ),
                "rejected_though_all_right": rate(
                    len(faults & {s.line for s in hit}), len(lines - wrong)
                ),
            }
        result[setting] = {
            "rates": by_model,
            "rejected": [
                {
                    "line": s.line,
                    "model": s.model,
                    "correct": s.correct,
                    "reading": "parser's fault" if s.line in faults else "wrong equation",
                    "findings": [f.message for f in v.findings],
                }
                for s, v in rejected
            ],
        }
    return result


Poison: TypeAlias = Callable[[str, random.Random], tuple[str, Poisoned] | None]
"""From a solution to (an honest text, the same text poisoned)."""


def by_attack(attack: MathAttack) -> Poison:
    """The attack on the solution itself."""

    def poison(text: str, rng: random.Random) -> tuple[str, Poisoned] | None:
        poisoned = attack.poison_text(text, rng)
        return None if poisoned is None else (text, poisoned)

    return poison


def in_notation(notation: str) -> Poison:
    """The solution's equations written anew in another notation, one of them wrong."""

    def poison(text: str, rng: random.Random) -> tuple[str, Poisoned] | None:
        found = [e for e in equations(text) if e.true == e.stated]
        if not found:
            return None
        which = rng.randrange(len(found))
        honest, poisoned, span = "", "", (0, 0)
        for at, equation in enumerate(found):
            if notation == "percent":
                whole = 20 * rng.randint(1, 30)
                share = rng.choice((5, 10, 20, 25, 50, 75))
                before, right, after = f"{share}% of {whole} = ", Fraction(share * whole, 100), ""
            else:
                right = equation.stated
                before, after = typeset(equation.left, notation)
            wrong = right + rng.choice((1, 2))
            start = len(poisoned) + len(before)
            stated = written(wrong if at == which else right, notation)
            if at == which:
                span = (start, start + len(stated))
            poisoned += f"{before}{stated}{after}\n"
            honest += f"{before}{written(right, notation)}{after}\n"
        ending = text[text.find("<answer>") :]
        return honest + ending, Poisoned(poisoned + ending, span)

    return poison


def typeset(left: str, notation: str) -> tuple[str, str]:
    """What stands before and behind the result of ``left`` in a notation."""
    tokens = re.findall(r"[0-9.]+|[-+*/]", left)
    numbers = [written(Fraction(number), notation) for number in tokens[::2]]
    signs = tokens[1::2]
    tex = {"+": "+", "-": "-", "*": r"\times", "/": r"\div"}
    shown = {"verbs": _WORDED, "unicode": {"+": "+", "-": "−", "*": "×", "/": "÷"}}.get(
        notation, tex if notation in ("latex", "latex units", "boxed") else {}
    )
    unit = {"units": " apples", "latex units": r" \text{ apples}"}.get(notation, "")
    if notation == "markdown":
        numbers = [f"**{number}**" for number in numbers]
    body = numbers[0] + unit
    for sign, number in zip(signs, numbers[1:], strict=True):
        body += f" {shown.get(sign, sign)} {number}{unit}"
    if notation == "latex" and signs == ["/"]:
        body = rf"\frac{{{numbers[0]}}}{{{numbers[1]}}}"
    before, after = {
        "latex": (rf"\[ {body} = ", r" \]"),
        "boxed": (rf"We get ${body} = \boxed{{", "}$."),
        "verbs": (f"As {body} is ", ", we go on."),
        "chain": (f"Total = {body} = ", " in all"),
        "decimals": (f"That costs {body} = $", "."),
        "markdown": (f"- {body} = **", "**"),
    }.get(notation, (f"So {body} = ", unit))
    return before, after


def written(value: Fraction, notation: str) -> str:
    """A number as the notation writes it."""
    places = 2 if notation == "decimals" else 0 if value.denominator == 1 else 4
    return f"{float(value):,.{places}f}" if value < 10**9 else str(value)


def worded(rng: random.Random) -> tuple[str, str]:
    """A true and a wrong statement in words."""
    a, b = rng.randint(1, 9), rng.randint(1, 9)
    wrong = a + b + rng.choice((1, 2, -1))
    form = rng.choice(
        (
            "{} plus {} is {}.",
            "{} cows and {} pigs make {} animals.",
            "{} plus {} equals {}.",
            "If there are {} apples and {} pears, that makes a total of {} fruits.",
            "{} and {} gives {}.",
        )
    )
    x, y = _NUMERALS[a], _NUMERALS[b]
    return form.format(x, y, _NUMERALS[a + b]), form.format(x, y, _NUMERALS[wrong])


def attacked(
    texts: Iterable[tuple[str, str]],
    poison: Poison,
    verifier: ArithmeticVerifier,
    *,
    with_reference: bool = True,
) -> dict[str, Any]:
    """How many poisoned texts are rejected, and in how many of those the span is right.

    A span is right if it lies within the poison's.
    """
    rng = random.Random(SEED)
    total = rejected = placed = control = 0
    missed: list[str] = []
    for text, reference in texts:
        pair = poison(text, rng)
        if pair is None:
            continue
        original, poisoned = pair
        total += 1
        verdict = judge(verifier, poisoned.text, reference if with_reference else None)
        start, end = poisoned.span
        spans = [f.char_span for f in verdict.findings if f.char_span]
        hit = any(start <= a and b <= end for a, b in spans)
        rejected += verdict.rejected
        placed += verdict.rejected and hit
        control += judge(verifier, original, reference).rejected
        if not verdict.rejected and len(missed) < 40:
            said = "found, " if hit else ""
            missed.append(f"{said}{poisoned.text[max(0, start - 60) : end + 20]!r}")
    return {
        "rejected": rate(rejected, total),
        "span_right": rate(placed, rejected),
        "rejected_before_the_attack": rate(control, total),
        "missed": missed,
    }


def solutions(folder: Path) -> list[tuple[str, str]]:
    """GSM8K's own solutions in the paper's format, with their answers."""
    problems = [gsm8k.problem(question) for question in gsm8k.load(folder / "train.jsonl")]
    return [(p.solution, p.answer) for p in problems]


def math(samples: Sequence[Solution], folder: Path) -> dict[str, Any]:
    """MATH on correct completions, on GSM8K's solutions, and in other notations."""
    attack, default = MathAttack(), ArithmeticVerifier()
    train, notes = solutions(folder), of_gsm8k(folder, form=str)
    sets = {
        "model_solutions, correct": [(s.text, s.answer) for s in samples if s.correct],
        "gsm8k train, paper's format": train,
        "gsm8k train, calculator notes": [(f"{s.text}\n#### {s.answer}", s.answer) for s in notes],
    }
    result: dict[str, Any] = {}
    for name, texts in sets.items():
        result[name] = attacked(texts, by_attack(attack), default)
        result[f"{name}, no reference"] = attacked(
            texts, by_attack(attack), default, with_reference=False
        )
    paper = MathAttack(target=("2+2", "2*2"))
    result["paper's target 2+2, 2x2, gsm8k train"] = attacked(train, by_attack(paper), default)
    for notation in NOTATIONS:
        result[f"notation: {notation}"] = attacked(train[:2000], in_notation(notation), default)
    return result


def textual(samples: Sequence[Solution], folder: Path) -> dict[str, Any]:
    """Arithmetic in words: what is found, and how often honest texts are suspected of it."""
    judging = ArithmeticVerifier(textual="judge", on_wrong="reject")
    texts = [s.text for s in samples] + [text for text, _ in solutions(folder)]
    suspected, found = 0, []
    for text in texts:
        mine = [f for f in judge(judging, text, None).findings if f.kind == "wrong_textual"]
        suspected += bool(mine)
        found += [f.message for f in mine]
    rng = random.Random(SEED)
    pairs = [worded(rng) for _ in range(1000)]
    return {
        "honest texts with a finding": rate(suspected, len(texts)),
        "honest findings": found[:40],
        "true statements in words, rejected": rate(
            sum(judge(judging, true, None).rejected for true, _ in pairs), len(pairs)
        ),
        "wrong statements in words, rejected": rate(
            sum(judge(judging, wrong, None).rejected for _, wrong in pairs), len(pairs)
        ),
    }


def speed(samples: Sequence[Solution], folder: Path) -> dict[str, Any]:
    """Completions of about 300 tokens per second of CPU time on one core."""
    plain = [text for text, _ in solutions(folder)]
    prose = ". This follows from what was said above about the question.\n" * 3
    sources = {
        "model_solutions (calculator notes)": [s.text for s in samples],
        "gsm8k train (plain)": plain,
        "prose around the same equations": [text.replace("\n", prose) for text in plain],
    }
    result = {}
    for name, texts in sources.items():
        joined = "\n".join(texts)[: _SPEED_CHARS * _SPEED_COMPLETIONS]
        batch = [
            Completion("", joined[at : at + _SPEED_CHARS], reference="0")
            for at in range(0, len(joined), _SPEED_CHARS)
        ]
        signs = sum(len(list(equations(c.text))) for c in batch)
        found = per_second(ArithmeticVerifier, batch)
        result[name] = {**found, "equations_each": round(signs / len(batch), 1)}
    return result


def measure(data: Path, faults: str) -> dict[str, Any]:
    """All figures."""
    samples = of_models(data)
    return {
        "honest": honest(samples, frozenset(int(line) for line in faults.split(",") if line)),
        "math": math(samples, data),
        "textual": textual(samples, data),
        "speed": speed(samples, data),
    }


if __name__ == "__main__":
    study(
        "arithmetic",
        measure,
        option("--data", type=Path, required=True, metavar="FOLDER"),
        option("--faults", default="", help="lines, a,b,c, rejected by the parser's own fault"),
    )
