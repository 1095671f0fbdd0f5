"""The detection matrix: how much honest work, and how much poison, each verifier rejects.

Every rate comes with its counts and a Wilson interval; abstentions have their own column and count
as not rejected. A detection rate means nothing without a false-positive rate, so honest completions
and negative controls go through the same verifier in the same run.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from grpo_guard.cli.row_groups import group_of, whole_groups
from grpo_guard.content.answers import rightness
from grpo_guard.content.arithmetic.verifier import WITHOUT_GAIN
from grpo_guard.core.completion import Completion
from grpo_guard.core.p_values import deciding_p_values
from grpo_guard.core.prompts import prompt_key
from grpo_guard.core.supervise import supervised
from grpo_guard.core.verdict import Finding, Verdict
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.detect.poison import Case
from grpo_guard.evals.progress import Say
from grpo_guard.evals.report.excerpt import asked
from grpo_guard.evals.report.tables import Table
from grpo_guard.evals.results import CONTROL, HONEST, REJECTED, Summary
from grpo_guard.evals.stats import Rate
from grpo_guard.guard import Guard

CHUNK: Final = 16
GUARD_CHUNK: Final = 64
MALICIOUS: Final = "malicious"
HEADER: Final = ("completions", "verifier", "rejected", "rate", "95 % interval", "abstained")


@dataclass(frozen=True, slots=True)
class Row:
    """A completion and a verifier's verdict on it.

    ``kind`` is ``"honest"``, an attack's name or ``"control:NAME"``.
    """

    kind: str
    defence: str
    case: Case
    verdict: Verdict

    @property
    def located(self) -> bool | None:
        """Whether a finding overlaps the poison; None without poison or without a rejection."""
        if self.case.span is None or not self.verdict.rejected:
            return None
        return self._overlaps(self.verdict.findings)

    @property
    def earns_nothing(self) -> bool:
        """Whether the poison was found and accepted because the answer is wrong: such a completion
        earns no reward, so that it teaches nothing."""
        own = self.case.completion
        found = [one for one in self.verdict.findings if one.kind == WITHOUT_GAIN]
        passed = bool(found) and self.verdict.accepted and self._overlaps(found)
        return passed and rightness(own.text, own.reference) is False

    def _overlaps(self, findings: Sequence[Finding]) -> bool:
        start, end = self.case.span or (0, 0)
        spans = [f.char_span for f in findings if f.char_span]
        return any(low < end and start < high for low, high in spans)

    def to_dict(self, *, with_text: bool = False) -> dict[str, Any]:
        """Return the row as JSON, including prompt and text only if ``with_text``."""
        completion = self.case.completion
        row: dict[str, Any] = {
            "kind": self.kind,
            "defence": self.defence,
            "question": completion.metadata.get("question"),
            "tokens": len(completion.completion_ids or ()),
            "located": self.located,
            "earns_nothing": self.earns_nothing,
            "span": list(self.case.span) if self.case.span else None,
            "verdict": self.verdict.to_dict(),
        }
        if with_text:
            row |= {"prompt": asked(completion.prompt), "text": completion.text}
        return row


class OwnGuard:
    """One of the user's guards as a column of the matrix, with its memory of nodes.

    All poison comes from one node, and is reviewed together with honest completions of the same
    prompts from other nodes, because a guard also looks for text that recurs only in one node's
    completions. Each kind of completion starts with an empty memory; otherwise, a node convicted of
    one attack would be rejected for the next.
    """

    def __init__(self, name: str, guard: Guard) -> None:
        self.name, self.guard = name, guard
        self._empty = guard.state_dict()

    def verdicts(
        self, kind: str, members: Sequence[Case], honest: Sequence[Case]
    ) -> Iterator[tuple[Sequence[Case], list[Verdict]]]:
        """Yield cases in batches with their verdicts; cases of the same prompt stay together."""
        self.guard.load_state_dict(self._empty)
        mixed = kind != HONEST and not kind.startswith(CONTROL)
        beside: dict[str, list[Completion]] = {}
        for number, case in enumerate(honest if mixed else ()):
            sent = _sent(case.completion, number)
            beside.setdefault(prompt_key(sent.prompt), []).append(sent)
        for places in whole_groups([group_of(case.completion) for case in members], GUARD_CHUNK):
            part = [members[place] for place in places]
            batch = [
                replace(members[place].completion, node=MALICIOUS)
                if mixed
                else _sent(members[place].completion, place)
                for place in places
            ]
            prompts = dict.fromkeys(prompt_key(completion.prompt) for completion in batch)
            others = [one for prompt in prompts for one in beside.get(prompt, ())]
            yield part, self.guard.review([*batch, *others]).verdicts[: len(part)]


def _sent(completion: Completion, number: int) -> Completion:
    """Give a completion a sender if it has none; honest nodes take turns."""
    return completion if completion.node else replace(completion, node=f"honest-{number % 3}")


def detect(
    cases: Mapping[str, Sequence[Case]],
    verifiers: Sequence[CompletionVerifier | OwnGuard],
    *,
    progress: Say | None = None,
) -> list[Row]:
    """Run each verifier on each kind of completion; failures of verifiers become abstentions."""
    rows: list[Row] = []
    for verifier in verifiers:
        for kind, members in cases.items():
            if isinstance(verifier, OwnGuard):
                batches = verifier.verdicts(kind, members, cases[HONEST])
            else:
                batches = _alone(verifier, members)
            done = 0
            with _expecting_rejections(kind):
                for part, verdicts in batches:
                    rows += [
                        Row(kind, verifier.name, case, verdict)
                        for case, verdict in zip(part, verdicts, strict=True)
                    ]
                    done += len(part)
                    if progress:
                        progress(kind, done, len(members))
    return rows


@contextmanager
def _expecting_rejections(kind: str) -> Iterator[None]:
    """While poison and controls are verified, leave out warnings that most of a batch is rejected:
    they say what to do if the completions are honest."""

    def keep(record: logging.LogRecord) -> bool:
        return kind == HONEST or "they are honest" not in " ".join(record.getMessage().split())

    logger = logging.getLogger("grpo_guard")
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def _alone(
    verifier: CompletionVerifier, members: Sequence[Case]
) -> Iterator[tuple[Sequence[Case], list[Verdict]]]:
    for start in range(0, len(members), CHUNK):
        part = members[start : start + CHUNK]
        yield part, supervised(verifier, [case.completion for case in part])


def rates(rows: Iterable[Row], task: str = "") -> list[Summary]:
    """Summarise rejections of the task ``task`` by kind and verifier, in order of appearance."""
    groups: dict[tuple[str, str], list[Row]] = {}
    members: dict[str, dict[str, int]] = {}
    for row in rows:
        groups.setdefault((row.kind, row.defence), []).append(row)
        if row.verdict.members:  # includes members that reject nothing
            members.setdefault(row.defence, {}).update(dict.fromkeys(_innermost(row.verdict), 0))
    return [
        _rate(kind, defence, task, group, members.get(defence, {}))
        for (kind, defence), group in groups.items()
    ]


def _innermost(verdict: Verdict) -> Iterator[str]:
    """Yield the names of the innermost members, or of the verifier if it has no members."""
    if not verdict.members:
        yield verdict.verifier
    for member in verdict.members:
        yield from _innermost(member)


def _rate(
    kind: str, defence: str, task: str, group: Sequence[Row], members: dict[str, int]
) -> Summary:
    rejected = sum(row.verdict.rejected for row in group)
    poison = any(row.case.span is not None for row in group)
    return Summary(
        attack=kind,
        defence=defence,
        task=task,
        metric=REJECTED,
        **Rate(rejected, len(group)).row(),
        rejected=rejected,
        abstained=sum(row.verdict.abstained for row in group),
        located=sum(row.located is True for row in group),
        earns_nothing=sum(row.earns_nothing for row in group) if poison else None,
        causes=Counter(r.verdict.cause.value for r in group if not r.verdict.accepted),
        members=members
        | Counter(n for r in group if r.verdict.rejected for n in r.verdict.deciding),
    )


def examples(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return, for each kind and verifier, the first rejected completion and an accepted poisoned
    one that are short enough to show.

    Of the accepted ones, the first without a finding is preferred, and next those that may earn a
    reward: these are the ones that the verifier did not see through.
    """
    chosen: dict[tuple[str, str, bool], Row] = {}
    for row in rows:
        key = (row.kind, row.defence, row.verdict.rejected)
        passed = row.verdict.accepted and row.case.span is not None
        short = len(row.case.completion.text) < 5000
        if short and (row.verdict.rejected or passed):
            before = chosen.setdefault(key, row)
            if passed and _seen_through(row) < _seen_through(before):
                chosen[key] = row
    return [_example(row) for row in chosen.values()]


def _seen_through(row: Row) -> tuple[bool, bool]:
    return bool(row.verdict.findings), row.earns_nothing


def _example(row: Row) -> dict[str, Any]:
    shown = row.to_dict(with_text=True)
    shown["verdict"] |= {
        "rejected_by": list(row.verdict.deciding),
        "deciding": deciding_p_values(row.verdict),
    }
    return shown


def matrix_table(rows: Sequence[Row]) -> Table:
    """Tabulate the rejections of each verifier by kind of completion."""
    cells = []
    for row in rates(rows):
        rate = Rate(row.rejected or 0, row.n)
        figures = f"{rate.count}/{rate.total}", rate.value_text, rate.interval_text
        cells.append([row.attack, row.defence, *figures, str(row.abstained)])
    return Table(HEADER, cells)
