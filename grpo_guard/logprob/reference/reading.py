"""Turn a completion into token scores under the reference, which verdicts are based on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grpo_guard.core.completion import Completion
from grpo_guard.core.given import stretches
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.encode import Encoded, Encoder
from grpo_guard.logprob.encoded import malformed
from grpo_guard.logprob.reference.cusum import Excursion, cusum
from grpo_guard.logprob.reference.null import length_free
from grpo_guard.logprob.reference.quoted import quoted
from grpo_guard.logprob.scorers.base import OutOfMemoryError, Scorer, score_apart
from grpo_guard.logprob.stats import Floats, TokenStats

# The reference's own unmodified distribution: the nodes' sampler does not apply to it.
PLAIN = SamplingSpec("transformers", temperature=1.0, top_k=0, top_p=1.0)


# With fewer tokens, there would be no context for a span to be foreign to.
LEAST_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Reading:
    """The reference's scores of one completion."""

    scores: Floats  # the terms of the CUSUM, in standard deviations of an honest token, [n]
    run: Excursion  # the run with the largest sum
    char_span: tuple[int, int] | None  # where the run lies in ``Completion.text``
    logprob: float  # total log-prob of the run's tokens, nats

    def score(self, rate: float) -> float:
        """Return the sum of the largest run on the scale that is independent of text length."""
        return length_free(self.run.value, len(self.scores), rate)


class Reader:
    """Tokenises text with the reference's tokenizer and scores it.

    Token ids sent with a completion belong to another model and are ignored; only the text that the
    reward sees is judged.

    Args:
        tokenizer: The reference's tokenizer.
        scorer: Scores text under the reference.
        max_new_tokens: Maximum text length in the reference's tokens, or None for the length of its
            context window.
        chat_template_kwargs: Arguments for the chat template, for prompts that are messages.
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
        """Encode the text as the reference's tokens; verified tool or user turns become context.

        Raises:
            EncodeError: the text cannot be scored; carries the cause for the verdict.
        """
        alone = replace(
            completion, completion_ids=None, prompt_ids=None, given=completion.verified_spans
        )
        encoded = self.encoder.encode(alone)
        # Control tokens spelled out in the text could end the document, or open a turn in which a
        # user asks for the poison, making the reference expect it. Only tokens written by the
        # author are checked, because the chat template itself puts control tokens around tool
        # output.
        for i in encoded.places.tolist():
            if (token := encoded.completion_ids[i]) in self._control_ids:
                spelled = self.tokenizer.convert_ids_to_tokens(token)
                raise malformed(
                    f"the text spells the control token {spelled} (token {i})",
                    kind="control_token",
                )
        return encoded

    def stats(self, sequences: Sequence[Encoded]) -> list[TokenStats | OutOfMemoryError]:
        """Return each text's statistics, or an error if that text alone does not fit into
        memory."""
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
        """Find the run with the largest sum in a completion's scores.

        Args:
            completion: The completion.
            encoded: The part of the completion that was scored.
            stats: Statistics of its n tokens; free of NaN.
            scores: The `token_scores`, shape [n].
            excuse: Whether to excuse text that also occurs in the prompt.
        """
        offsets = self._offsets(completion, len(scores))
        if excuse and offsets:
            excused = quoted(completion.trusted_prompt_text, completion.text, offsets)
            scores = np.where(excused, np.minimum(scores, 0.0), scores)
        if completion.verified_spans and offsets:
            # Text that was given to the author is context: no run starts in it or gains from it.
            for start, end in completion.verified_spans.chars:
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
        """Return the scored tokens' offsets in the text, or [] if the tokenizer provides none."""
        if not getattr(self.tokenizer, "is_fast", False):
            return []
        text, offsets = completion.text, list[tuple[int, int]]()
        verified = completion.verified_spans.chars if completion.verified_spans else ()
        for begin, end in stretches(verified, len(text)):  # split the way `Encoder` does
            part = text[begin:end]
            found = self.tokenizer(
                part, add_special_tokens=False, return_offsets_mapping=True, verbose=False
            )
            offsets += [(begin + int(a), begin + int(b)) for a, b in found["offset_mapping"]]
        # If the text spells out an EOS, fewer tokens are scored.
        return offsets[:count]


def _covered(
    text: str, offsets: Sequence[tuple[int, int]], run: Excursion
) -> tuple[int, int] | None:
    """Return the run's span in characters, excluding surrounding white space."""
    start, end = offsets[run.start][0], offsets[run.end - 1][1]
    inside = text[start:end]
    start += len(inside) - len(inside.lstrip())
    end = start + len(inside.strip())
    return (start, end) if end > start else None
