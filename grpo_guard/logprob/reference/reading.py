"""Turn a completion into token scores under the reference, which verdicts are based on."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_guard.core.completion import Completion
from grpo_guard.core.given import stretches
from grpo_guard.logprob.encode import Encoded, Encoder
from grpo_guard.logprob.encoded import malformed
from grpo_guard.logprob.reference.null import Excursion, cusum, length_free
from grpo_guard.logprob.scorers.base import PLAIN, Scorer
from grpo_guard.logprob.stats import Floats, TokenStats

# With fewer tokens, there would be no context for a span to be foreign to.
LEAST_TOKENS = 8
# Number of consecutive words. Shorter runs recur in any prompt by chance, and an attacker who knows
# the swarm's prompts could build a phrase from them.
QUOTED_WORDS = 3
_WORD = re.compile(r"\w+")


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
        tokenizer, scorer: The reference's tokenizer; scores text under the reference.
        max_new_tokens, chat_template_kwargs: As for `ReferenceLikelihoodVerifier`.
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
        Raises EncodeError if the text cannot be scored."""
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

    def read(
        self,
        completion: Completion,
        encoded: Encoded,
        stats: TokenStats,
        scores: Floats,
        *,
        excuse: bool = True,
    ) -> Reading:
        """Find the run with the largest sum in the `token_scores`, shape [n], of what was encoded.

        ``stats`` must be free of NaN; ``excuse``: whether text that also occurs in the prompt is
        excused.
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


def quoted(prompt: str, text: str, offsets: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Mark the tokens, boolean, [n], inside a run of words that also occurs in the prompt, which a
    completion may repeat, however odd; ``offsets`` are the tokens' characters [start, end)."""
    found = np.zeros(len(offsets), dtype=np.bool_)
    # Hashes, because storing the runs of a long prompt would take many times its size.
    known = {run for run, _, _ in _runs(prompt)}
    if not known or not len(offsets):
        return found
    starts, ends = zip(*offsets, strict=True)
    for run, first, last in _runs(text):
        if run in known:
            found[bisect_right(ends, first) : bisect_left(starts, last)] = True
    return found


def _runs(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield each run of words as its hash and characters [start, end)."""
    words = [(m[0].casefold(), m.start(), m.end()) for m in _WORD.finditer(text)]
    for i in range(len(words) - QUOTED_WORDS + 1):
        run = words[i : i + QUOTED_WORDS]
        yield hash(tuple(word for word, _, _ in run)), run[0][1], run[-1][2]
