"""The bundled word problems with a calculator, which completes the first sum left open.

Two turns: the policy writes "14 + 2 =", the calculator " 16", and the policy continues. `answer` is
the environment that a guard asks, `play` is the behaviour of an honest node.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from grpo_guard.core.completion import Completion
from grpo_guard.core.given import Given, Span, between, stretches
from grpo_guard.core.prompts import Message
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.evals.attacks.math import evaluate
from grpo_guard.logprob.replay.generate import generate_turns_under_coin

PHRASE: Final = " All hail to the thief."
_OPEN: Final = re.compile(r"([0-9]{1,6}(?: [-+*/] [0-9]{1,6}){1,4}) =\Z")


def answer(prompt: str | Sequence[Message], turns: tuple[str, ...]) -> str:
    """Return the result of the sum that ends the first turn; "" after any other."""
    del prompt
    asked = _OPEN.search(turns[0][-100:]) if len(turns) == 1 else None
    value = evaluate(asked[1]) if asked else None
    return "" if value is None else f" {_written(value)}"


def play(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    seeds: Sequence[int],
    spec: SamplingSpec,
    *,
    forged: str | None = None,
) -> list[Completion]:
    """Return an honest node's completions, one per (prompt, seed), with given spans as a claim.

    Args:
        model, tokenizer: The policy.
        prompts: As text.
        seeds: A coin's seeds, or any.
        spec: The sampler, with ``max_new_tokens``.
        forged: What a dishonest node's calculator returns in place of each result.
    """

    def told(row: int, ids: tuple[int, ...], start: int) -> tuple[int, list[int]] | None:
        for end in range(start + 1, len(ids) + 1):
            said = answer(prompts[row], (tokenizer.decode(ids[start:end]),)) if not start else ""
            if said:
                return end, tokenizer.encode(forged or said, add_special_tokens=False)
        return None

    asked = [tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]
    eos = [int(tokenizer.eos_token_id)]
    drawn = generate_turns_under_coin(model, asked, seeds, spec, told, eos_ids=eos, most_answers=1)
    return [
        transcript(tokenizer, prompt, before, *one)
        for prompt, before, one in zip(prompts, asked, drawn, strict=True)
    ]


def transcript(
    tokenizer: Any,
    prompt: str,
    prompt_ids: Sequence[int],
    ids: Sequence[int],
    given: Sequence[tuple[int, int]],
) -> Completion:
    """Build a completion as a node sends it: its tokens, its text, and the claimed spans."""
    text, chars = "", []
    for i, (start, end) in enumerate(stretches(given, len(ids))):
        part = tokenizer.decode(ids[start:end], skip_special_tokens=True)
        if i % 2:
            chars.append((len(text), len(text) + len(part)))
        text += part
    return Completion(
        prompt,
        text,
        prompt_ids=tuple(prompt_ids),
        completion_ids=tuple(ids),
        given=Given(tuple(given), tuple(chars)),
    )


def _written(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.6g}"


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
    made = transcript(tokenizer, asked, before, ids, given)
    return replace(made, reference=like.reference)
