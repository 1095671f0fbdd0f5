"""The shipped judge: a model with one million parameters for the bundled task.

`JudgeVerifier("shipped")` uses this judge, and so does a `JudgeVerifier` without a backend. The
judge needs no key, no server and no download, answers on a CPU, and its error rates are measured
(``docs/shipped-judge.md``). It knows only that task, and rejects solutions that are worded
differently or solve other problems.
"""

import json
from pathlib import Path
from typing import Any, Final

SHIPPED: Final = "shipped"
"""The name to give in place of a backend to get this judge."""
FOLDER: Final = Path(__file__).resolve().parent
RUBRIC: Final = "word_problems"
SETTINGS: Final = FOLDER / "judge.json"
# Honest solutions to the task have at most about 400 characters. Longer text would be cut to head
# and tail, and would make prompts much longer than in training.
MOST_CHARACTERS: Final = 1000


def shipped_settings() -> dict[str, Any]:
    """Return the judge's backend, rubric, threshold and window, as arguments of `JudgeVerifier`.

    The threshold was chosen on honest completions not used in training.
    """
    from grpo_guard.judge.backends.transformers import TransformersBackend

    return {
        "backend": TransformersBackend(FOLDER, batch_size=64, local_files_only=True),
        "rubric": RUBRIC,
        "threshold": float(json.loads(SETTINGS.read_text(encoding="utf-8"))["threshold"]),
        "window": {"shown": MOST_CHARACTERS, "limit": MOST_CHARACTERS},
    }
