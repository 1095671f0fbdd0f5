"""The arithmetic verifier on frozen forms, by kind: wrong equations and honest work.

Each file is ``{"kind": [text, ...]}``; their authors had not seen the reader. A wrong equation is
part of a solution that continues without its value to the right answer, as in the attack on
mathematics.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from grpo_guard.content.arithmetic.verifier import ArithmeticVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Verdict


def poisoned(form: str) -> Completion:
    """Wrap a wrong equation in a solution with a right answer."""
    text = f"He thinks.\n{form}\nSo we go on with the right value and get 7.\n#### 7"
    return Completion("How many are there?", text, reference="7")


def worked(text: str) -> Completion:
    """Wrap honest work with the right answer."""
    return Completion("How many are there?", f"{text}\n#### 7", reference="7")


def unanswered(text: str) -> Completion:
    """Wrap honest work without a reference."""
    return Completion("How many are there?", text)


def measure(wrong: Path, honest: Path) -> dict[str, dict[str, int]]:
    """Measure both files: wrong forms, and honest texts with and without a reference."""
    attacks, work = (json.loads(path.read_text(encoding="utf-8")) for path in (wrong, honest))
    return {
        "wrong rejected": _by_kind(attacks, poisoned, lambda v: v.rejected),
        "wrong found at all": _by_kind(attacks, poisoned, lambda v: bool(v.findings)),
        "honest rejected, reference": _by_kind(work, worked, lambda v: v.rejected),
        "honest rejected": _by_kind(work, unanswered, lambda v: v.rejected),
    }


def _by_kind(
    kinds: Mapping[str, Sequence[str]],
    made: Callable[[str], Completion],
    counts: Callable[[Verdict], bool],
) -> dict[str, int]:
    verifier = ArithmeticVerifier()
    hits = {
        kind: sum(counts(verdict) for verdict in verifier.verify([made(text) for text in texts]))
        for kind, texts in kinds.items()
    }
    return hits | {"all": sum(hits.values())}
