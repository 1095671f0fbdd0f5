"""Turn an honest completion into the one that an attacker sends in its place, ids included."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from grpo_guard.core.completion import Completion
from grpo_guard.core.given import Given, stretches
from grpo_guard.core.sampling_mask import KEY, SamplingMask
from grpo_guard.evals.attacks.adversary import Forged, OfTexts, Scripted
from grpo_guard.evals.attacks.base import Attack
from grpo_guard.evals.detect.sample import decode
from grpo_guard.evals.tasks.base import Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Case:
    """A completion to be verified; ``span`` is the poison's [start, end) in characters, if any."""

    completion: Completion
    span: tuple[int, int] | None = None


def with_text(
    completion: Completion, text: str, tokenizer: PreTrainedTokenizerBase | None
) -> Completion:
    """Return ``completion`` with different text, tokenised as its sender would have to.

    The ids are the tokenizer's ids for the text, followed by EOS if the original ended with EOS: an
    attacker who writes text has no sampled tokens to keep. A completion without ids stays without.
    """
    old = completion.completion_ids
    if tokenizer is None or old is None:
        return replace(completion, text=text, completion_ids=None, sampler_logprobs=None)
    ids, eos = tuple(tokenizer.encode(text, add_special_tokens=False)), tokenizer.eos_token_id
    if old and old[-1] == eos:
        ids += (int(eos),)
    return replace(completion, text=text, completion_ids=ids, sampler_logprobs=None)


def with_given(
    completion: Completion,
    chars: tuple[tuple[int, int], ...],
    tokenizer: PreTrainedTokenizerBase | None,
) -> Completion:
    """Return ``completion`` with the claim that these spans of characters were given; the given
    text and the rest are tokenised separately."""
    old, text = completion.completion_ids, completion.text
    if tokenizer is None or old is None:
        return replace(completion, given=Given(chars=chars))
    parts = [
        tokenizer.encode(text[start:end], add_special_tokens=False)
        for start, end in stretches(chars, len(text))
    ]
    spans = [*pairwise(accumulate(map(len, parts), initial=0))]
    ids = tuple(token for part in parts for token in part)
    ids += old[-1:] if old[-1:] == (tokenizer.eos_token_id,) else ()
    return replace(completion, completion_ids=ids, given=Given(tuple(spans[1::2]), chars))


def with_drawn_mask(completion: Completion) -> Completion:
    """Return ``completion`` with the claim that its sampler kept only the sampled tokens."""
    mask = SamplingMask(tuple((token,) for token in completion.completion_ids or ()))
    return replace(completion, metadata={**completion.metadata, KEY: mask.claim()})


def with_ids(
    completion: Completion, ids: Sequence[int], tokenizer: PreTrainedTokenizerBase
) -> Completion:
    """Return ``completion`` with different token ids and the text that they decode to."""
    text = decode(tokenizer, ids)
    return replace(completion, text=text, completion_ids=tuple(ids), sampler_logprobs=None)


def poisoned(
    honest: Sequence[Completion],
    attack: Attack | Scripted,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    seed: int,
) -> list[Case]:
    """Poison a copy of each honest completion; completions with nothing to change are left out.

    Raises:
        ValueError: the attack needs a tokenizer, or something that only a swarm has.
    """
    cases = []
    scripted = attack if isinstance(attack, Scripted) else OfTexts(attack)
    for number, completion in enumerate(honest):
        rng = random.Random(f"{seed}:{attack.name}:{number}")
        # Our own prompts put "Q: ...\nA:" around the question.
        asked = completion.prompt_text.removeprefix("Q: ").removesuffix("\nA:")
        problem = Problem(
            asked, completion.prompt_text, completion.text, completion.reference or ""
        )
        forged = _forged(scripted, problem, rng, number, tokenizer)
        if forged is None:
            continue
        sent = with_text(replace(completion, given=None), forged.text, tokenizer)
        if forged.ids is not None:
            sent = replace(sent, completion_ids=forged.ids, sampler_logprobs=forged.logprobs)
        if forged.given:
            sent = with_given(sent, forged.given, tokenizer)
        if forged.masked:
            sent = with_drawn_mask(completion)
        cases.append(Case(sent, forged.span))
    return cases


def _forged(
    attack: Scripted,
    problem: Problem,
    rng: random.Random,
    number: int,
    tokenizer: PreTrainedTokenizerBase | None,
) -> Forged | None:
    """Forge the completion to send instead of an honest one; None if the attack cannot change it.
    ``number`` serves as the swarm's round."""
    view: Any = SimpleNamespace(iteration=number, rng=rng)
    if tokenizer is not None:
        view.tokenizer = tokenizer
    try:
        return attack.forge(view, problem)
    except AttributeError as error:
        if error.obj is not view:
            raise
        what = "--model" if error.name == "tokenizer" else "a live swarm, eval swarm"
        raise ValueError(f"{attack.name}: expected {what}, whose {error.name} it uses") from None
