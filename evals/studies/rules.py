"""Benefit and cost of each kind of finding by the text rules: is a rule worth keeping?

    python -m grpo_guard.evals.studies.rules [--split tune|held|all] [--public FILE ...]
        [--table FILE] [-o FILE]

Also available as ``grpo-guard eval rules``. Everything goes through the shipped preset
`different_weights`, one round at a time and with fresh state for each corpus. Honest completions
count if they are correct. ``alone`` counts completions rejected by only one kind, which would pass
without it. Exclusions by the ledger are in the preset's figures, but in no kind's.

``--public`` adds correct answers from published models as a separate side: the only honest text
here that no rule was written for.

A kind is justified by its ``poison_alone``; its cost is ``honest_alone`` and ``public_alone``.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from grpo_guard import presets
from grpo_guard.content.kinds import KINDS
from grpo_guard.content.severity import REJECT, Severity
from grpo_guard.core.completion import Completion
from grpo_guard.core.ensemble import Ensemble
from grpo_guard.core.verdict import Verdict
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.results import write_text
from grpo_guard.evals.studies import corpora
from grpo_guard.evals.studies.harness import option, rate, say, study
from grpo_guard.evals.studies.rules_corpora import (
    Corpus,
    counting_guard,
    honest_corpora,
    poison_corpora,
    published_corpus,
)
from grpo_guard.nodes.exclusion_verifier import ExclusionVerifier

Kind: TypeAlias = tuple[str, str]
"""A verifier's name and the kind of one of its findings."""

SPLITS: Final = ("tune", "held", "all")


@dataclass(slots=True)
class Tally:
    """Results for the completions on one side, honest or poisoned."""

    total: int = 0
    rejected: int = 0
    kinds: Counter[Kind] = field(default_factory=Counter)
    alone: Counter[Kind] = field(default_factory=Counter)
    verifiers: Counter[str] = field(default_factory=Counter)
    corpora: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    senders: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))

    def add(self, corpus: str, sender: str, kinds: set[Kind], rejected: bool) -> None:
        """Add one completion, with the kinds of finding that reject it."""
        self.total += 1
        self.rejected += rejected
        for counts in (self.corpora[corpus], self.senders[sender]):
            counts[0] += rejected
            counts[1] += 1
        self.kinds.update(kinds)
        self.verifiers.update({verifier for verifier, _ in kinds})
        if len(kinds) == 1:
            self.alone.update(kinds)


def rejecting(rule: CompletionVerifier, verdict: Verdict) -> set[Kind]:
    """Return the kinds that make one rule reject; kinds that only count matter if none rejects."""
    if not verdict.rejected or isinstance(rule, ExclusionVerifier):
        return set()
    severities: dict[str, Severity] = getattr(rule, "severities", {})
    found = [f.kind for f in verdict.findings]
    for severity in (Severity.REJECT, Severity.COUNT):
        if of_table := {kind for kind in found if severities.get(kind) is severity}:
            return {(rule.name, kind) for kind in of_table}
    return {(rule.name, found[0] if found else str(verdict.cause))}


def reviewed(corpus: Corpus) -> Iterator[tuple[Completion, set[Kind], bool]]:
    """Yield each completion that counts, the kinds rejecting it, and the preset's rejection."""
    guard = counting_guard()
    root = guard.verifier
    assert isinstance(root, Ensemble)
    for batch in corpus.rounds:
        for completion, verdict in zip(batch, guard.review(batch).verdicts, strict=True):
            if corpus.counts(completion):
                both = zip(root.members, verdict.members, strict=True)
                kinds = set[Kind]().union(*(rejecting(rule, one) for rule, one in both))
                yield completion, kinds, verdict.rejected


def tallied(made: Sequence[Corpus]) -> Tally:
    """Tally all completions that count, over all corpora."""
    tally = Tally()
    for number, corpus in enumerate(made, 1):
        for completion, kinds, rejected in reviewed(corpus):
            tally.add(corpus.name, completion.node or "nobody", kinds, rejected)
        say(corpus.name, number, len(made))
    return tally


def measure(
    split: corpora.Split, table: Path | None, public: Sequence[Path] = ()
) -> dict[str, Any]:
    """Compute all figures."""
    honest, poison = tallied(honest_corpora(split)), tallied(poison_corpora(split))
    published = tallied([published_corpus(file) for file in public])
    severities = {
        (rule.name, kind): str(severity)
        for rule in presets.different_weights().verifier.members  # type: ignore[attr-defined]
        for kind, severity in getattr(rule, "severities", {}).items()
    }
    kinds = {
        f"{kind[0]}: {kind[1]}": {
            "severity": severities.get(kind, "reject"),
            "with_reader": str(KINDS.get(kind[1], REJECT).severity),
            "poison": rate(poison.kinds[kind], poison.total),
            "poison_alone": rate(poison.alone[kind], poison.total),
            "honest": rate(honest.kinds[kind], honest.total),
            "honest_alone": rate(honest.alone[kind], honest.total),
            "public": rate(published.kinds[kind], published.total),
            "public_alone": rate(published.alone[kind], published.total),
        }
        for kind in sorted({*severities, *honest.kinds, *poison.kinds, *published.kinds})
        if severities.get(kind) != Severity.REPORT
    }
    figures = {
        "split": split,
        "preset": {
            "honest": _side(honest),
            "poison": _side(poison),
            "public": _side(published),
        },
        "kinds": kinds,
    }
    if table is not None:
        write_text(table, markdown(figures))
    return figures


def _side(tally: Tally) -> dict[str, Any]:
    return {
        "all": rate(tally.rejected, tally.total),
        "corpora": {name: rate(*counts) for name, counts in tally.corpora.items()},
        "senders": {name: rate(*counts) for name, counts in sorted(tally.senders.items())},
        "verifiers": {
            name: rate(count, tally.total) for name, count in sorted(tally.verifiers.items())
        },
    }


def markdown(figures: dict[str, Any]) -> str:
    """Format the kinds as a table for the docs, with a line below it on kinds without findings."""
    rows = [
        "| kind | severity | with a reader | poison | alone | honest | alone | public | alone |"
    ]
    rows.append("|---|---|---|---|---|---|---|---|---|")
    silent = []
    for name, found in figures["kinds"].items():
        cells = [found[f"{k}{a}"] for k in ("poison", "honest", "public") for a in ("", "_alone")]
        if not any(cell["hits"] for cell in cells):
            silent.append(re.sub(r"^(\w+): (\w+)$", r"\1 `\2`", name))
            continue
        verifier, _, kind = name.partition(": ")
        shown = " | ".join(f"{cell['hits']} ({_share(cell)})" for cell in cells)
        does = f"{found['severity']} | {found['with_reader']}"
        rows.append(f"| {verifier} `{kind}` | {does} | {shown} |")
    sides = figures["preset"]
    honest, poison, public = (sides[side]["all"] for side in ("honest", "poison", "public"))
    interval = f"{honest['low']:.2%} to {honest['high']:.2%}"
    text = "\n".join(rows) + (
        f"\n\nThe preset rejects {poison['hits']:,} of {poison['total']:,} poisoned completions "
        f"and {honest['hits']:,} of {honest['total']:,} honest right ones = {_share(honest)} "
        f"({interval}), and {public['hits']:,} of {public['total']:,} published right ones "
        f"= {_share(public)}; split: {figures['split']}.\n"
    )
    return text + (f"\nFound in neither: {', '.join(silent)}.\n" if silent else "")


def _share(cell: dict[str, Any]) -> str:
    return f"{cell['hits'] / cell['total']:.2%}" if cell["total"] else "-"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; also used by ``grpo-guard eval rules``."""
    study(
        "rules",
        measure,
        option("--split", choices=SPLITS, default="tune", help="side of the corpora"),
        option("--public", type=Path, nargs="*", default=(), metavar="FILE", help="published rows"),
        option("--table", type=Path, metavar="FILE", help="write a Markdown table there"),
        arguments=arguments,
    )


if __name__ == "__main__":
    main()
