"""Scores on disk, so that an interrupted measurement goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.scorers.base import Scorer
from grpo_guard.logprob.stats import TokenStats
from grpo_guard.sampling import SamplingSpec

_KEPT: Final = ("logprob", "entropy", "varentropy", "max_logprob")
_AT_ONCE: Final = 12


class KeptScores:
    """A scorer that keeps in a file what it computed; columns that are not kept are zeros.

    For measurements only, where the weights stand still: the file is tied to the scorer's identity
    and to nothing else of the model.

    Args:
        scorer: Computes what is not in the file; None = only what is there.
        path: Of the JSONL file; made where it is missing.
        say: Told after each batch how many are done and how many there are.
    """

    def __init__(
        self, scorer: Any, path: Path, say: Callable[[int, int], None] | None = None
    ) -> None:
        self._scorer: Scorer = scorer
        self._path = path
        self._say = say
        self._kept: dict[str, dict[str, list[float]]] = {}
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                self._kept[row.pop("key")] = row

    @property
    def vocab_size(self) -> int:
        """Rows of the model's embedding."""
        return self._scorer.vocab_size

    @property
    def window(self) -> int | None:
        """Longest sequence in tokens."""
        return self._scorer.window

    def identity(self) -> dict[str, str]:
        """What computed the numbers."""
        return self._scorer.identity()

    def score(
        self, sequences: Sequence[Encoded], spec: SamplingSpec, *, mass_margin: float = 0.0
    ) -> list[TokenStats]:
        """As the scorer inside, each sequence once and in small batches."""
        keys = [self._key(sequence, spec) for sequence in sequences]
        missing = {k: s for k, s in zip(keys, sequences, strict=True) if k not in self._kept}
        todo = list(missing.items())
        for start in range(0, len(todo), _AT_ONCE):
            some = todo[start : start + _AT_ONCE]
            stats = self._scorer.score([s for _, s in some], spec, mass_margin=mass_margin)
            self._keep([k for k, _ in some], stats)
            if self._say:
                self._say(min(start + _AT_ONCE, len(todo)), len(todo))
        return [_restored(self._kept[key]) for key in keys]

    def _key(self, sequence: Encoded, spec: SamplingSpec) -> str:
        what = (self.identity(), sequence.prompt_ids, sequence.completion_ids, spec)
        return hashlib.sha256(repr(what).encode()).hexdigest()[:32]

    def _keep(self, keys: Sequence[str], stats: Sequence[TokenStats]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            for key, s in zip(keys, stats, strict=True):
                row = {name: getattr(s, name).round(6).tolist() for name in _KEPT}
                file.write(json.dumps({"key": key, **row}) + "\n")
                self._kept[key] = row


def _restored(row: dict[str, list[float]]) -> TokenStats:
    n = len(row["logprob"])
    zeros, none = np.zeros(n), np.zeros(n, dtype=np.int64)
    columns: dict[str, Any] = {name: np.array(row[name]) for name in _KEPT}
    return TokenStats(
        rank=none,
        mass_above=zeros,
        tail_mass=zeros,
        ties=none,
        eos_mass=zeros,
        log_set_mass=zeros,
        log_flat_mass=np.zeros((n, 3)),
        in_set=np.ones(n, dtype=bool),
        logit=zeros,
        edge_gap=zeros,
        **columns,
    )
