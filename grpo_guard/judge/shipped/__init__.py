"""The judge that ships: a model of one million parameters that reads the bundled task.

`JudgeVerifier("shipped")` is it, and so is one without a backend. It needs no key, no server and no
download, answers on a CPU, and its error rates are measured (``docs/shipped-judge.md``). It knows
nothing but that task: it rejects solutions of other problems, or in other words.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

SHIPPED: Final = "shipped"
"""What a guard says in place of a backend to get this judge."""
FOLDER: Final = Path(__file__).resolve().parent
RUBRIC: Final = "word_problems"
SETTINGS: Final = FOLDER / "judge.json"
# Honest solutions of the task have at most some 400 characters. Of a longer text the judge would
# be shown only head and tail, and prompts much longer than those it learnt from.
MOST_CHARACTERS: Final = 1000


def shipped_threshold() -> float:
    """``p_yes`` from which it accepts, chosen on honest completions that it was not trained on."""
    return float(json.loads(SETTINGS.read_text(encoding="utf-8"))["threshold"])


def shipped_settings() -> dict[str, Any]:
    """Backend, rubric, threshold and window: arguments of `JudgeVerifier`."""
    from grpo_guard.judge.backends.transformers import TransformersBackend

    return {
        "backend": TransformersBackend(FOLDER, batch_size=64, local_files_only=True),
        "rubric": RUBRIC,
        "threshold": shipped_threshold(),
        "window": {"shown": MOST_CHARACTERS, "limit": MOST_CHARACTERS},
    }
