"""Forgeries of an honest completion's tokens."""

import random
import re
from collections.abc import Sequence
from typing import Any

import torch

from grpo_guard.evals.attacks.math import equations

_DIGIT = re.compile(r"[0-9]")


def flipped_digit(
    ids: Sequence[int], tokenizer: Any, rng: random.Random
) -> tuple[tuple[int, ...], int] | None:
    """Change one digit of an equation's result; return the ids and the changed token's index.

    All other tokens are kept. Returns None if no result can be changed in a single token.
    """
    ends = _ends(ids, tokenizer)
    text = tokenizer.decode(list(ids))
    vocabulary = tokenizer.get_vocab()
    places = []
    for equation in equations(text):
        start, stop = equation.span
        inside = [t for t in range(len(ids)) if start < ends[t] and ends[t] <= stop]
        places += [t for t in inside if _DIGIT.search(tokenizer.convert_ids_to_tokens(ids[t]))]
    rng.shuffle(places)
    for t in places:
        piece = tokenizer.convert_ids_to_tokens(ids[t])
        at = rng.choice([m.start() for m in _DIGIT.finditer(piece)])
        for digit in rng.sample("0123456789", 10):
            other = vocabulary.get(piece[:at] + digit + piece[at + 1 :])
            if other is not None and other != ids[t]:
                return (*ids[:t], other, *ids[t + 1 :]), t
    return None


def swapped_token(
    prompt_ids: Sequence[int], ids: Sequence[int], model: Any, rng: random.Random, *, among: int
) -> tuple[int, ...]:
    """Replace one token, never the last, with another of the ``among`` most likely tokens."""
    t = rng.randrange(len(ids) - 1)
    prefix = torch.tensor([[*prompt_ids, *ids[:t]]])
    with torch.inference_mode():
        logits = model(input_ids=prefix, use_cache=False, logits_to_keep=1).logits[0, -1]
    others = [i for i in logits.topk(among).indices.tolist() if i != ids[t]]
    return (*ids[:t], rng.choice(others), *ids[t + 1 :])


def _ends(ids: Sequence[int], tokenizer: Any) -> list[int]:
    """Return the number of characters in the text after each token."""
    return [len(tokenizer.decode(list(ids[: t + 1]))) for t in range(len(ids))]
