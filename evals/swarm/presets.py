"""What ``--quick``, ``--standard`` and ``--paper`` stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from grpo_guard.evals.attacks.registry import NONE


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
    "quick": Preset(("text",), (NONE, "homogeneous"), 1, 50, 16),
    "standard": Preset(
        ("text", "math", "code", "dos"),
        (NONE, "paper_logit", "homogeneous", "heterogeneous"), 2, 100, 16,
    ),
    "paper": Preset(
        ("text", "math", "code", "dos"),
        (NONE, "paper_logit", "kl_0.01", "kl_0.1", "homogeneous", "heterogeneous"), 5, 100, 32,
    ),
}  # fmt: skip
