"""Summarise the verdicts on a file, by node and by cause."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_guard.cli.formats import listed
from grpo_guard.cli.rows import Row, Rows
from grpo_guard.cli.verdict_table import VerdictTable, cut_between_words, findings_of, printed
from grpo_guard.content.arithmetic.verifier import WITHOUT_GAIN
from grpo_guard.core.pages import page
from grpo_guard.core.quoting import unquoted, visible
from grpo_guard.core.verdict import Cause, Outcome, Verdict
from grpo_guard.guard import Guard
from grpo_guard.guard.abstentions import REMEDIES
from grpo_guard.guard.idle import idle_without
from grpo_guard.nodes.counts import FREQUENT_KIND

MOST_NODES = 10_000
"""Maximum number of nodes counted by name. A sender can invent any number of names, so further
nodes share a line."""
SHOWN_NODES = 20
SHOWN_REASONS = 10
MOST_REASONS = 1_000
"""Maximum number of reasons counted separately; an operator's own verifiers can invent any number
of kinds."""
_MOST_KEPT = 400
"""Maximum length of an example, in characters."""

_ALONE = "no other node is known yet"
# Start of an abstention's reason -> a remedy that fits better than that of its cause.
_REMEDIES_OF_REASONS = {
    _ALONE: "mix the rows of the nodes, so that each batch has several",
    "no other completion of this prompt": "add the other completions of each prompt",
}
_ONE_SENDER = "all rows name one sender: leave out node, or add the rows of the others"

_OTHERS_MALFORMED = "mend the malformed rows: all others name one sender"

_OWN_WORDS = "if honest work says this, pass its words: ordinary: [WORD, ...] in the guard file"
REMEDIES_OF_KINDS = {"recurring_opening": _OWN_WORDS, "recurring_phrase": _OWN_WORDS}
"""What to do about a kind of finding if it convicts honest work."""


def _shortened(text: str, most: int) -> str:
    """Quote text, cut between words if it is too long."""
    quoted = repr(text)
    return f"{quoted[0]}{cut_between_words(quoted[1:-1], most - 2)}{quoted[0]}"


_MEANINGS = {
    WITHOUT_GAIN: "Wrong, but earning nothing: the final answer is not the reference, or the text "
    "itself rejects the equation"
}
"""What it means that a completion with a kind of finding is accepted."""
_EARLIER = (
    "Rows before their node's conviction stay accepted; with state: in the guard file, the same "
    "command again rejects them"
)


def _described(what: str, one: Mapping[str, Any], more: str) -> str:
    """Format a kind of finding with its count and example on one line, and ``more`` about it."""
    kind, example = unquoted(f"{one['kind']} ({one['verifier']})"), _shortened(one["example"], 120)
    line = f"{what} {kind}: {one['count']:,}, such as {example}"
    return f"{line}. {more}" if more else line


class _Reasons:
    """Counts of findings by verifier and kind, each with an example."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._examples: dict[tuple[str, str], str] = {}

    def add(self, verifier: str, kind: str, example: str) -> None:
        key = (verifier, kind)
        if key not in self._counts and len(self._counts) >= MOST_REASONS:
            key = ("(others)", "")
        self._counts[key] += 1
        self._examples.setdefault(key, example[:_MOST_KEPT])

    def commonest(self) -> list[dict[str, Any]]:
        """Return the `SHOWN_REASONS` most common ones."""
        return [
            {"verifier": by, "kind": kind, "count": count, "example": self._examples[by, kind]}
            for (by, kind), count in self._counts.most_common(SHOWN_REASONS)
        ]


class Summary:
    """Counts of verdicts, using memory that does not grow with the file.

    Args:
        total: Number of rows in the file.
        done: Number of rows verified earlier and not counted here.
        table: Counts the same verdicts by cause and node, and takes the place of the counts that it
            has too.
    """

    def __init__(self, total: int, done: int = 0, table: VerdictTable | None = None) -> None:
        self.total, self.done, self.table = total, done, table
        self.outcomes: Counter[Outcome] = Counter()
        self.causes: Counter[tuple[Outcome, Cause]] = Counter()
        self.nodes: dict[str, Counter[Outcome]] = {}
        self._example: dict[Cause, str] = {}
        self._rejected_for, self._accepted_with = _Reasons(), _Reasons()
        self._senders: set[str | None] = set()
        self.asked = self.tokens = self.cached = 0
        """Number of verdicts that involved a judge, of the judge's tokens, and of answers from the
        judge's cache."""
        self.usd, self._priced = 0.0, True
        self.notes: list[str] = []
        """Warnings about the whole file, repeated at the end of the summary."""

    def add(self, row: Row, verdict: Verdict) -> None:
        """Count the verdict on a row."""
        if self.table is not None:
            self.table.add(row.completion, verdict, row.node)
        self.outcomes[verdict.outcome] += 1
        self.causes[verdict.outcome, verdict.cause] += 1
        if verdict.usage is not None:
            self.asked += 1
            self.tokens += verdict.usage.tokens_in + verdict.usage.tokens_out
            self.cached += verdict.usage.cache_hits
            self.usd += verdict.usage.usd or 0.0
            self._priced &= verdict.usage.usd is not None or not verdict.usage.requests
        if verdict.abstained:
            self._example.setdefault(verdict.cause, verdict.reason[:_MOST_KEPT])
        if verdict.rejected:
            kind = verdict.findings[0].kind if verdict.findings else verdict.cause.value
            by = verdict.deciding[0] if verdict.deciding else verdict.verifier
            self._rejected_for.add(by, kind, verdict.reason)
        elif verdict.accepted and verdict.findings:
            for (by, kind), message in findings_of(verdict.to_dict()).items():
                self._accepted_with.add(by, kind, message)
        if row.completion is not None and len(self._senders) < 2:
            self._senders.add(row.node)
        if (name := row.node) is not None:
            if name not in self.nodes and len(self.nodes) >= MOST_NODES:
                name = "(others)"
            self.nodes.setdefault(name, Counter())[verdict.outcome] += 1

    def as_json(self, out: str) -> str:
        """Format the summary as one JSON object."""
        return json.dumps(
            {
                "rows": self.total,
                "resumed": self.done,
                "outcomes": {o.value: self.outcomes[o] for o in Outcome},
                "causes": {f"{o.value}: {c.value}": n for (o, c), n in self.causes.most_common()},
                "nodes": {
                    name: {o.value: count[o] for o in Outcome} for name, count in self._worst()
                },
                "rejected_for": self._rejected_for.commonest(),
                "accepted_with": self._accepted_with.commonest(),
                "warnings": self.notes,
                "out": out,
            }
        )

    def as_table(self, out: str) -> str:
        """Format the summary for a human reader: totals, nodes sorted by rejections, causes with
        remedies."""
        before = f" ({self.done} before)" if self.done else ""
        wrote = f"{before}; wrote {out}"
        if self.table is not None:
            parts = ["\n\n".join([self.table.totals() + wrote, *self.table.tables(), ""])]
        else:
            parts = self._counts(wrote)
        counted = any(one["kind"] == FREQUENT_KIND for one in self._rejected_for.commonest())
        parts += [
            _described(
                "accepted with", one, _MEANINGS.get(one["kind"], _EARLIER if counted else "")
            )
            for one in self._accepted_with.commonest()
            if self.table is None or one["kind"] in _MEANINGS
        ]
        if self.asked:
            parts.append(self._cost())
        for (outcome, cause), count in self.causes.most_common():
            if outcome is Outcome.ABSTAIN:
                example = _shortened(self._example[cause], 400)
                about = f"abstained, {cause.value}: {count}, such as {example}"
                parts.append(f"{about}. Remedy: {self._remedy(cause)}")
        parts += [f"warning: {note}" for note in self.notes]
        return "\n".join(parts).rstrip()

    def _counts(self, wrote: str) -> list[str]:
        """Format the totals, the nodes and the commonest reasons for rejection."""
        now = self.total - self.done
        parts = [", ".join(f"{o.value} {self.outcomes[o]}/{now}" for o in Outcome) + wrote]
        if self.nodes:
            parts.append(self._nodes_table())
        for one in self._rejected_for.commonest():
            remedy = REMEDIES_OF_KINDS.get(one["kind"])
            parts.append(_described("rejected,", one, f"Remedy: {remedy}" if remedy else ""))
        return parts

    def _remedy(self, cause: Cause) -> str:
        """Return what to do about abstentions of one cause, judging by the first of them."""
        reason = self._example[cause]
        if reason.startswith(_ALONE) and len(self._senders) == 1:
            return _ONE_SENDER if len(self.nodes) == 1 else _OTHERS_MALFORMED
        for start, remedy in _REMEDIES_OF_REASONS.items():
            if reason.startswith(start):
                return remedy
        return REMEDIES.get(cause, f"see {page('abstentions')}")

    def _cost(self) -> str:
        """Format the cost of judges, in total and per thousand verified completions."""
        each = 1000 / max(1, sum(self.outcomes.values()))
        usd = f", {self.usd * each:.2f} USD" if self._priced and self.usd else ""
        return (
            f"judge: asked about {self.asked:,}, {self.cached:,} answers from the cache, "
            f"{self.tokens:,} tokens; per thousand completions {self.tokens * each:,.0f} "
            f"tokens{usd}"
        )

    def too_many_abstained(self, most: float) -> str | None:
        """Return a complaint if, among completions not rejected, the share of abstentions exceeds
        ``most``; otherwise None."""
        abstained = self.outcomes[Outcome.ABSTAIN]
        looked = abstained + self.outcomes[Outcome.ACCEPT]
        if not looked or abstained <= most * looked:
            return None
        return (
            f"the guard abstained on {abstained} of {looked} completions that it did not reject, "
            f"more than max_abstain_rate={most:g} allows: it does not look at what it should"
        )

    def _worst(self) -> list[tuple[str, Counter[Outcome]]]:
        return sorted(self.nodes.items(), key=lambda one: (-one[1][Outcome.REJECT], one[0]))

    def _nodes_table(self) -> str:
        rows = [
            (visible(n[:80]), *(f"{count[o]:,}" for o in Outcome)) for n, count in self._worst()
        ]
        header = ("node", *(o.value for o in Outcome))
        table = printed(header, rows, most=SHOWN_NODES, width=100, pad_edge=True)
        return f"{table} nodes" if len(rows) > SHOWN_NODES else table


def idle_notes(guard: Guard, rows: Rows, source: Path, left_out: list[str]) -> list[str]:
    """Return a note for each field that verifiers need but no row of a file has; ``left_out`` are
    the file's columns that no field was read from. The guard's own warning, which sees only one
    batch and no columns, is disabled."""
    guard.idle.mute()
    idle = idle_without(guard.verifier)
    if guard.ledger is not None and "node" in idle:
        idle["node"].append("the ledger records nobody")
    others = f" (not read: {listed(left_out)})" if left_out else ""
    return [
        f"no row of {source} has {field!r}, so {'; '.join(what)}. If one of its columns holds it"
        f"{others}: --map {field}=COLUMN"
        for field, what in idle.items()
        if field not in rows.sent and len(rows)
    ]
