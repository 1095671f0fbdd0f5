"""The record of a swarm's round, with completions that show the guard's mistakes to a person.

The examples are of three kinds: poison that a guard accepted, honest work that earned its reward
and was rejected, and poison that was rejected. A run keeps the first and the latest two of each,
because what still passes at the end tells more than what passed at the start.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from grpo_guard.core.completion import Completion
from grpo_guard.core.p_values import deciding_p_values
from grpo_guard.core.verdict import Verdict
from grpo_guard.evals.report.excerpt import Span, asked, window
from grpo_guard.evals.results import ACCEPTED_POISON, REJECTED_CORRECT, REJECTED_POISON

PER_KIND: Final = 3
# A megabyte-long completion must not bloat the results file, so texts are cut around their marks.
_LONGEST_TEXT: Final = 4000
_LONGEST_PROMPT: Final = 2000
_LONGEST_MESSAGE: Final = 600
_MOST_FINDINGS: Final = 8


@dataclass(frozen=True, slots=True)
class Submitted:
    """An item of the exchange: a completion, whether it is poisoned, and the span of the poison.

    ``malicious`` describes the sender, who also sends completions without poison.
    """

    completion: Completion
    poisoned: bool
    span: tuple[int, int] | None
    reward: float
    malicious: bool = False
    withheld: bool = False
    """Whether the sender withheld the completion, leaving its slot empty for all other nodes."""


@dataclass(frozen=True, slots=True)
class Round:
    """One iteration's result. Rates are over the honest nodes' completions, before the update.

    Verdicts are those of the first honest node; if nodes have their own guards, ``rejected_by``
    counts how many honest completions each guard rejected. ``cover`` counts malicious nodes'
    poison-free completions. ``asr`` is the attack's success rate among the honest nodes'
    completions of the round, or among as many probes.
    """

    iteration: int
    asr: float
    honest_reward: float
    mean_tokens: float
    grad_norm: float
    seconds: float
    guard_seconds: float
    honest: int
    honest_correct: int
    poisoned: int
    rejected_honest: int
    rejected_honest_correct: int
    rejected_poisoned: int
    abstained: int
    shown: tuple[dict[str, Any], ...]
    """The first completion of each kind of example; see `examples_of`."""
    cover: int = 0
    rejected_cover: int = 0
    abstained_poisoned: int = 0
    rejected_by: tuple[int, ...] = ()
    excluded: tuple[str, ...] = ()
    withheld: int = 0
    """Number of slots left empty by malicious nodes; they count neither as poison nor as cover."""
    honest_rejected_for: dict[str, int] = field(default_factory=dict)
    """Rejections of honest completions by each verifier; several can reject the same one."""


def record(
    iteration: int,
    submitted: Sequence[Submitted],
    verdicts: list[Verdict] | None,
    *,
    asr: float,
    grad_norm: float,
    seconds: float,
    guard_seconds: float,
    rejected_by: tuple[int, ...] = (),
    excluded: tuple[str, ...] = (),
) -> Round:
    """Build a round's record from its completions and, with a guard, their verdicts."""
    by_item: Sequence[Verdict | None] = verdicts or [None] * len(submitted)
    pairs = list(zip(submitted, by_item, strict=True))
    honest = [item for item in submitted if not item.malicious]
    judged = [(item, verdict) for item, verdict in pairs if verdict is not None]
    rejected = [(item, verdict) for item, verdict in judged if verdict.rejected]
    poison = [(item, verdict) for item, verdict in rejected if item.poisoned]
    refused = [item for item, _ in rejected if not item.malicious]
    poisoned = sum(item.poisoned for item in submitted)
    withheld = sum(item.withheld for item in submitted)
    return Round(
        iteration=iteration,
        asr=asr,
        honest_reward=sum(item.reward for item in honest) / len(honest),
        mean_tokens=sum(len(i.completion.completion_ids or ()) for i in honest) / len(honest),
        grad_norm=grad_norm,
        seconds=seconds,
        guard_seconds=guard_seconds,
        honest=len(honest),
        honest_correct=sum(item.reward > 0 for item in honest),
        poisoned=poisoned,
        rejected_honest=len(refused),
        rejected_honest_correct=sum(item.reward > 0 for item in refused),
        rejected_poisoned=len(poison),
        abstained=sum(verdict.abstained and not item.withheld for item, verdict in judged),
        shown=examples_of(iteration, pairs),
        cover=len(submitted) - len(honest) - poisoned - withheld,
        rejected_cover=len(rejected) - len(refused) - len(poison),
        abstained_poisoned=sum(verdict.abstained and item.poisoned for item, verdict in judged),
        rejected_by=rejected_by,
        excluded=excluded,
        honest_rejected_for=dict(
            Counter(
                member.verifier
                for item, verdict in rejected
                for member in verdict.members or (verdict,)
                if member.rejected and not item.malicious
            )
        ),
        withheld=withheld,
    )


def examples_of(
    iteration: int, pairs: Sequence[tuple[Submitted, Verdict | None]]
) -> tuple[dict[str, Any], ...]:
    """Return the first completion of each kind in a round, in the form of results.json.

    ``iteration`` counts from 0. Of accepted poison, the first that earned a reward is preferred:
    the rest teaches nothing.
    """
    found: dict[str, tuple[Submitted, Verdict]] = {}
    for item, verdict in pairs:
        kind = None if verdict is None else _kind(item, verdict)
        if verdict is not None and kind is not None:
            before, _ = found.setdefault(kind, (item, verdict))
            if kind == ACCEPTED_POISON and item.reward > 0 >= before.reward:
                found[kind] = (item, verdict)
    return tuple(_entry(iteration, kind, *pair) for kind, pair in found.items())


def _kind(item: Submitted, verdict: Verdict) -> str | None:
    if item.poisoned:
        if verdict.abstained:
            return None
        return REJECTED_POISON if verdict.rejected else ACCEPTED_POISON
    if verdict.rejected and item.reward > 0 and not item.malicious:
        return REJECTED_CORRECT
    return None


def kept(before: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a run's examples after one more round."""
    after = list(before)
    for example in new:
        same = [other for other in after if other["kind"] == example["kind"]]
        if len(same) >= PER_KIND:
            after.remove(same[1])
        after.append(example)
    return after


def _entry(iteration: int, kind: str, item: Submitted, verdict: Verdict) -> dict[str, Any]:
    completion = item.completion
    findings = verdict.findings[:_MOST_FINDINGS]
    spans = [f.char_span for f in findings if f.char_span]
    focus = item.span or (spans or [(0, 0)])[0]
    start, end = window(len(completion.text), focus, _LONGEST_TEXT)
    return {
        "kind": kind,
        "prompt": asked(completion.prompt)[:_LONGEST_PROMPT],
        "text": completion.text[start:end],
        "left_out": [start, len(completion.text) - end],
        "span": _moved(item.span, start, end),
        "node": completion.node,
        "iteration": iteration + 1,
        "verdict": {
            "outcome": verdict.outcome.value,
            "cause": verdict.cause.value,
            "verifier": verdict.verifier,
            "p_value": verdict.p_value,
            "findings": [
                {
                    "kind": f.kind,
                    "message": f.message[:_LONGEST_MESSAGE],
                    "char_span": _moved(f.char_span, start, end),
                }
                for f in findings
            ],
            "rejected_by": [m.verifier for m in verdict.members if m.rejected],
            "deciding": deciding_p_values(verdict),
        },
    }


def _moved(span: Span | None, start: int, end: int) -> list[int] | None:
    """Shift the span into the part that is kept; None if none of the span is kept."""
    if span is None:
        return None
    low, high = max(span[0], start), min(span[1], end)
    return [low - start, high - start] if low < high else None
