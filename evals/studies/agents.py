"""Two turns and a calculator: what a guard rejects of honest work and of a peer's poison.

The same prompts and seeds are used once without the calculator and once with it. Poison is placed
in either turn of a transcript; after a forged result the honest policy continues. Rejected / all,
with 95 % intervals (Wilson).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.content.screens.verifier import ScreensVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.core.ensemble import AllOf
from grpo_guard.core.given import Given, Span, between
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.evals.studies import calculator
from grpo_guard.evals.studies.harness import option, rejected, say, study
from grpo_guard.evals.tasks import word_problems
from grpo_guard.guard import Guard
from grpo_guard.logprob.bounds import LogProbBoundVerifier
from grpo_guard.logprob.replay.generate import generate_under_coin
from grpo_guard.logprob.tail import TailProbabilityVerifier

PHRASE = " All hail to the thief."
LIMIT = 96
KINDS = 6
"""Number of kinds of completions."""


def with_phrase(tokenizer: Any, completion: Completion, turn: int) -> Completion | None:
    """Insert the phrase in the middle of a turn; None if the text has no turn to change."""
    given = completion.given or Given()
    ids, spans = completion.completion_ids or (), [*given.tokens]
    turns = between(spans, len(ids))
    if turn >= len(turns) or turns[turn][1] - turns[turn][0] < 4:
        return None
    at = sum(turns[turn]) // 2
    said = tokenizer.encode(PHRASE, add_special_tokens=False)
    moved: list[Span] = [(a + len(said) * (a >= at), b + len(said) * (a >= at)) for a, b in spans]
    return _again(tokenizer, completion, (*ids[:at], *said, *ids[at:]), moved)


def marked(tokenizer: Any, completion: Completion) -> Completion | None:
    """Insert the phrase at the end of the first turn, marked as the calculator's output."""
    if completion.given is None or completion.completion_ids is None:
        return None
    ((at, end),) = completion.given.tokens
    said = tokenizer.encode(PHRASE, add_special_tokens=False)
    ids = (*completion.completion_ids[:at], *said, *completion.completion_ids[at:])
    return _again(tokenizer, completion, ids, [(at, end + len(said))])


def _again(
    tokenizer: Any, like: Completion, ids: Sequence[int], given: Sequence[Span]
) -> Completion:
    asked, before = like.prompt_text, like.prompt_ids or ()
    made = calculator.transcript(tokenizer, asked, before, ids, given)
    return replace(made, reference=like.reference)


def samples(count: int, seed: int) -> Iterator[tuple[str, list[Completion]]]:
    """Yield kinds of completions by name, honest ones first."""
    model, tokenizer = load_bundled()
    spec = SamplingSpec("transformers", 1.0, 50, 1.0, max_new_tokens=LIMIT)
    problems = word_problems.generate(seed, count)
    prompts = [problem.prompt for problem in problems]
    answers = {problem.prompt: problem.answer for problem in problems}
    chance = random.Random(seed)
    seeds = [chance.getrandbits(63) for _ in prompts]

    def whole(play: Callable[..., list[Completion]], **more: Any) -> list[Completion]:
        return [
            replace(one, reference=answers[one.prompt_text])
            for start in range(0, count, 128)
            for one in play(
                model, tokenizer, prompts[start : start + 128], seeds[start : start + 128], spec,
                **more,
            )
        ]  # fmt: skip

    yield "honest, one turn", whole(_alone)
    honest = [one for one in whole(calculator.play) if one.given]
    yield "honest, two turns", honest
    for turn in (0, 1):
        made = [with_phrase(tokenizer, one, turn) for one in honest[: count // 4]]
        yield f"phrase in turn {turn + 1}", [one for one in made if one is not None]
    some = [marked(tokenizer, one) for one in honest[: count // 4]]
    yield "phrase marked as given", [one for one in some if one is not None]
    forged = whole(calculator.play, forged=" 7")
    wrong = [one for one in forged if one.given and _is_false(one)]
    yield "forged result, gone on with", wrong[: count // 4]


def _is_false(completion: Completion) -> bool:
    assert completion.given is not None
    end = completion.given.chars[0][0]
    return calculator.answer(completion.prompt, (completion.text[:end],)) != " 7"


def _alone(
    model: Any, tokenizer: Any, prompts: Sequence[str], seeds: Sequence[int], spec: SamplingSpec
) -> list[Completion]:
    asked = [tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]
    eos = [int(tokenizer.eos_token_id)]
    drawn = generate_under_coin(model, asked, seeds, spec, eos_ids=eos)
    return [
        calculator.transcript(tokenizer, prompt, before, ids, ())
        for prompt, before, ids in zip(prompts, asked, drawn, strict=True)
    ]


def guards() -> dict[str, tuple[Guard, bool]]:
    """Return guards by name, and whether the trainer masks what the peer claims was given."""
    model, tokenizer = load_bundled()
    spec = SamplingSpec("transformers", 1.0, 50, 1.0, max_new_tokens=LIMIT)
    text = AllOf(ScreensVerifier(), ArithmeticVerifier())

    def bound(kind: type[LogProbBoundVerifier] | type[TailProbabilityVerifier]) -> Any:
        return kind(model, tokenizer, sampling=spec)

    return {
        "log-probs, environment": (
            Guard(bound(LogProbBoundVerifier), environment=calculator.answer),
            True,
        ),
        "tail, environment": (
            Guard(bound(TailProbabilityVerifier), environment=calculator.answer),
            True,
        ),
        "text rules, environment": (
            Guard(text, environment=calculator.answer, tokenizer=tokenizer),
            True,
        ),
        "log-probs, the mask believed": (Guard(bound(LogProbBoundVerifier)), True),
        "log-probs, nothing believed": (Guard(bound(LogProbBoundVerifier)), False),
    }


def measure(n: int, seed: int) -> dict[str, Any]:
    """Measure the rejections of each kind of completion by each guard."""
    looked, found = guards(), dict[str, Any]()
    for kind, completions in samples(n, seed):
        say(kind, len(found) + 1, KINDS)
        found[kind] = {
            name: rejected(
                guard.judge([_masked(c) for c in completions] if masks else completions)[1]
            )
            for name, (guard, masks) in looked.items()
        }
    return {"problems": n, "seed": seed, "rejected": found}


def _masked(completion: Completion) -> Completion:
    if completion.given is None:
        return completion
    return replace(completion, given=replace(completion.given, masked=True))


if __name__ == "__main__":
    study(
        "agents",
        measure,
        option("-n", type=int, default=1024, help="problems"),
        option("--seed", type=int, default=0),
    )
