"""Honest completions rejected by the optional rules of `content.extras`, file by file.

    python -m grpo_guard.evals.studies.extras FOLDER_OR_FILE ... [-o FILE]
        [--classifier MODEL --labels toxic insult]

Each rule, with its defaults, judges every completion on its own. The part ``if asked for`` covers
the plugins of ``secrets`` and the kinds of ``pii`` that are off by default, each one separately.
``toxicity`` is measured with the given classifier.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from grpo_guard.content.extras.language import LanguageVerifier
from grpo_guard.content.extras.pii import QUIET, RECOGNISERS, PiiVerifier
from grpo_guard.content.extras.secrets import NOISY, SecretsVerifier
from grpo_guard.content.extras.toxicity import ToxicityVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.core.jsonl import read_objects
from grpo_guard.core.verdict import Verdict
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.studies.harness import option, rejected, say, study, verify
from grpo_guard.evals.studies.rules_corpora import files_of

_AT_ONCE: Final = 64
_SHOWN: Final = 3


def measure(places: list[Path], classifier: str | None, labels: list[str]) -> dict[str, Any]:
    """Compute the figures for all rules, for each file and for all files combined."""
    files = files_of(places)
    rules: dict[str, CompletionVerifier] = {
        "secrets": SecretsVerifier(), "pii": PiiVerifier(), "language": LanguageVerifier(),
    }  # fmt: skip
    if classifier is not None:
        rules["toxicity"] = ToxicityVerifier(classifier, labels=labels)
    off: dict[str, CompletionVerifier] = {
        f"secrets, {name}": SecretsVerifier(plugins=[name]) for name in NOISY
    }
    off |= {f"pii, {k}": PiiVerifier(entities=[k]) for k in RECOGNISERS if k not in QUIET}
    verdicts: dict[str, dict[str, list[Verdict]]] = {name: {} for name in [*rules, *off]}
    examples: dict[str, list[str]] = {}
    for number, file in enumerate(files, 1):
        rows = list(_rows(file))
        for name, rule in (rules | off).items():
            verdicts[name][file.stem] = found = verify(rule, rows, _AT_ONCE)
            examples.setdefault(name, []).extend(_examples(file.stem, rows, found))
        say(file.name, number, len(files))

    figures = {
        name: {
            "all": rejected([v for of_file in found.values() for v in of_file]),
            **{stem: rejected(of_file) for stem, of_file in found.items()},
        }
        for name, found in verdicts.items()
    }
    return {
        "honest": {name: figures[name] for name in rules},
        "if asked for": {name: figures[name] for name in off},
        "examples": examples,
    }


def _rows(file: Path) -> Iterator[Completion]:
    """Yield the completions in a file in our format, or in GSM8K's file of model solutions."""
    for _, found in read_objects(file):
        if "question" in found:
            yield Completion(found["question"], found["completion"], node=found.get("model"))
        else:
            yield Completion.from_dict({k: v for k, v in found.items() if k != "id"})


def _examples(stem: str, rows: Sequence[Completion], verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield the place and message of the first rejections, without any text from the corpus."""
    places = [i for i, verdict in enumerate(verdicts) if verdict.rejected][:_SHOWN]
    for i in places:
        yield f"{stem} {rows[i].group}/{rows[i].node}: {verdicts[i].reason}"


if __name__ == "__main__":
    study(
        "extras",
        measure,
        option("places", type=Path, nargs="+", metavar="FILE", help="files, or folders of them"),
        option("--classifier", help="folder or hub id of a sequence classifier"),
        option("--labels", nargs="+", default=["toxic"], help="its labels to reject for"),
    )
