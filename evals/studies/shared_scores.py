"""A scorer that computes each sequence only once, for measurements with constant weights."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.replay.margins import Replay
from grpo_guard.logprob.scorers.transformers import TransformersScorer
from grpo_guard.logprob.stats import TokenStats

_Key: TypeAlias = tuple[Encoded, SamplingSpec, float, Replay | None]


class SharedScores(TransformersScorer):
    """A scorer that keeps its results, for several verifiers or rounds on the same completions.

    Never use it in training: after an update, the same completion has different statistics.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._kept: dict[_Key, TokenStats] = {}

    def score(
        self,
        sequences: Sequence[Encoded],
        spec: SamplingSpec,
        *,
        mass_margin: float = 0.0,
        replay: Replay | None = None,
    ) -> list[TokenStats]:
        """Score as `TransformersScorer.score` does, but each sequence only once."""
        margin = mass_margin if spec.top_p < 1 else 0.0  # without top-p the margin changes nothing
        keys = [(sequence, spec, margin, replay) for sequence in sequences]
        missing = {key: key[0] for key in keys if key not in self._kept}
        stats = super().score(list(missing.values()), spec, mass_margin=mass_margin, replay=replay)
        self._kept.update(zip(missing, stats, strict=True))
        return [self._kept[key] for key in keys]
