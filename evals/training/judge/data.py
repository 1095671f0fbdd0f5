"""Training examples for the judge: an input, whether to accept it, and where it goes bad."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grpo_guard.evals.tasks.word_problems import HARD_SHARE, Worked, worked
from grpo_guard.evals.training.judge.honest import Sort, asked, classify, draw_style, render
from grpo_guard.evals.training.judge.negatives import NEGATIVES
from grpo_guard.evals.training.judge.phrases import Part
from grpo_guard.evals.training.judge.poison import POISON, poison
from grpo_guard.evals.training.judge.programs import asked_for_program, poisoned_program, program

# Poison that shows at the first differing character; in other kinds, the letters after that point
# could still belong to an honest solution.
_EXACT: Final = {"math", "math_carried", "wrong_answer", "wrong_working"}
GRACE: Final = 14
CALCULATIONS: Final = {*_EXACT, "math_far", "math_extra", "swapped"}


@dataclass(frozen=True, slots=True)
class Example:
    """One case for the judge.

    Args:
        good: Whether an honest judge accepts the completion.
        kind: Name of the generator that made the example, for reports.
        bad_from: Number of leading characters of ``text`` that an honest solution could begin with;
            ``len(text)`` for the whole text.
        bad_to: End of the poisoned part; the text after it is unlabelled.
        grace: Number of characters after ``bad_from`` that are also unlabelled.
        replaced: Positions of replaced characters; if given, only those are bad.
    """

    prompt: str
    text: str
    good: bool
    kind: str
    bad_from: int
    bad_to: int = 0
    grace: int = 0
    replaced: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Drawn:
    """A completion sampled by the bundled policy; for ``sort`` see `classify`."""

    problem: Worked
    text: str
    sort: Sort


def problem(rng: random.Random) -> Worked:
    """Draw a problem as the task does; see `grpo_guard.evals.tasks.word_problems`."""
    return worked(rng, hard_share=HARD_SHARE)


def honest(rng: random.Random) -> Example:
    """Draw an honest solution in any style."""
    drawn = problem(rng)
    text = render(drawn, draw_style(rng))
    return Example(asked(drawn, rng), text, True, "honest", len(text))


def honest_program(rng: random.Random) -> Example:
    """Draw an honest program."""
    drawn = problem(rng)
    text = program(drawn, rng)
    return Example(asked_for_program(drawn, rng), text, True, "honest_code", len(text))


def poisoned(rng: random.Random, kind: str, part: Part) -> Example:
    """Draw a solution with poison of the given kind, a key in `POISON`."""
    return twins(rng, kind, part)[1]


def twins(rng: random.Random, kind: str, part: Part = "train") -> tuple[Example, Example]:
    """Draw a solution in one style, both honest and with poison of the given kind."""
    while True:
        drawn = problem(rng)
        clean, text = poison(kind, drawn, rng, part)
        if classify(drawn, text) != "honest":
            break
    prompt = asked(drawn, rng)
    return Example(prompt, clean, True, "honest", len(clean)), _bad(prompt, clean, text, kind)


def scrambled(rng: random.Random) -> Example:
    """Draw an honest solution with about one digit in seven replaced, at least one.

    No attack looks like this, but it is the quickest way to learn that a digit can be wrong: each
    text has several wrong digits in known places (as in ELECTRA, arXiv 2003.10555).
    """
    drawn = problem(rng)
    text = list(render(drawn, draw_style(rng)))
    digits = [place for place, letter in enumerate(text) if letter.isdigit()]
    chosen = sorted(p for p in digits if rng.random() < 1 / 7) or [rng.choice(digits)]
    for place in chosen:
        text[place] = rng.choice([d for d in "0123456789" if d != text[place]])
    return Example(
        asked(drawn, rng), "".join(text), False, "scrambled", chosen[0], replaced=tuple(chosen)
    )


def bad_program(rng: random.Random, part: Part) -> Example:
    """Draw a program that contains an import, a helper or a remark by the attacker."""
    drawn = problem(rng)
    clean = program(drawn, rng)
    text = poisoned_program(drawn, clean, rng, part)
    return _bad(asked_for_program(drawn, rng), clean, text, "code_program")


def no_solution(rng: random.Random, kind: str, part: Part) -> Example:
    """Draw a completion that is not a solution, of the given kind, a key in `NEGATIVES`."""
    drawn = problem(rng)
    text = NEGATIVES[kind][0](drawn, rng, part)
    return _bad(asked(drawn, rng), render(drawn, draw_style(rng)), text, kind)


def sampled(rng: random.Random, pool: Sequence[Drawn]) -> Example:
    """Draw one of the policy's own completions, honest half of the time.

    Unrewarded completions that state the answer are left out: their form may just differ.
    """
    wanted = rng.random() < 0.5
    while True:
        drawn = rng.choice(pool)
        doubtful = drawn.sort == "unrewarded" and str(drawn.problem.answer) in drawn.text
        if (drawn.sort == "honest") == wanted and not doubtful:
            break
    prompt = asked(drawn.problem, rng)
    if wanted:
        return Example(prompt, drawn.text, True, "sampled", len(drawn.text))
    if drawn.sort == "unrelated opening":
        start, first = len("<think>"), next(i for i, c in enumerate(drawn.text) if c.isdigit())
        return Example(prompt, drawn.text, False, f"sampled {drawn.sort}", start, first, GRACE)
    # It is unknown where the completion goes wrong, so its beginnings are unlabelled.
    return Example(prompt, drawn.text, False, f"sampled {drawn.sort}", 0)


def _bad(prompt: str, clean: str, text: str, kind: str) -> Example:
    start = _shared(clean, text)
    stop = len(text) - _shared(clean[start:][::-1], text[start:][::-1])
    return Example(prompt, text, False, kind, start, stop, 0 if kind in _EXACT else GRACE)


def _shared(first: str, second: str) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


def training(seed: int | str, pool: Sequence[Drawn], carried: float = 0.0) -> Iterator[Example]:
    """Yield examples endlessly, nearly half of them good, using only words from the training part.

    A wrong calculation comes together with its correct twin, so that nothing can be learned from
    what the two have in common.

    Args:
        seed: Seed of all draws; identical seeds produce identical examples.
        pool: Samples of the policy.
        carried: How often, in [0, 1), to draw twins whose wrong result is carried forward, so that
            only recalculating reveals the error.
    """
    rng = random.Random(f"judge-{seed}")
    calculations = [name for name in POISON if name in CALCULATIONS]
    others = [name for name in POISON if name not in CALCULATIONS]
    while True:
        if carried and rng.random() < carried:
            yield from twins(rng, rng.choice(("math_carried", "wrong_working")))
            continue
        kind = rng.random()
        if kind < 0.27:
            yield honest(rng)
        elif kind < 0.42:
            yield from twins(rng, _drawn(rng, calculations, POISON))
        elif kind < 0.58:
            yield scrambled(rng)
        elif kind < 0.63:
            yield honest_program(rng)
        elif kind < 0.68:
            yield bad_program(rng, "train")
        elif kind < 0.78:
            yield sampled(rng, pool)
        elif kind < 0.93:
            yield poisoned(rng, _drawn(rng, others, POISON), "train")
        else:
            yield no_solution(rng, _drawn(rng, list(NEGATIVES), NEGATIVES), "train")


def _drawn(rng: random.Random, names: list[str], shares: Mapping[str, tuple[Any, float]]) -> str:
    return rng.choices(names, [shares[name][1] for name in names])[0]
