"""Write some of each bundled policy's training texts next to its weights.

``python -m grpo_guard.evals.training.policies.texts``

Further training on these texts makes the nodes of a heterogeneous swarm differ
(`grpo_guard.evals.swarm.workload`), and the corpora themselves are not in the wheel.
"""

import gzip
import json
import random
from typing import Final

from grpo_guard.evals.policies.bundled import BUNDLED, TEXTS, TEXTS_EACH
from grpo_guard.evals.training.policies.train import CORPORA, TrainConfig

VARIANTS: Final = 4
"""Number of nodes that get their own texts; any further nodes draw from these texts."""


def texts(config: TrainConfig, number: int) -> list[tuple[str, str]]:
    """Draw the (prompt, completion) pairs for a variant; variants are numbered from 1."""
    rng = random.Random(f"variant {number}")
    return [config.sample(rng) for _ in range(TEXTS_EACH)]


def main() -> None:
    """Write the texts of all bundled policies."""
    for config in CORPORA.values():
        rows = [pair for number in range(1, VARIANTS + 1) for pair in texts(config, number)]
        path = BUNDLED[config.out.name] / TEXTS
        # No timestamp, so that identical texts produce an identical file.
        path.write_bytes(gzip.compress(json.dumps(rows).encode(), mtime=0))
        print(f"{path}: {len(rows)} texts")


if __name__ == "__main__":
    main()
