"""Rollouts in several segments: which completions belong together, and one verdict for all of them.

An agent's rollout can arrive as several completions: an agent loop with several outputs, a
compacted context, a tree of branches. The trainer grades the rollout once and trains on every
segment. If each segment counted separately, such a rollout would count several times in its group's
mean, and the evidence against its sender would depend on how the rollout was cut.
"""

from collections.abc import Hashable, Sequence
from typing import Final, TypeAlias

from grpo_guard.core.completion import Completion
from grpo_guard.core.prompts import prompt_key
from grpo_guard.core.verdict import Finding, Verdict

ROLLOUT_VERIFIER: Final = "rollout"
"""Verifier name and finding kind of a verdict copied from another segment."""
Key: TypeAlias = tuple[str | None, str | int | None, str]
_MOST_WORDS: Final = 300


def rollout_of(completion: Completion) -> Key | None:
    """Return the key shared by the segments of a rollout; None for a completion without a rollout.

    The key contains the node, so that no node can join another node's rollout.
    """
    if completion.rollout is None:
        return None
    return completion.node, completion.group, completion.rollout


def rollouts_of(batch: Sequence[Completion]) -> list[Hashable] | None:
    """Return the rollout key of each completion, [n]; None if no completion names a rollout."""
    found: list[Hashable] = [rollout_of(completion) for completion in batch]
    return found if any(key is not None for key in found) else None


def groups_of(batch: Sequence[Completion], rollouts: Sequence[Hashable] | None) -> list[Hashable]:
    """Return the group of each completion, [n]: the key of its prompt.

    All segments of a rollout belong to the group of the segment with the shortest prompt, because
    the prompts of later segments repeat what came before them.
    """
    prompts = [prompt_key(completion.prompt) for completion in batch]
    if rollouts is None:
        return list(prompts)
    first: dict[Hashable, tuple[int, str]] = {}
    for key, prompt, completion in zip(rollouts, prompts, batch, strict=True):
        if key is not None:
            candidate = len(completion.prompt), prompt  # of characters, or of messages
            first[key] = min(first.get(key, candidate), candidate)
    return [
        prompt if key is None else first[key][1]
        for key, prompt in zip(rollouts, prompts, strict=True)
    ]


def decided(batch: Sequence[Completion], verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the verdicts, [n], after the worst segment has decided for each rollout.

    A rollout is rejected if any of its segments is, and otherwise abstained on if any segment is,
    because the trainer trains on all segments for a single reward. A segment with a better verdict
    gets the worst segment's outcome and cause, with its own verdict as the only member.
    """
    rollouts = rollouts_of(batch)
    if rollouts is None or all(verdict.accepted for verdict in verdicts):
        return list(verdicts)
    worst: dict[Hashable, Verdict] = {}
    for key, verdict in zip(rollouts, verdicts, strict=True):
        if key is not None:
            worst[key] = max(worst.get(key, verdict), verdict, key=badness)
    return [
        verdict if key is None else _with_worst_outcome(verdict, worst[key])
        for key, verdict in zip(rollouts, verdicts, strict=True)
    ]


def badness(verdict: Verdict) -> tuple[int, bool]:
    """Sort key of a verdict, from accepted to rejected. Among equal outcomes, a segment's own
    verdict comes after a copied verdict."""
    outcome = 2 if verdict.rejected else 1 if verdict.abstained else 0
    return outcome, verdict.verifier != ROLLOUT_VERIFIER


def _with_worst_outcome(own: Verdict, worst: Verdict) -> Verdict:
    if badness(own)[0] >= badness(worst)[0]:
        return own
    what = "rejected" if worst.rejected else "not judged"
    message = f"another segment of its rollout was {what}: {worst.reason}"[:_MOST_WORDS]
    return Verdict(
        worst.outcome,
        worst.cause,
        ROLLOUT_VERIFIER,
        findings=(Finding(ROLLOUT_VERIFIER, message),),
        seconds=own.seconds,
        members=(own,),
    )
