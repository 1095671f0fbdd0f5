"""Selects completions for the results file, so that a person can judge the guard by its mistakes.

Three kinds: poison that a guard accepted, honest work that earned its reward and was rejected, and
poison that was rejected. A run keeps the first and the latest two of each, because what still
passes at the end is more telling than what passed before the guard had seen anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from grpo_guard.core.p_values import deciding_p_values
from grpo_guard.core.verdict import Verdict
from grpo_guard.evals.report.excerpt import Span, asked, window
from grpo_guard.evals.results import ACCEPTED_POISON, REJECTED_CORRECT, REJECTED_POISON

if TYPE_CHECKING:
    from grpo_guard.evals.swarm.record import Submitted

PER_KIND: Final = 3
# A megabyte-long completion must not bloat the results file, so texts are cut around their marks.
_LONGEST_TEXT: Final = 4000
_LONGEST_PROMPT: Final = 2000
_LONGEST_MESSAGE: Final = 600
_MOST_FINDINGS: Final = 8


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
