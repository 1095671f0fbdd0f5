"""What ``--quick``, ``--standard`` and ``--paper`` stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from grpo_guard.evals.attacks.registry import NONE

HOLD: Final = 0.5
"""Share of a run with the full learning rate, for bundled policies. Held for longer, an
attack-free swarm forgets: with 0.8 of a hundred rounds its reward fell from 0.69 to 0.56 towards
the end, with 0.4 it stayed at 0.65 to 0.70 (one seed each). A guard's cost is told by that end."""


@dataclass(frozen=True, slots=True)
class Preset:
    """What a preset's name stands for."""

    attacks: tuple[str, ...]
    defences: tuple[str, ...]
    seeds: int
    iterations: int
    prompts: int


PRESETS: Final = {
    "default": Preset(("text",), (NONE, "homogeneous"), 5, 80, 16),
    "quick": Preset(("text",), (NONE, "homogeneous"), 1, 40, 16),
    "standard": Preset(
        ("text", "math", "code", "dos"),
        (NONE, "paper_logit", "homogeneous", "heterogeneous"), 2, 100, 16,
    ),
    "paper": Preset(
        ("text", "math", "code", "dos"),
        (NONE, "paper_logit", "kl_0.01", "kl_0.1", "homogeneous", "heterogeneous"), 5, 100, 32,
    ),
}  # fmt: skip
