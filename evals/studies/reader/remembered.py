"""A scorer that computes each sequence once: runs over the same honest answers become cheap."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.encoded import Encoded
from grpo_guard.logprob.scorers.base import Scorer
from grpo_guard.logprob.stats import FLATTENINGS, Floats, TokenStats


def only_log_probs(logprob: Floats) -> TokenStats:
    """Statistics of n tokens that know their log-probs and nothing else."""
    n = len(logprob)
    zeros, counts = np.zeros(n), np.zeros(n, np.int64)
    return TokenStats(
        logprob=logprob, max_logprob=zeros, rank=counts, mass_above=zeros, tail_mass=zeros,
        ties=counts, entropy=zeros, log_set_mass=zeros,
        log_flat_mass=np.zeros((n, len(FLATTENINGS))), in_set=np.ones(n, np.bool_), logit=zeros,
        edge_gap=zeros,
    )  # fmt: skip


class RememberedScorer:
    """A `Scorer` for readers, with the log-probs that it has computed in a file of its own.

    Args:
        scorer: Computes what is not known yet.
        file: A pickle that this class alone writes; read if it is there.
    """

    replays = False

    def __init__(self, scorer: Scorer, file: Path) -> None:
        self.scorer = scorer
        self.file = file
        self._known: dict[bytes, Floats] = pickle.loads(file.read_bytes()) if file.exists() else {}

    @property
    def vocab_size(self) -> int:
        return self.scorer.vocab_size

    @property
    def window(self) -> int | None:
        return self.scorer.window

    def identity(self) -> dict[str, str]:
        return self.scorer.identity()

    def score(
        self, sequences: Sequence[Encoded], spec: SamplingSpec, *, mass_margin: float = 0.0
    ) -> list[TokenStats]:
        """Like `Scorer.score`, but only log-probs."""
        keys = [_key(sequence) for sequence in sequences]
        new = {k: s for k, s in zip(keys, sequences, strict=True) if k not in self._known}
        scored = self.scorer.score(list(new.values()), spec)
        for key, stats in zip(new, scored, strict=True):
            self._known[key] = stats.logprob.astype(np.float32)
        return [only_log_probs(self._known[key].astype(np.float64)) for key in keys]

    def save(self) -> None:
        """Write the known log-probs."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_bytes(pickle.dumps(self._known))


def _key(sequence: Encoded) -> bytes:
    ids = repr((sequence.prompt_ids, sequence.completion_ids)).encode()
    return blake2b(ids, digest_size=16).digest()
