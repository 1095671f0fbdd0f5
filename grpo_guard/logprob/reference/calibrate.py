"""Build a profile from honest completions of the kind to be judged."""

from collections.abc import Sequence

import numpy as np

from grpo_guard.core.completion import Completion
from grpo_guard.logprob.encode import Encoded, EncodeError
from grpo_guard.logprob.reference.null import decay_rate
from grpo_guard.logprob.reference.profile import (
    MOST_SCORES,
    ReferenceProfile,
    Settings,
    TokenScale,
    strangeness,
    token_scores,
)
from grpo_guard.logprob.reference.reading import LEAST_TOKENS, Reader
from grpo_guard.logprob.scorers.base import OutOfMemoryError, plain_stats
from grpo_guard.logprob.stats import TokenStats

# Fewer completions would not even determine the scale, and p could never fall below 0.05.
FEWEST = 20


def calibrated(
    reader: Reader,
    honest: Sequence[Completion],
    *,
    name: str,
    method: str,
) -> ReferenceProfile:
    """Build a reference's profile on one kind of honest text.

    The completions should be answers to the swarm's own prompts, from models like those of the
    nodes, that cannot have been poisoned: the guarantee is that another completion of the same kind
    is rejected with probability at most alpha. Use one completion per prompt, because several
    answers to the same prompt share its oddities.

    Args:
        reader: Tokenises and scores text under the reference.
        honest: The honest completions: at least 1 / alpha - 1 for a rejection at alpha, and ten
            times as many for fine-grained p-values. Completions that cannot be scored are skipped.
        name, method: The profile's name and a description of the completions, stored in its file.

    Raises:
        ValueError: fewer than 20 completions could be scored, or more than a profile can hold.
    """
    settings = Settings()
    read = _scored(reader, honest)
    if not FEWEST <= len(read) <= MOST_SCORES:
        raise ValueError(
            f"honest: expected {FEWEST} to {MOST_SCORES} completions that can be scored, got "
            f"{len(read)} of {len(honest)}"
        )
    scale = TokenScale.of(np.concatenate([strangeness(s, settings.cap) for _, _, s in read]))
    # Quoted text is not excused here, so that an excuse can only make a p-value larger. If it were
    # excused in calibration too, completions that quote their prompt heavily would set the scale
    # for those that do not.
    readings = [
        reader.read(c, e, s, token_scores(s, settings, scale), excuse=False) for c, e, s in read
    ]
    rate = decay_rate(np.concatenate([reading.scores for reading in readings]))
    lengths = [len(reading.scores) for reading in readings]
    return ReferenceProfile(
        name=name,
        identity=reader.scorer.identity(),
        settings=settings,
        tokens=scale,
        rate=rate,
        scores=tuple(sorted(reading.score(rate) for reading in readings)),
        shortest=min(lengths),
        longest=max(lengths),
        method=f"{method}; {len(readings)} completions, {sum(lengths)} tokens",
    )


def _scored(
    reader: Reader, completions: Sequence[Completion]
) -> list[tuple[Completion, Encoded, TokenStats]]:
    encoded = list[tuple[Completion, Encoded]]()
    for completion in completions:
        try:
            encoded.append((completion, reader.encode(completion)))
        except EncodeError:
            continue
    stats = plain_stats(reader.scorer, [ids for _, ids in encoded])
    return [
        (completion, ids, s)
        for (completion, ids), s in zip(encoded, stats, strict=True)
        if not isinstance(s, OutOfMemoryError) and s.finite and len(s) >= LEAST_TOKENS
    ]
