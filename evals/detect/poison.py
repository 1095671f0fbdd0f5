"""From an honest completion to what an attacker sends in its place, ids and all."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from grpo_guard.completion import Completion
from grpo_guard.evals.attacks.base import Poisoned
from grpo_guard.evals.attacks.math import NoTargetError
from grpo_guard.evals.tasks.base import Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Poisoner(Protocol):
    """The part of an attack that detection needs."""

    @property
    def name(self) -> str:
        """Short name, as on the command line."""
        ...

    def poison(self, problem: Problem, rng: random.Random) -> Poisoned:
        """See `grpo_guard.evals.attacks.base.Attack`."""
        ...


@dataclass(frozen=True, slots=True)
class Case:
    """A completion to be verified; ``span`` is the poison's [start, end) in characters, if any."""

    completion: Completion
    span: tuple[int, int] | None = None


def with_text(completion: Completion, text: str, tokenizer: PreTrainedTokenizerBase) -> Completion:
    """Return ``completion`` with another text, tokenised as its sender would have to.

    The ids are those of the tokenizer, with EOS behind them if the original ended with one: an
    attacker who writes text has no sampled tokens to keep.
    """
    ids = tuple(tokenizer.encode(text, add_special_tokens=False))
    old, eos = completion.completion_ids or (), tokenizer.eos_token_id
    if old and old[-1] == eos:
        ids += (int(eos),)
    return replace(completion, text=text, completion_ids=ids, sampler_logprobs=None)


def with_ids(
    completion: Completion, ids: Sequence[int], tokenizer: PreTrainedTokenizerBase
) -> Completion:
    """Return ``completion`` with other token ids and the text that they decode to."""
    text = tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return replace(completion, text=str(text), completion_ids=tuple(ids), sampler_logprobs=None)


def poisoned(
    honest: Sequence[Completion],
    attack: Poisoner,
    tokenizer: PreTrainedTokenizerBase,
    *,
    seed: int,
) -> list[Case]:
    """Poison a copy of each honest completion; those with nothing to change are left out."""
    cases = []
    for number, completion in enumerate(honest):
        rng = random.Random(f"{seed}:{attack.name}:{number}")
        problem = Problem("", "", completion.text, completion.reference or "")
        try:
            poison = attack.poison(problem, rng)
        except NoTargetError:
            continue
        cases.append(Case(with_text(completion, poison.text, tokenizer), poison.span))
    return cases
