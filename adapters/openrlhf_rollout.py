"""OpenRLHF: one sample as an agent executor returns it, as completions and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_guard.adapters.flagged_tokens import Span, flagged_tokens, without
from grpo_guard.adapters.openrlhf_query import reference_from
from grpo_guard.completion import Completion
from grpo_guard.verdict import Verdict


@dataclass(frozen=True)
class Rollout:
    """What `execute` returned for one sample.

    Args:
        response: ``observation_tokens`` (all ids, [T]), ``action_ranges`` (half-open, in T),
            ``rollout_log_probs`` ([T] or None), ``reward`` and more. A key ``node`` may say who
            wrote it.
        limit: Tokens that the trainer keeps; it cuts off the rest.
    """

    response: Mapping[str, Any]
    limit: int

    @property
    def ids(self) -> Sequence[int]:
        ids: Sequence[int] = self.response["observation_tokens"]
        return ids

    @property
    def turns(self) -> list[Span]:
        """The stretches of tokens that the policy wrote."""
        given = [(max(0, a), min(b, len(self.ids))) for a, b in self.response["action_ranges"]]
        return [(start, end) for start, end in given if start < end]

    def completions(self, tokenizer: Any, prompt: str, group: str, slot: int) -> list[Completion]:
        """One for each turn, behind all the tokens before it; an empty one where there is none.

        The texts are without special tokens. A turn that was cut off at the token limit has
        ``finish_reason="length"``.

        Args:
            tokenizer: The policy's.
            prompt: As text, where it is what the first turn's tokens follow; else "".
            group: Name of the group; later turns make groups of their own.
            slot: Place in the group.
        """
        turns = self.turns or [(len(self.ids), len(self.ids))]
        truncated = self.response.get("truncated")
        ended = None if truncated is None else "length" if truncated else "stop"
        made = []
        for number, (start, end) in enumerate(turns):
            made.append(
                Completion(
                    (not number and prompt) or _text(tokenizer, self.ids[:start], special=True),
                    _text(tokenizer, self.ids[start:end]),
                    prompt_ids=None if self.response.get("images") else tuple(self.ids[:start]),
                    completion_ids=tuple(self.ids[start:end]),
                    node=_text_or_none(self.response.get("node")),
                    group=f"{group}/{number}" if number else group,
                    slot=slot,
                    reference=reference_from(self.response.get("label")),
                    finish_reason=ended if number == len(turns) - 1 else None,
                    sampler_logprobs=self._log_probs(start, end),
                )
            )
        return made

    def without_flagged(self, verdicts: Sequence[Verdict]) -> list[Span] | None:
        """Action ranges without the tokens that rejections rest on; None where that is no way out.

        Args:
            verdicts: One for each turn.
        """
        left: list[Span] = []
        turns = self.turns
        for (start, end), verdict in zip(turns, verdicts[: len(turns)], strict=True):
            spans = flagged_tokens(verdict, end - start)
            if verdict.rejected and not spans:
                return None
            left += without((start, end), [(start + a, start + b) for a, b in spans])
        return left if self._trains(left) else None

    def least(self) -> list[Span]:
        """The least that may be trained on: one token, since none at all makes the KL term 0/0."""
        for start, end in self.turns:
            if max(start, 1) < min(end, self.limit):
                return [(max(start, 1), max(start, 1) + 1)]
        last = min(len(self.ids), self.limit) - 1
        return [(last, last + 1)] if last > 0 else []

    def ranges(self) -> list[Span]:
        """The action ranges as they are, or the least where the trainer would see none of them."""
        given = [tuple(span) for span in self.response["action_ranges"]]
        return given if self._trains(self.turns) else self.least()

    def _trains(self, spans: Sequence[Span]) -> bool:
        # The first token of all has nothing before it that could predict it.
        return any(max(start, 1) < min(end, self.limit) for start, end in spans)

    def _log_probs(self, start: int, end: int) -> tuple[float, ...] | None:
        found = self.response.get("rollout_log_probs")
        found = None if found is None else tuple(float(x) for x in found[start:end])
        if found is None or len(found) != end - start or any(math.isnan(x) for x in found):
            return None
        return found


def number(value: Any) -> float | None:
    """A reward as executors have it: a number, a tensor of one, a list of one.

    Raises:
        TypeError, ValueError: anything else.
    """
    value = value.tolist() if hasattr(value, "tolist") else value
    while isinstance(value, list | tuple):
        if len(value) != 1:
            raise ValueError(f"expected one reward for one sample, got {value!r:.80}")
        value = value[0]
    return None if value is None else float(value)


def _text(tokenizer: Any, ids: Sequence[int], *, special: bool = False) -> str:
    return str(
        tokenizer.decode(
            list(ids), skip_special_tokens=not special, clean_up_tokenization_spaces=False
        )
    )


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)
