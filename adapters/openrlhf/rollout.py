"""OpenRLHF: read, repair and return one sample from an agent executor.

An executor may return samples that other nodes wrote. The trainer does not check them: a token id
outside the model's vocabulary ends the run, an invalid log-prob makes the whole batch's loss NaN, a
log-prob of -1000 makes its sample's weight infinite, and special tokens do not appear in the judged
text. Such a response is repaired, rejected as malformed, and left out of its group.
"""

import math
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from grpo_guard.adapters.flagged_tokens import Span, flagged_tokens, without
from grpo_guard.adapters.plain_numbers import LOG_PROBS, number_from
from grpo_guard.adapters.received import Row, received
from grpo_guard.adapters.sequences import line_before, transcript
from grpo_guard.core.detokenizer import Detokenizer
from grpo_guard.core.given import Given
from grpo_guard.core.verdict import Verdict

Texts: TypeAlias = tuple[str, str, Given | None]
"""The prompt, the text of all the turns, and its given spans."""


@dataclass(frozen=True)
class Rollout:
    """The result of `execute` for one sample.

    Args:
        response: The executor's result: ``observation_tokens`` (all ids, [T]), ``action_ranges``
            (half-open, in T), ``rollout_log_probs`` ([T] or None), ``reward`` and more. A key
            ``node`` may name the author.
        limit: Number of tokens that the trainer keeps; it cuts off the rest.
        problem: Description of what was repaired, see `sanitize_response`; such a sample is not
            trained on. None if nothing was repaired.
        asked: The prompt that the trainer gave; None if unknown.
        begins: Index of the token where reading starts, if it precedes the first token that is
            trained on.
    """

    response: Mapping[str, Any]
    limit: int
    problem: str | None = None
    asked: Any = None
    begins: int | None = None

    @property
    def ids(self) -> Sequence[int]:
        ids: Sequence[int] = self.response["observation_tokens"]
        return ids

    @property
    def turns(self) -> list[Span]:
        """The spans of tokens that the policy wrote, sorted by position. The trainer accepts ranges
        in any order, so without sorting, a peer could list a range after its poison first, and the
        poison would pass as part of the prompt."""
        given = [(max(0, a), min(b, len(self.ids))) for a, b in self.response["action_ranges"]]
        return sorted((start, end) for start, end in given if start < end)

    @property
    def answer(self) -> Span:
        """The span of tokens that the guard reads: from the first token that the policy wrote, or
        from `begins`, to the last token that the policy wrote; empty if the policy wrote none."""
        turns = self.turns or [(len(self.ids), len(self.ids))]
        first = turns[0][0]
        begins = first if self.begins is None else min(first, self.begins)
        return begins, max(end for _, end in turns)

    def with_line_before(self, tokenizer: Any) -> "Rollout":
        """Return the rollout. If a peer chose where its answer begins, that is, if the prompt is
        not the trainer's, it is read from the start of the line that the answer continues."""
        first, prompt = self.answer[0], self.response.get("prompt")
        asked = isinstance(prompt, str) and prompt == self.asked
        if self.response.get("node") is None or (asked and self._prompt_is_whole(tokenizer, first)):
            return self
        return replace(self, begins=line_before(self.ids, first, Detokenizer.of(tokenizer)))

    def texts(self, tokenizer: Any) -> Texts:
        """The prompt, all the turns as one text, and the given spans in this text. A response with
        a ``node`` is decoded with all special tokens except one that closes a turn. ``tokenizer``
        is the policy's tokenizer, or a processor that contains it."""
        start, end = self.answer
        text, given = transcript(
            Detokenizer.of(tokenizer),
            [operator.index(token) for token in self.ids[start:end]],
            [(a - start, b - start) for a, b in without((start, end), self.turns)],
            theirs=self.response.get("node") is not None,  # even if the name cannot be read
        )
        first = self.turns[0][0] if self.turns else start
        asked = self.response["prompt"] if self._prompt_is_whole(tokenizer, first) else None
        if asked is None:
            asked = Detokenizer.of(tokenizer).raw(self.ids[:first])
        return asked, text, given

    @property
    def node(self) -> str | None:
        """The sender's name as given by the executor."""
        return received("", "", node=self.response.get("node")).completion.node

    def row(self, texts: Texts, group: str, slot: int) -> Row:
        """Build one completion from all the turns, as returned by `texts`; it is empty if there are
        no turns. ``group`` and ``slot`` are the group name and the sample's index within it. A
        completion that was cut off at the token limit has ``finish_reason="length"``."""
        response, (start, end) = self.response, self.answer
        asked, text, given = texts
        truncated = response.get("truncated")
        return received(
            asked,
            text,
            # Tokens that represent an image mean nothing to a verifier without the image.
            prompt_ids=None if response.get("images") else tuple(self.ids[:start]),
            completion_ids=tuple(self.ids[start:end]),
            given=given,
            # A peer's prompt is its own claim unless it equals the trainer's.
            prompt_trusted=response.get("node") is None or asked == self.asked,
            node=response.get("node"),
            group=group,
            slot=slot,
            reference=response.get("label"),
            decoded=True,
            finish_reason=None if truncated is None else "length" if truncated else "stop",
            sampler_logprobs=self._log_probs(start, end),
            malformed=self.problem,
        )

    def without_flagged(self, verdict: Verdict) -> list[Span] | None:
        """The action ranges without the tokens that a rejection is based on; None if the sample
        must be left out anyway."""
        start, end = self.answer
        spans = flagged_tokens(verdict, end - start)
        flagged = [(start + a, start + b) for a, b in spans]
        left = [part for turn in self.turns for part in without(turn, flagged)]
        return left if spans and self._trains(left) else None

    def least(self) -> list[Span]:
        """The smallest possible action ranges: a single token, because a sample without any trained
        token makes the KL term 0/0."""
        for start, end in self.turns:
            if max(start, 1) < min(end, self.limit):
                return [(max(start, 1), max(start, 1) + 1)]
        last = min(len(self.ids), self.limit) - 1
        return [(last, last + 1)] if last > 0 else []

    def ranges(self) -> list[Span]:
        """The action ranges, or `least` if the trainer would train on none of their tokens."""
        given = [tuple(span) for span in self.response["action_ranges"]]
        return given if self._trains(self.turns) else self.least()

    def _prompt_is_whole(self, tokenizer: Any, start: int) -> bool:
        """Whether the ids before ``start`` are the complete prompt; the trainer cuts a prompt that
        is too long."""
        prompt = self.response.get("prompt")
        if not isinstance(prompt, str):
            return False
        if self.response.get("images"):
            return True
        try:
            given = tokenizer(text=prompt, add_special_tokens=False)["input_ids"]
        except Exception:  # invalid text
            return False
        given = given[0] if given and isinstance(given[0], list) else given  # from a processor
        return list(given) == list(self.ids[:start])

    def _trains(self, spans: Sequence[Span]) -> bool:
        # The first token does not count, because nothing before it could predict it.
        return any(max(start, 1) < min(end, self.limit) for start, end in spans)

    def _log_probs(self, start: int, end: int) -> tuple[float, ...] | None:
        found = self.response.get("rollout_log_probs")
        found = None if found is None else tuple(float(x) for x in found[start:end])
        return None if found is None or len(found) != end - start else found


def number(value: Any) -> float | None:
    """Convert a reward, in any form that executors use, to a float: a number, or a tensor or list
    containing a single number. Raises TypeError or ValueError for anything else."""
    value = value.tolist() if hasattr(value, "tolist") else value
    while isinstance(value, list | tuple):
        if len(value) != 1:
            raise ValueError(f"expected 1 reward for 1 sample, got {len(value)}: {value!r:.80}")
        value = value[0]
    try:
        return None if value is None else float(value)
    except OverflowError:  # an integer taken from a text can be arbitrarily large
        return math.inf if value > 0 else -math.inf


def sanitize_response(
    response: Mapping[str, Any], tokenizer: Any, limit: int, special: Collection[int]
) -> tuple[Mapping[str, Any], str | None]:
    """Repair a response as `repaired` does; if the response is completely unreadable, its ids are
    replaced with two harmless tokens."""
    try:
        return repaired(response, tokenizer, limit, special)
    except Exception as error:
        end = int(getattr(tokenizer, "tokenizer", tokenizer).eos_token_id or 0)
        filler = {"observation_tokens": [end] * 2, "action_ranges": [(1, 2)], "images": None}
        if "truncated" in response:
            filler["truncated"] = False
        if response.get("rollout_log_probs") is not None:
            filler["rollout_log_probs"] = [0.0] * 2
        return {**response, **filler}, f"it could not be read: {type(error).__name__}"


def repaired(
    response: Mapping[str, Any], tokenizer: Any, limit: int, special: Collection[int]
) -> tuple[Mapping[str, Any], str | None]:
    """Return the response of `execute` in a form that the trainer can use, plus the problem with
    it, if any.

    Special tokens and lengths are checked only if a response names its ``node``: your own engine
    stops on its own, and your own policy may use special tokens freely. No honest sampler exceeds
    ``limit``, the number of tokens that the trainer keeps, and millions of tokens would delay
    everyone served by this engine. The judged text shows the tokens in ``special``, which a turn
    may contain.
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
        problem = "invalid log-probs"
    if problem is None and theirs:
        plain = [operator.index(token) for token in ids]
        turns = [(start, end) for start, end in response["action_ranges"] if start < end]
        detokenizer = Detokenizer.of(tokenizer, special=special)
        problem = detokenizer.problem(plain, without((0, len(plain)), turns))
    if problem is None:
        return response, None
    return {**response, "observation_tokens": ids, "rollout_log_probs": log_probs}, problem


def _require_readable(response: Mapping[str, Any]) -> None:
    """Raise an exception if `Rollout` or the trainer could not read the response."""
    for start, end in response["action_ranges"]:
        if not 0 <= operator.index(start) <= operator.index(end) < 2**31:
            raise ValueError("action_ranges: no stretch of tokens")
    ids = response["observation_tokens"]
    # A range of millions costs its sender nothing, and a mapping has no slices.
    if not isinstance(ids, list | tuple) and getattr(ids, "ndim", None) != 1:
        raise TypeError("observation_tokens: expected a list")
    for name in ("truncated", "images"):
        bool(response.get(name))


def _known(given: Sequence[Any], tokenizer: Any) -> tuple[Sequence[int], str | None]:
    """The ids, with every id outside the vocabulary replaced by a filler, plus a message with the
    position of the first such id, or None."""
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
    # If valid, return the original object, because the trainer copies it in its own way.
    return (given, None) if first is None else (ids, f"unknown token id at position {first}")


def _log_probs(given: Any, length: int) -> Any:
    """The given log-probs if all are valid; otherwise a list of ``length`` numbers, with 0 in place
    of invalid log-probs."""
    plain = given.tolist() if hasattr(given, "tolist") else given
    if not isinstance(plain, list | tuple) or len(plain) != length:
        return [0.0] * length
    found = [number_from(value, *LOG_PROBS) for value in plain]
    return given if None not in found else [0.0 if number is None else number for number in found]
