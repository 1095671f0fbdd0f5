"""What `different_weights` costs published answers of other people's models, file by file.

    python -m grpo_guard.evals.studies.public_cost FOLDER_OR_FILE ... [-o FILE]

Each file goes through a fresh guard in batches by round. For the right rows (all rows if they are
not graded) it reports how many are rejected, by which member and kind, and the worst node.
``text rules`` leaves out what compares or remembers nodes: recurrence and the nodes' standing.
``one result changed`` is `public_poison` in the right rows that the text rules accept unchanged,
each judged alone by the text rules.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_guard import presets
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.core.ensemble import Ensemble
from grpo_guard.core.verdict import Verdict
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.studies.harness import option, rate, say, study
from grpo_guard.evals.studies.public_poison import changed_result
from grpo_guard.evals.studies.rules import Kind, rejecting
from grpo_guard.evals.studies.rules_corpora import counting_guard, files_of, rounds_of, rows_of
from grpo_guard.nodes.exclusion_verifier import ExclusionVerifier


@dataclass(slots=True)
class Cost:
    """Results for the rows of one file that count."""

    total: int = 0
    rejected: int = 0
    by_text: int = 0
    kinds: Counter[Kind] = field(default_factory=Counter)
    nodes: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))

    def add(self, row: Completion, verdict: Verdict, members: Sequence[CompletionVerifier]) -> bool:
        """Add one row with its verdict; return whether the text rules accept it."""
        pairs = list(zip(members, verdict.members, strict=True))
        said = {rule.name: sorted(rejecting(rule, one)) for rule, one in pairs if one.rejected}
        by_text = any(one.rejected for rule, one in pairs if is_text_rule(rule))
        self.total += 1
        self.rejected += verdict.rejected
        self.by_text += by_text
        counts = self.nodes[row.node or "nobody"]
        counts[0] += verdict.rejected
        counts[1] += 1
        for name, kinds in said.items():
            self.kinds.update(kinds or [(name, name)])
        return not by_text

    def figures(self) -> dict[str, Any]:
        """The counts with their intervals."""
        worst = sorted(self.nodes.items(), key=lambda one: -one[1][0] / one[1][1])[:1]
        return {
            "right rejected": rate(self.rejected, self.total),
            "right rejected by text rules": rate(self.by_text, self.total),
            "kinds": {f"{v}: {k}": n for (v, k), n in self.kinds.most_common()},
            "worst node": {name: rate(*counts) for name, counts in worst},
        }


def is_text_rule(rule: CompletionVerifier) -> bool:
    """Whether a member of the preset reads each text separately."""
    return not isinstance(rule, ExclusionVerifier | RecurrenceVerifier)


def measure(places: list[Path], poison: bool) -> dict[str, Any]:
    """Figures of all files."""
    files, figures = files_of(places), {}
    for number, file in enumerate(files, 1):
        figures[file.stem] = of_file(file, poison)
        say(file.name, number, len(files))
    return figures


def of_file(file: Path, poison: bool = True) -> dict[str, Any]:
    """Figures of one file of completions."""
    rows = list(rows_of(file))
    graded = any(row.metadata.get("right") is not None for row in rows)
    guard = counting_guard()
    root = guard.verifier
    assert isinstance(root, Ensemble)
    cost, accepted = Cost(), []
    for batch in rounds_of(rows):
        for row, verdict in zip(batch, guard.review(batch).verdicts, strict=True):
            if (row.metadata.get("right") or not graded) and cost.add(row, verdict, root.members):
                accepted.append(row)
    figures = {"rows": len(rows), **cost.figures()}
    return figures | ({"one result changed": _poisoned(accepted)} if poison else {})


def _poisoned(rows: Sequence[Completion]) -> dict[str, Any]:
    """Measure what the text rules reject of rows with one result changed, one row at a time."""
    made = [
        changed_result(row, random.Random(f"public {row.round}/{row.group}/{row.node}"))
        for row in rows
    ]
    rejected = [_rejected_alone(row) for row in made if row is not None]
    return {"rejected": rate(sum(rejected), len(rejected))}


def _rejected_alone(row: Completion) -> bool:
    root = presets.different_weights().verifier
    assert isinstance(root, Ensemble)
    return any(rule.verify([row])[0].rejected for rule in root.members if is_text_rule(rule))


if __name__ == "__main__":
    study(
        "public-cost",
        lambda places, no_poison: measure(places, not no_poison),
        option("places", type=Path, nargs="+", metavar="FILE", help="files, or folders of them"),
        option("--no-poison", action="store_true", help="count honest rows only"),
    )
