"""Sampling masks: a sender's claim about which tokens its sampler kept at each position.

Trainers that replay such masks (vLLM, SGLang, verifiers and prime-rl call them ``sampling_mask``)
normalise a token's probability over the mask alone. A mask from your own engine corrects the
importance ratio. A mask from another node controls a token's gradient: a mask containing only the
drawn token makes that token certain, so that no loss can unlearn it, and a mask of a few chosen
tokens pushes exactly those tokens down. So a mask is checked against the declared sampler, or not
used.

A completion carries its mask as ``metadata["sampling_mask"]``, in the form of those libraries::

    {"ids": [5, 9, 7, 5], "counts": [3, 1]}   # three tokens kept at position 0, one at position 1
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final

from grpo_guard.core.completion import Completion, CompletionError, shown, token_ids

KEY: Final = "sampling_mask"
MOST_KEPT: Final = 2**21
"""Maximum number of ids in a mask, over all positions: 4,096 tokens with 512 ids each, as prime-rl
allows."""


@dataclass(frozen=True, slots=True)
class SamplingMask:
    """The token ids kept at each position, as one tuple for each token of the completion, [n]. An
    empty tuple makes no claim about its position."""

    kept: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, completion: Completion) -> "SamplingMask | None":
        """Read the mask claimed by a completion's sender; None if there is no claim. Raises
        ValueError, with the reason, if the claim cannot be a mask of the completion's tokens."""
        claim = claimed_mask(completion)
        if claim is None:
            return None
        if completion.completion_ids is None:
            raise ValueError(f"{KEY}: expected token ids with it, got none")
        if not isinstance(claim, Mapping):
            raise ValueError(f"{KEY}: expected ids and counts, got {shown(claim)}")
        ids, counts = _integers(claim, "ids"), _integers(claim, "counts")
        n = len(completion.completion_ids)
        if len(counts) != n or any(count < 0 for count in counts) or sum(counts) != len(ids):
            raise ValueError(
                f"{KEY}: expected {n} counts, one per token, that add up to {len(ids)} ids, got "
                f"{len(counts)} with the sum {sum(counts)}"
            )
        ends = pairwise(accumulate(counts, initial=0))
        mask = cls(tuple(tuple(ids[start:end]) for start, end in ends))
        mask._require_of(completion.completion_ids)
        return mask

    def claim(self) -> dict[str, list[int]]:
        """Return the mask in the form used in a completion's metadata."""
        return {
            "ids": [token for kept in self.kept for token in kept],
            "counts": [len(kept) for kept in self.kept],
        }

    def _require_of(self, drawn: Sequence[int]) -> None:
        for place, (token, kept) in enumerate(zip(drawn, self.kept, strict=True)):
            if kept and token not in kept:
                raise ValueError(f"{KEY}: the token at position {place} is not in its own mask")
            if len(set(kept)) != len(kept):
                raise ValueError(f"{KEY}: a token is twice in the mask of position {place}")


def claimed_mask(completion: Completion) -> Any:
    """Return the mask sent with a completion, in whatever form; None if there is none."""
    try:
        return completion.metadata.get(KEY)
    except Exception:  # an untrusted mapping can raise anything
        return "a mask that cannot be read"


def _integers(claim: Mapping[Any, Any], name: str) -> tuple[int, ...]:
    try:
        found = token_ids(f"{KEY}.{name}", claim[name])
    except CompletionError as error:
        raise ValueError(str(error)) from None
    except Exception:  # the key is missing, or the object cannot be read
        found = None
    if found is None:
        raise ValueError(f"{KEY}.{name}: expected a list of integers, got none")
    if len(found) > MOST_KEPT:
        raise ValueError(f"{KEY}.{name}: expected at most {MOST_KEPT} ids, got more")
    return found
