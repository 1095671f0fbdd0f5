"""Text corpora for the studies, with questions split into two sides regardless of their content.

Rules are tuned on the "tune" side and reported on the "held" side.
"""

import hashlib
import os
from pathlib import Path
from typing import Final, Literal, TypeAlias

from grpo_guard.core.completion import Completion
from grpo_guard.core.jsonl import read_completions

Split: TypeAlias = Literal["tune", "held", "all"]
DATA: Final = Path(os.environ.get("GRPO_GUARD_DATA", "../shared/data"))
MODERN: Final = ("math", "min", "oly")


def side(prompt: str) -> Literal["tune", "held"]:
    """Return a question's side of the split, by the first bit of its SHA-256."""
    return "tune" if hashlib.sha256(prompt.encode()).digest()[0] < 128 else "held"


def modern(name: str, split: Split = "all") -> list[Completion]:
    """Read completions from current models; ``metadata["right"]`` is the grader's decision."""
    rows = read_completions(DATA / "modern" / f"{name}.jsonl")
    return [row for row in rows if split == "all" or side(str(row.prompt)) == split]


def gsm8k_file() -> Path | None:
    """Return GSM8K's training file, from ``GRPO_GUARD_GSM8K`` (a file or its folder), if set."""
    named = os.environ.get("GRPO_GUARD_GSM8K")
    if not named:
        return None
    path = Path(named) / "train.jsonl" if Path(named).is_dir() else Path(named)
    return path if path.is_file() else None
