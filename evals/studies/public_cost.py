"""Published answers by other people's models that `different_weights` rejects, file by file.

    python -m grpo_guard.evals.studies.public_cost FOLDER_OR_FILE ... [-o FILE]

Each file goes through a fresh guard in batches by round. For the correct rows (all rows if they are
not graded), the study reports how many are rejected, by which member and kind, and the worst node.
``text rules`` are the members that neither compare nodes nor keep per-node state, that is, all
except recurrence and node exclusion. ``one result changed`` uses `public_poison` to poison the
correct rows that the text rules accept, and has the text rules judge each poisoned row on its own.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_guard import presets
from grpo_guard.content.recurrence.verifier import RecurrenceVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.core.ensemble import Ensemble
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.studies.harness import option, rate, say, study
from grpo_guard.evals.studies.public_poison import changed_result
from grpo_guard.evals.studies.rules import Tally, reviewed
from grpo_guard.evals.studies.rules_corpora import files_of, published_corpus
from grpo_guard.nodes.exclusion_verifier import ExclusionVerifier


def is_text_rule(rule: CompletionVerifier) -> bool:
    """Whether a member of the preset judges each text separately."""
    return not isinstance(rule, ExclusionVerifier | RecurrenceVerifier)


def measure(places: list[Path], poison: bool) -> dict[str, Any]:
    """Compute the figures for all files."""
    files, figures = files_of(places), {}
    for number, file in enumerate(files, 1):
        figures[file.stem] = of_file(file, poison)
        say(file.name, number, len(files))
    return figures


def of_file(file: Path, poison: bool = True) -> dict[str, Any]:
    """Compute the figures for one file of completions."""
    corpus = published_corpus(file)
    tally, by_text, accepted = Tally(), 0, list[Completion]()
    for row, kinds, rejected in reviewed(corpus):
        tally.add(corpus.name, row.node or "nobody", kinds, rejected)
        if any(rule != RecurrenceVerifier.name for rule, _ in kinds):
            by_text += 1
        else:
            accepted.append(row)
    worst = sorted(tally.senders.items(), key=lambda one: -one[1][0] / one[1][1])[:1]
    figures = {
        "rows": sum(map(len, corpus.rounds)),
        "right rejected": rate(tally.rejected, tally.total),
        "right rejected by text rules": rate(by_text, tally.total),
        "kinds": {f"{v}: {k}": n for (v, k), n in tally.kinds.most_common()},
        "worst node": {name: rate(*counts) for name, counts in worst},
    }
    return figures | ({"one result changed": _poisoned(accepted)} if poison else {})


def _poisoned(rows: Sequence[Completion]) -> dict[str, Any]:
    """Change one result in each row, and count the rows that the text rules reject on their own."""
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
