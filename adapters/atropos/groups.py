"""Atropos: judge and repair one group of scored rollouts.

A group holds lists of equal length: ``tokens`` (ids of the whole sequence), ``masks`` (-100, or the
token's own id if it is trained on), ``scores``, and more (`grpo_guard.adapters.atropos.fields`). No
row can leave its group: the server waits for a group of the size its environment declared. A row
that the guard leaves out gets the mean score of the remaining rows, the trainer's mark for an
advantage of 0, and a mask over all but its last token, so the group's mean is the same as without
the row. One token has to remain, because the bundled trainer raises on a micro-batch with no
trained token, and an attacker could fill whole micro-batches with poison.

This prevents four attacks: special tokens are trained on but do not appear in any text; a mask is
the *label* that the trainer learns, so a mask that names a different token teaches something that
was never judged; ids outside the vocabulary crash the trainer even if they are masked; a single NaN
score makes its whole group NaN. If other nodes wrote a row, they may also have written its prompt,
which then excuses nothing. Written against atroposlib 0.4.0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from grpo_guard.adapters.atropos.fields import (
    MASKED,
    NO_LOGPROB,
    SETS_TO_ZERO,
    TEMPERATURES,
    Group,
    GroupError,
    Range,
    group_size,
    handed_on,
    of_row,
    problem_of_row,
)
from grpo_guard.adapters.plain_numbers import number_from
from grpo_guard.adapters.received import Row, claimed
from grpo_guard.adapters.reward_function import fitted, without_lengths
from grpo_guard.adapters.sequences import review_turns, rows_from_ids, spans_given
from grpo_guard.core.completion import shown
from grpo_guard.core.detokenizer import Detokenizer
from grpo_guard.core.verdict import reject
from grpo_guard.guard import Guard, Review
from grpo_guard.guard.graders import LARGEST_REWARD
from grpo_guard.guard.settled_groups import SettledGroups, settle_groups
from grpo_guard.guard.settlement import refuse_abstentions

__all__ = ["GroupError", "GroupGuard", "group_size"]

LARGEST_ALONE: Final = 1.0
"""Maximum absolute score from another node in a group of one, where the bundled trainer uses the
score as the advantage."""
_CANNOT: Final = without_lengths("Atropos")


@dataclass(frozen=True)
class GroupGuard:
    """Judges and settles groups.

    Args:
        guard: The guard that judges and settles.
        tokenizer: The policy's tokenizer, or a `Detokenizer` with the special tokens that a turn
            may contain. Rows of other nodes are malformed if they contain other special tokens,
            except one closing token per turn.
        vocabulary: Number of token ids; larger ids are malformed. None to skip this check, for
            groups from your own engine.
        longest: Maximum number of tokens per sequence; None for no limit.
        own: Whether the groups come from your own environment, which may also collect rows from
            other nodes: ``overrides["node"]`` then names a row's author. False if other nodes post
            them.
        trusts_prompts: Whether requests in a prompt excuse a completion even if another node wrote
            the row, for example one of your own environments on another machine.
        temperatures: Range of temperatures that nodes may have sampled at, [least, most].

    Raises:
        FrameworkError: the policy asks for something that Atropos cannot do.
        ValueError: ``temperatures`` is not a range of positive numbers.
    """

    guard: Guard
    tokenizer: Any
    vocabulary: int | None = None
    longest: int | None = None
    own: bool = True
    trusts_prompts: bool = False
    temperatures: Range = TEMPERATURES

    def __post_init__(self) -> None:
        least, most = self.temperatures
        if not 0 < least <= most < math.inf:
            raise ValueError(
                f"GroupGuard.temperatures: expected 0 < least <= most, got {self.temperatures!r}"
            )
        object.__setattr__(self, "guard", fitted(self.guard, "Atropos", _CANNOT))
        object.__setattr__(self, "tokenizer", Detokenizer.of(self.tokenizer))

    def settle(
        self, group: Group, *, round: int | None = None, node: str | None = None
    ) -> tuple[dict[str, Any], Review]:
        """Return a copy of the group that is safe to train on, and the group's review. ``round`` is
        the trainer's step, and ``node`` the proven sender of the whole group; None if unknown, see
        ``own``. Raises GroupError unless ``group`` is a valid group, and AbstainError if the policy
        says to raise, or the guard abstained on too many rows."""
        size = group_size(group, self.temperatures)
        nodes = [self._node(group, i, node) for i in range(size)]
        problems = [self._problem(group, i, nodes[i]) for i in range(size)]
        turns = [
            (i, row)
            for i, problem in enumerate(problems)
            for row in self._rows(group, i, problem, nodes[i], round)
        ]
        theirs = not self.own or any(claim is not None for claim in nodes)
        made = handed_on(group, problems, theirs=theirs)
        review = review_turns(self.guard, turns)
        if self.guard.policy.watches:
            refuse_abstentions(self.guard.policy, review.verdicts)
            return _watched(group, made, problems, theirs=theirs), review
        most = LARGEST_ALONE if theirs and size == 1 else LARGEST_REWARD
        scores = [number_from(score, -most, most) for score in group["scores"]]
        unscored = reject("reward", message=f"no finite score up to {most:g}")
        verdicts = [
            unscored if score is None else verdict
            for verdict, score in zip(review.verdicts, scores, strict=True)
        ]
        settled = settle_groups(
            self.guard,
            # A row without a valid score earns the same as a rejected row.
            [0.0 if score is None else score for score in scores],
            replace(review.regrouped(None), verdicts=verdicts),
            # A repaired row is not its author's work, so it is never trained on.
            out=[
                problem is not None or not _trains(masks)
                for problem, masks in zip(problems, made["masks"], strict=True)
            ],
        )
        return _settled(made, settled, problems, changed=scores != settled.kept), review

    def _node(self, group: Group, i: int, node: str | None) -> Any:
        """The author of a row; a value of any type if the row itself names its author."""
        if node is not None or not self.own:
            return node
        return claimed(of_row(group.get("overrides"), i), "node")

    def _drawn_here(self, node: Any) -> bool:
        """Whether this environment's own engine sampled a row: special tokens are no attack."""
        return self.own and node is None

    def _problem(self, group: Group, i: int, node: Any) -> str | None:
        """Describe why a row's fields are invalid; None if they are valid."""
        tokens, masks = group["tokens"][i], group["masks"][i]
        if not isinstance(tokens, list | tuple) or len(tokens) < 2:
            return f"tokens: expected a list of at least two ids, got {shown(tokens)}"
        if self.longest is not None and len(tokens) > self.longest:
            return f"tokens: expected at most {self.longest}, got {len(tokens)}"
        if not isinstance(masks, list | tuple) or len(masks) != len(tokens):
            return f"masks: expected {len(tokens)}, one per token, got {shown(masks)}"
        most = math.inf if self.vocabulary is None else self.vocabulary
        if not all(type(token) is int and 0 <= token < most for token in tokens):
            return f"tokens: expected ids from 0 to {most}, got others"
        if not all(
            type(m) is int and m in (MASKED, token) for m, token in zip(masks, tokens, strict=True)
        ):
            return f"masks: expected {MASKED} or the token's own id, got another token's"
        given = spans_given([mask != MASKED for mask in masks], len(tokens))
        if not self._drawn_here(node) and (problem := self.tokenizer.problem(tokens, given)):
            return f"tokens: {problem}"
        return problem_of_row(group, i, self.temperatures)

    def _rows(
        self, group: Group, i: int, problem: str | None, node: Any, round: int | None
    ) -> list[Row]:
        own = of_row(group.get("overrides"), i)
        ids, masks = ([], []) if problem else (group["tokens"][i], group["masks"][i])
        return rows_from_ids(
            ids,
            [mask != MASKED for mask in masks],
            self.tokenizer,
            own=self._drawn_here(node),
            log_probs=None if problem else of_row(group.get("inference_logprobs"), i),
            finish_reason=claimed(own, "finish_reason"),
            malformed=problem,
            node=node,
            prompt_trusted=self.trusts_prompts or self._drawn_here(node),
            round=round,
            slot=i,
        )


def _watched(
    group: Group, made: dict[str, Any], problems: Sequence[str | None], *, theirs: bool
) -> dict[str, Any]:
    """The group to pass on under a guard that only watches. This node's own groups are unchanged;
    in other nodes' groups, malformed rows are not trained on, because a trainer could not use
    them."""
    if not theirs:
        return dict(group)
    scores = list(group["scores"])
    out = [
        problem is not None or number_from(score, -LARGEST_REWARD, LARGEST_REWARD) is None
        for problem, score in zip(problems, scores, strict=True)
    ]
    return _settled(made, SettledGroups.of(scores, out=out), problems, changed=False)


def _settled(
    made: dict[str, Any],
    settled: SettledGroups,
    problems: Sequence[str | None],
    *,
    changed: bool,
) -> dict[str, Any]:
    """Fill in the settled rewards of a group, and neutralise its left-out rows."""
    out = settled.left_out
    rows = range(len(out))
    made["scores"] = settled.filled
    if not any(out) and not changed:
        return made
    tokens = made["tokens"]
    made["masks"] = [_left_out(tokens[i]) if out[i] else made["masks"][i] for i in rows]
    # The sender's own values for left-out rows would otherwise still count.
    made["advantages"] = None
    own = made.get("overrides")
    made["overrides"] = [{SETS_TO_ZERO: True} if out[i] else of_row(own, i) or {} for i in rows]
    for name, filler in (
        ("inference_logprobs", [NO_LOGPROB]),
        ("ref_logprobs", [0.0]),
        ("distill_token_ids", []),  # from a teacher, with its own loss
        ("distill_logprobs", []),
        ("messages", []),
    ):
        if given := made.get(name):
            emptied = problems if name == "messages" else out
            made[name] = [
                filler * len(tokens[i]) if emptied[i] else of_row(given, i) or [] for i in rows
            ]
    return made


def _trains(masks: Sequence[int]) -> bool:
    """Whether any token of a row is trained on. The first does not count, because nothing before it
    could predict it."""
    return any(mask != MASKED for mask in masks[1:])


def _left_out(tokens: Sequence[int]) -> list[int]:
    return [MASKED] * (len(tokens) - 1) + [tokens[-1]]
