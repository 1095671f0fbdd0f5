"""OpenRLHF: what stands in a response that would end the run, bend the loss, or be read by nobody.

An executor may bring what other nodes wrote. The trainer checks nothing of it: an id that the model
does not have ends the run, a log-prob that is no number makes the whole batch's loss NaN, one of
-1000 makes its sample's weight infinite, and special tokens do not stand in the text that is
judged. Such a response is put right, rejected as malformed and left out of its group.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from grpo_guard.adapters.openrlhf_query import ENDS

# Nobody samples what has less than e^-80, and e^80 is still a float32: the weights of the loss are
# ratios of probabilities. Rounding may leave a certain token's a little above 0.
LOG_PROBS: Final = (-80.0, 0.01)


def believed(
    response: Mapping[str, Any], tokenizer: Any, limit: int, special: Collection[int]
) -> tuple[Mapping[str, Any], str | None]:
    """`put_right`; of what cannot be read at all two harmless tokens are left."""
    try:
        return put_right(response, tokenizer, limit, special)
    except Exception as error:
        end = int(getattr(tokenizer, "tokenizer", tokenizer).eos_token_id or 0)
        filler = {"observation_tokens": [end] * 2, "action_ranges": [(1, 2)], "images": None}
        if "truncated" in response:
            filler["truncated"] = False
        if response.get("rollout_log_probs") is not None:
            filler["rollout_log_probs"] = [0.0] * 2
        return {**response, **filler}, f"it could not be read: {type(error).__name__}"


def put_right(
    response: Mapping[str, Any], tokenizer: Any, limit: int, special: Collection[int]
) -> tuple[Mapping[str, Any], str | None]:
    """The response in a form that the trainer can take, and what was wrong with it.

    Special tokens and lengths are looked at where a response names its ``node``: an engine of one's
    own stops by itself, and what a policy of one's own does with such tokens is its own business.

    Args:
        response: As `execute` returns it.
        tokenizer: The policy's, or a processor that has it.
        limit: Tokens that the trainer keeps. No honest sampler goes on behind them, and millions
            would hold up everybody whom this engine serves.
        special: Ids of special tokens that a turn may hold.
    """
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
    _require_readable(response)
    given, theirs = response["observation_tokens"], response.get("node") is not None
    long = theirs and any(min(end, len(given)) > limit for _, end in response["action_ranges"])
    ids, problem = _known(given[:limit] if long else given, tokenizer)
    problem = f"longer than {limit} tokens" if long else problem
    claimed = response.get("rollout_log_probs")
    log_probs = claimed if claimed is None else _log_probs(claimed, len(ids))
    if problem is None and log_probs is not claimed:
        problem = "log-probs that are none"
    if problem is None and theirs:
        hidden = _unread(tokenizer) - set(special)
        for start, end in response["action_ranges"]:
            problem = problem or _smuggled(ids[max(0, start) : end], hidden, tokenizer)
    if problem is None:
        return response, None
    return {**response, "observation_tokens": ids, "rollout_log_probs": log_probs}, problem


def _require_readable(response: Mapping[str, Any]) -> None:
    """Raises for what `Rollout` and the trainer could not read."""
    for start, end in response["action_ranges"]:
        if not 0 <= operator.index(start) <= operator.index(end) < 2**31:
            raise ValueError("action_ranges: no stretch of tokens")
    _ = response["observation_tokens"][:1]  # a mapping has no stretches
    for name in ("truncated", "images"):
        bool(response.get(name))


def _known(given: Sequence[Any], tokenizer: Any) -> tuple[Sequence[int], str | None]:
    """The ids with fillers where the tokenizer has none, and where that was first."""
    known, filler, first = len(tokenizer), int(tokenizer.eos_token_id or 0), None
    ids = []
    for place, token in enumerate(given):
        try:
            value = -1 if isinstance(token, bool) else operator.index(token)
        except TypeError:
            value = -1
        if not 0 <= value < known:
            first = place if first is None else first
            value = filler
        ids.append(value)
    # As it came where nothing is wrong: the trainer copies it in its own way.
    return (given, None) if first is None else (ids, f"no token of the vocabulary at place {first}")


def _log_probs(given: Any, length: int) -> Any:
    """What is given, or a list of that length with 0 where no log-prob is."""
    plain = given.tolist() if hasattr(given, "tolist") else given
    if not isinstance(plain, list | tuple) or len(plain) != length:
        return [0.0] * length
    found = [_log_prob(number) for number in plain]
    return given if None not in found else [0.0 if number is None else number for number in found]


def _log_prob(given: Any) -> float | None:
    try:
        number = float(given)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if LOG_PROBS[0] <= number <= LOG_PROBS[1] else None


def _unread(tokenizer: Any) -> set[int]:
    """Special tokens, which decoding leaves out; more are added as special than are listed so."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {*tokenizer.all_special_ids, *(i for i, token in added.items() if token.special)}


def _smuggled(turn: Sequence[int], hidden: Collection[int], tokenizer: Any) -> str | None:
    """What is wrong with a turn that holds more special tokens than the one that ends it."""
    for place, token in enumerate(turn):
        if token in hidden and not (place == len(turn) - 1 and _ends(token, tokenizer)):
            return f"special token {token} at place {place} of a turn"
    return None


def _ends(token: int, tokenizer: Any) -> bool:
    return token == tokenizer.eos_token_id or tokenizer.decode([token]) in ENDS
