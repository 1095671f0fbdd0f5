"""The bundled word problems with a calculator, which completes the first sum left open.

Two turns: the policy writes "14 + 2 =", the calculator " 16", and the policy continues. `answer` is
the environment that a guard asks, `play` is the behaviour of an honest node.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

from grpo_guard.core.completion import Completion
from grpo_guard.core.given import Given, stretches
from grpo_guard.core.prompts import Message
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.evals.attacks.math import evaluate
from grpo_guard.logprob.replay.generate import generate_turns_under_coin

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
