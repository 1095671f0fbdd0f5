"""Completions under a coin, kept on disk as they are made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.replay.generate import generate_under_coin

# Rows of one batch have prompts of similar length, and the first batches a fair mix of questions.
BATCHES_PER_BLOCK = 4

Say = Callable[[str, int, int], None]
"""Progress: called with (what is being done, done, total)."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One completion to be drawn.

    Args:
        key: Names it within its set.
        prompt_ids: The prompt.
        seed: From whichever coin.
        prefix: Tokens that it begins with.
    """

    key: str
    prompt_ids: tuple[int, ...]
    seed: int
    prefix: tuple[int, ...] = ()

    @property
    def digest(self) -> str:
        """Tells draws apart in the cache."""
        text = json.dumps([self.prompt_ids, self.seed, self.prefix])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Source:
    """What draws them.

    Args:
        name: Of weights and number format; part of the cache's key.
        model: The policy.
        spec: The sampler.
        eos_ids: Tokens that end a completion.
        batch_size: Completions at once.
    """

    name: str
    model: Any
    spec: SamplingSpec
    eos_ids: tuple[int, ...]
    batch_size: int

    @property
    def digest(self) -> str:
        """Tells sources apart in the cache."""
        text = json.dumps([self.name, asdict(self.spec), self.eos_ids], default=list)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def drawn(
    name: str, draws: Sequence[Draw], source: Source, folder: Path, say: Say
) -> dict[str, tuple[int, ...]]:
    """Completions as ids by key, those that exist already from ``folder``.

    Args:
        name: Of the set, for its file and for progress.
        draws: What to draw.
        source: What draws.
        folder: Where the sets are kept.
        say: Progress.
    """
    path = folder / f"{name}-{source.digest}.jsonl"
    known = _read(path)
    found = {d.key: known[d.digest] for d in draws if d.digest in known}
    for batch in _batches([d for d in draws if d.key not in found], source.batch_size):
        rows = generate_under_coin(
            source.model,
            [d.prompt_ids for d in batch],
            [d.seed for d in batch],
            source.spec,
            eos_ids=source.eos_ids,
            prefixes=[d.prefix for d in batch],
        )
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            for draw, ids in zip(batch, rows, strict=True):
                file.write(json.dumps({"digest": draw.digest, "ids": ids}) + "\n")
                found[draw.key] = ids
        say(name, len(found), len(draws))
    return found


def _batches(draws: Sequence[Draw], size: int) -> Iterator[list[Draw]]:
    block = size * BATCHES_PER_BLOCK
    for start in range(0, len(draws), block):
        part = sorted(draws[start : start + block], key=lambda d: len(d.prompt_ids + d.prefix))
        for at in range(0, len(part), size):
            yield part[at : at + size]


def _read(path: Path) -> dict[str, tuple[int, ...]]:
    """Read the finished ones; a line that a killed run left half written is skipped."""
    if not path.is_file():
        return {}
    found = {}
    for line in path.read_text().splitlines():
        try:
            row = json.loads(line)
            found[row["digest"]] = tuple(row["ids"])
        except (ValueError, KeyError, TypeError):
            continue
    return found
