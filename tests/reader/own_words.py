"""A reader that expects the words of its context and no others."""

import math
from collections.abc import Sequence

import numpy as np

from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.logprob.encoded import Encoded
from grpo_guard.logprob.reader.reader import SpanReader
from grpo_guard.logprob.stats import FLATTENINGS, TokenStats

_LIKELY, _UNLIKELY = math.log(0.5), math.log(1e-5)


def only_log_probs(logprob) -> TokenStats:
    """Statistics of n tokens that know their log-probs and nothing else."""
    n = len(logprob)
    zeros, counts = np.zeros(n), np.zeros(n, np.int64)
    return TokenStats(
        logprob=logprob, max_logprob=zeros, rank=counts, mass_above=zeros, tail_mass=zeros,
        ties=counts, entropy=zeros, log_set_mass=zeros,
        log_flat_mass=np.zeros((n, len(FLATTENINGS))), in_set=np.ones(n, np.bool_), logit=zeros,
        edge_gap=zeros,
    )  # fmt: skip


class OwnWords:
    """A scorer: a token that came before is likely, any other is not.

    Args:
        broken: An exception to raise, or a log-prob to give to every token.
    """

    vocab_size, window, replays = 1024, None, False

    def __init__(self, broken: Exception | float | None = None) -> None:
        self.broken = broken
        self.tokens = 0

    def identity(self) -> dict[str, str]:
        return {"architecture": "own words"}

    def score(self, sequences: Sequence[Encoded], spec, *, mass_margin: float = 0.0):
        if isinstance(self.broken, Exception):
            raise self.broken
        return [self._stats(sequence) for sequence in sequences]

    def _stats(self, sequence: Encoded) -> TokenStats:
        known = set(sequence.prompt_ids)
        log_probs = []
        for token in sequence.completion_ids:
            log_probs.append(_LIKELY if token in known else _UNLIKELY)
            known.add(token)
        n = len(log_probs)
        self.tokens += n
        values = np.array(log_probs) if self.broken is None else np.full(n, self.broken)
        return only_log_probs(values)


def own_words(broken: Exception | float | None = None, **options) -> SpanReader:
    """Build a reader on it, with the tokenizer of the bundled policy."""
    _, tokenizer = load_bundled()
    return SpanReader(None, tokenizer, scorer=OwnWords(broken), **options)
