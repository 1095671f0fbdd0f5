"""Atropos: one group of scored rollouts, judged and put right.

A group is lists of one length: ``tokens`` (ids of the whole sequence), ``masks`` (-100, or the
token's own id where it trains), ``scores``, and more. No row can leave it: the server waits for a
group of the size that its environment has. What the guard leaves out gets the mean of those that
stay, masks and weights of nothing, and the trainer's mark for an advantage of 0; so the group's
mean is what it is without it.

Traps that are closed here: special tokens are trained on and stand in no text; a mask is the
*label* that the trainer learns, so one that names another token teaches what nobody judged; a
sender's own ``advantages`` would stand in place of the scores; ids outside the vocabulary end the
trainer even where they are masked; one score that is NaN is its whole group's, and one log-prob or
temperature that is NaN its whole batch's. Scores are their sender's word: the guard judges
completions, not graders. Written against atroposlib 0.4.0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from grpo_guard.adapters.received import Row, claimed
from grpo_guard.adapters.reward_function import chosen_policy, without_lengths
from grpo_guard.adapters.sequences import review_turns, rows_from_ids
from grpo_guard.adapters.transcript import spans_given
from grpo_guard.completion import shown
from grpo_guard.detokenizer import Detokenizer
from grpo_guard.graders import LARGEST_REWARD
from grpo_guard.guard import Guard, Review
from grpo_guard.settlement import mean_of_kept
from grpo_guard.verdict import Verdict, reject

Group: TypeAlias = Mapping[str, Any]
MASKED: Final = -100
# What stands at masked places of ``inference_logprobs``; and below the other bound the ratio to the
# policy is infinite in float32, which times a mask of 0 is NaN.
NO_LOGPROB: Final = 1.0
LEAST_LOGPROB: Final = -80.0
_SETS_TO_ZERO: Final = "set_advantage_to_zero"  # an override that the bundled trainer knows
_FILLED: Final = (0, 0)
_CANNOT: Final = without_lengths("Atropos")


class GroupError(ValueError):
    """A group that is none: its lists have not one length."""


@dataclass(frozen=True)
class GroupGuard:
    """Judges groups.

    Args:
        guard: Verifier, policy and ledger.
        tokenizer: The policy's, or a `Detokenizer` with the special tokens that a turn may hold.
            Rows of others that hold any but one closing token a turn are malformed.
        vocabulary: Ids are below it; None = not checked, for groups that one's own engine made.
        longest: Most tokens of a sequence; None = not checked.
        claims: Whether a row's ``overrides["node"]`` says who wrote it, as in an environment of
            one's own that collects what others sent.

    Raises:
        FrameworkError: the policy asks for what Atropos cannot do.
    """

    guard: Guard
    tokenizer: Any
    vocabulary: int | None = None
    longest: int | None = None
    claims: bool = True

    def __post_init__(self) -> None:
        policy = chosen_policy(self.guard.policy, "Atropos", _CANNOT)
        object.__setattr__(self, "guard", self.guard.under(policy))
        object.__setattr__(self, "tokenizer", Detokenizer.of(self.tokenizer))

    def settle(
        self, group: Group, *, round: int | None = None, node: str | None = None
    ) -> tuple[dict[str, Any], Review]:
        """The group as it may be trained on, and what was found; ``group`` is not changed.

        Args:
            group: As an environment makes it or posts it.
            round: The trainer's step.
            node: Who sent all of it, as you know it; None = see ``claims``.

        Raises:
            GroupError: it is no group.
            AbstainError: as the policy has it.
        """
        size = group_size(group)
        own = [self._is_own(group, i, node) for i in range(size)]
        problems = [self._problem(group, i, own[i]) for i in range(size)]
        turns = [
            (i, row)
            for i, problem in enumerate(problems)
            for row in self._rows(group, i, problem, round, node, own[i])
        ]
        review = review_turns(self.guard, turns)
        scores = [_number(score) for score in group["scores"]]
        kept = self.guard.settle(
            # What a sender's grader has no number for earns what a rejected row does.
            [0.0 if score is None else score for score in scores],
            replace(review, verdicts=_with_unscored(review.verdicts, scores)),
        )
        # What was put right is nobody's work: whatever the policy, it is not trained on.
        out = [k is None or p is not None for k, p in zip(kept, problems, strict=True)]
        return _put_right(group, scores, kept, out, problems), review

    def _is_own(self, group: Group, i: int, node: str | None) -> bool:
        """Whether this environment's own engine drew a row, whose special tokens are no attack."""
        named = claimed(_of_row(group.get("overrides"), i), "node")
        return self.claims and node is None and named is None

    def _problem(self, group: Group, i: int, own: bool) -> str | None:
        """Why a row cannot be what it says; None where it can."""
        tokens, masks = group["tokens"][i], group["masks"][i]
        if not isinstance(tokens, Sequence) or isinstance(tokens, str) or not tokens:
            return f"tokens: expected a list of ids, got {shown(tokens)}"
        if self.longest is not None and len(tokens) > self.longest:
            return f"tokens: expected at most {self.longest}, got {len(tokens)}"
        if not isinstance(masks, Sequence) or len(masks) != len(tokens):
            return f"masks: expected {len(tokens)}, one per token, got {shown(masks)}"
        most = math.inf if self.vocabulary is None else self.vocabulary
        if not all(type(token) is int and 0 <= token < most for token in tokens):
            return f"tokens: expected ids from 0 to {most}, got others"
        if not all(m in (MASKED, token) for m, token in zip(masks, tokens, strict=True)):
            return f"masks: expected {MASKED} or the token's own id, got another token's"
        given = spans_given([mask != MASKED for mask in masks], len(tokens))
        if not own and (problem := self.tokenizer.problem(tokens, given)):
            return f"tokens: {problem}"
        claims = _of_row(group.get("inference_logprobs"), i)
        if not isinstance(claims, list | tuple | None):
            return f"inference_logprobs: expected a list, got {shown(claims)}"
        if not all(
            _number(x) is not None and LEAST_LOGPROB <= x <= NO_LOGPROB for x in claims or ()
        ):
            return f"inference_logprobs: expected numbers from {LEAST_LOGPROB} to {NO_LOGPROB}"
        if not _sane_temperature(_of_row(group.get("overrides"), i)):
            return "overrides: expected a temperature > 0"
        return None

    def _rows(
        self,
        group: Group,
        i: int,
        problem: str | None,
        round: int | None,
        node: str | None,
        is_own: bool,
    ) -> list[Row]:
        own = _of_row(group.get("overrides"), i)
        ids, masks = ([], []) if problem else (group["tokens"][i], group["masks"][i])
        return rows_from_ids(
            ids,
            [mask != MASKED for mask in masks],
            self.tokenizer,
            own=is_own,
            log_probs=None if problem else _of_row(group.get("inference_logprobs"), i),
            finish_reason=claimed(own, "finish_reason"),
            malformed=problem,
            node=claimed(own, "node") if self.claims and node is None else node,
            round=round,
            slot=i,
        )


def group_size(group: Group) -> int:
    """How many rows a group has; raises GroupError where it is none."""
    if not isinstance(group, Mapping):
        raise GroupError(f"group: expected an object, got {type(group).__name__}")
    lists = [group.get(name) for name in ("tokens", "masks", "scores")]
    if not all(isinstance(rows, list | tuple) for rows in lists):
        got = ", ".join(type(rows).__name__ for rows in lists)
        raise GroupError(f"tokens, masks, scores: expected lists, got {got}")
    sizes = {len(rows) for rows in lists if rows is not None}
    if len(sizes) != 1 or not all(sizes):
        got = ", ".join(str(len(rows)) for rows in lists if rows is not None)
        raise GroupError(f"tokens, masks, scores: expected equally many rows, got {got}")
    for name in ("advantages", "ref_logprobs"):
        rows = group.get(name) or []
        if not isinstance(rows, list | tuple) or not all(map(_are_numbers, rows)):
            raise GroupError(f"{name}: expected lists of finite numbers")
    for name in ("generation_params", "group_overrides"):
        if not _sane_temperature(group.get(name)):
            raise GroupError(f"{name}: expected a temperature > 0")
    return sizes.pop()


def _are_numbers(row: Any) -> bool:
    return isinstance(row, list | tuple) and all(_number(value) is not None for value in row)


def _sane_temperature(given: Any) -> bool:
    """Whether a trainer can divide by it; True where there is none."""
    if not isinstance(given, Mapping) or "temperature" not in given:
        return True
    temperature = _number(given["temperature"])
    return temperature is not None and temperature > 0


def _put_right(
    group: Group,
    scores: Sequence[float | None],
    kept: Sequence[float | None],
    out: Sequence[bool],
    problems: Sequence[str | None],
) -> dict[str, Any]:
    if not any(out) and list(scores) == list(kept):
        return dict(group)
    rest = [k for k, left_out in zip(kept, out, strict=True) if k is not None and not left_out]
    mean = mean_of_kept(rest)
    rows = range(len(out))
    tokens = [list(_FILLED) if problems[i] else group["tokens"][i] for i in rows]
    made = {
        **group,
        "tokens": tokens,
        "masks": [[MASKED] * len(tokens[i]) if out[i] else group["masks"][i] for i in rows],
        "scores": [mean if out[i] else kept[i] for i in rows],
        # Of what was left out, the sender's own would still have counted.
        "advantages": None,
        "overrides": [
            {_SETS_TO_ZERO: True} if out[i] else _mapping(_of_row(group.get("overrides"), i))
            for i in rows
        ],
    }
    for name, filler in (("inference_logprobs", NO_LOGPROB), ("ref_logprobs", 0.0)):
        if group.get(name):
            made[name] = [
                [filler] * len(tokens[i]) if out[i] else _of_row(group[name], i) or [] for i in rows
            ]
    for name in ("distill_token_ids", "distill_logprobs"):  # a teacher's, which has its own loss
        if group.get(name):
            made[name] = [[] if out[i] else _of_row(group[name], i) or [] for i in rows]
    if group.get("messages"):
        said = group["messages"]
        made["messages"] = [[] if problems[i] else _of_row(said, i) or [] for i in rows]
    return made


def _mapping(given: Any) -> dict[str, Any]:
    return dict(given) if isinstance(given, Mapping) else {}


def _of_row(rows: Any, i: int) -> Any:
    return rows[i] if isinstance(rows, list | tuple) and i < len(rows) else None


def _number(score: Any) -> float | None:
    known = isinstance(score, int | float) and not isinstance(score, bool)
    return float(score) if known and abs(score) <= LARGEST_REWARD else None


def _with_unscored(verdicts: Sequence[Verdict], scores: Sequence[float | None]) -> list[Verdict]:
    return [
        reject("reward", message="no finite score") if score is None else verdict
        for verdict, score in zip(verdicts, scores, strict=True)
    ]
