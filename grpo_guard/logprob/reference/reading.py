"""From a completion to its tokens' scores under the reference: what the verdicts are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grpo_guard.completion import Completion
from grpo_guard.given import stretches
from grpo_guard.logprob.encode import Encoded, EncodeError, Encoder
from grpo_guard.logprob.reference.cusum import Excursion, cusum
from grpo_guard.logprob.reference.null import length_free
from grpo_guard.logprob.reference.quoted import Quotable
from grpo_guard.logprob.scorers.base import OutOfMemoryError, Scorer, score_apart
from grpo_guard.logprob.stats import Floats, TokenStats
from grpo_guard.sampling import SamplingSpec
from grpo_guard.verdict import Cause

# The reference's own distribution, untouched: what the nodes sampled with says nothing of it.
PLAIN = SamplingSpec("transformers", temperature=1.0, top_k=0, top_p=1.0)


# In fewer tokens there is no rest that a span could be foreign to.
LEAST_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Reading:
    """What the reference says of one completion.

    Args:
        scores: What the CUSUM adds up, in standard deviations of an honest token, shape [n].
        run: The largest run of them.
        char_span: Of the run in ``Completion.text``; None where there is none.
        logprob: Of the run's tokens together, nats.
    """

    scores: Floats
    run: Excursion
    char_span: tuple[int, int] | None
    logprob: float

    def score(self, rate: float) -> float:
        """The largest run on the scale that does not depend on the length."""
        return length_free(self.run.value, len(self.scores), rate)


class Reader:
    """Tokenises text with the reference's tokenizer and scores it.

    Token ids that came along are another model's and are left aside: what is judged is the text
    that the reward sees.

    Args:
        tokenizer: The reference's.
        scorer: Of the reference.
        max_new_tokens: Longest text in the reference's tokens; None = what its window takes.
        chat_template_kwargs: For prompts that are messages.
    """

    def __init__(
        self,
        tokenizer: Any,
        scorer: Scorer,
        *,
        max_new_tokens: int | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.scorer = scorer
        self.encoder = Encoder(
            tokenizer,
            replace(PLAIN, max_new_tokens=max_new_tokens),
            vocab_size=scorer.vocab_size,
            window=scorer.window,
            chat_template_kwargs=chat_template_kwargs,
        )
        self._control_ids = frozenset(tokenizer.all_special_ids) - self.encoder.eos_ids

    def encode(self, completion: Completion) -> Encoded:
        """The text as the reference's tokens; what is known to be a tool's or user's is context.

        Raises:
            EncodeError: it cannot be scored, with the cause that its verdict gets.
        """
        alone = replace(completion, completion_ids=None, prompt_ids=None, given=completion.told)
        encoded = self.encoder.encode(alone)
        # Spelled in the text, they end the document or open a turn in which a user asks for the
        # poison: it would be what the reference expects.
        # Around what tools say the chat template puts its own.
        for i in encoded.places.tolist():
            if (token := encoded.completion_ids[i]) in self._control_ids:
                spelled = self.tokenizer.convert_ids_to_tokens(token)
                raise EncodeError(
                    Cause.MALFORMED,
                    f"the text spells the control token {spelled} (token {i})",
                    kind="control_token",
                )
        return encoded

    def stats(self, sequences: Sequence[Encoded]) -> list[TokenStats | OutOfMemoryError]:
        """Statistics of each text, or why it does not fit by itself."""
        return score_apart(lambda some: self.scorer.score(some, PLAIN), sequences)

    def read(
        self,
        completion: Completion,
        encoded: Encoded,
        stats: TokenStats,
        scores: Floats,
        *,
        excuse: bool = True,
    ) -> Reading:
        """The largest run of a completion's scores, shape [n].

        Args:
            completion: As it came.
            encoded: What of it was scored.
            stats: Of its tokens; without NaN.
            scores: Of its tokens, `ReferenceProfile.token_scores`.
            excuse: Leave out what the prompt says too.
        """
        offsets = self._offsets(completion, len(scores))
        if excuse and offsets:
            quoted = Quotable(completion.trusted_prompt_text).tokens(completion.text, offsets)
            scores = np.where(quoted, np.minimum(scores, 0.0), scores)
        if completion.told and offsets:
            # What was given is context: no run begins in it, and none is made of it.
            for start, end in completion.told.chars:
                inside = [a < end and b > start for a, b in offsets]
                scores = np.where(inside, np.minimum(scores, 0.0), scores)
        run = cusum(scores)
        span = None
        if run.end > run.start:
            span = (
                _covered(completion.text, offsets, run)
                if offsets
                else self.encoder.char_span(completion, encoded, run.start, run.end)
            )
        return Reading(scores, run, span, float(stats.logprob[run.start : run.end].sum()))

    def _offsets(self, completion: Completion, count: int) -> list[tuple[int, int]]:
        """Where each scored token stands in the text; empty where the tokenizer cannot say."""
        if not getattr(self.tokenizer, "is_fast", False):
            return []
        text, offsets = completion.text, list[tuple[int, int]]()
        told = completion.told.chars if completion.told else ()
        for begin, end in stretches(told, len(text)):  # as `Encoder` takes it apart
            found = self.tokenizer(
                text[begin:end],
                add_special_tokens=False,
                return_offsets_mapping=True,
                verbose=False,
            )["offset_mapping"]
            offsets += [(begin + int(a), begin + int(b)) for a, b in found]
        # Fewer are scored where the text spells an EOS.
        return offsets[:count]


def _covered(
    text: str, offsets: Sequence[tuple[int, int]], run: Excursion
) -> tuple[int, int] | None:
    """The run in characters, without the white space around it."""
    start, end = offsets[run.start][0], offsets[run.end - 1][1]
    inside = text[start:end]
    start += len(inside) - len(inside.lstrip())
    end = start + len(inside.strip())
    return (start, end) if end > start else None
