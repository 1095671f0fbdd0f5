"""Tinker cookbook: an `EnvGroupBuilder` whose groups are guarded.

    class Guarded(GuardedGroups, MyGroupBuilder):
        guard, tokenizer = presets.failures_only(), my_tokenizer

List the mixin before the builder. The cookbook's advantage is the reward minus the group's mean,
and no trajectory can leave its group. So a trajectory that the guard leaves out gets the mean
reward of the remaining ones: its advantage is then 0, and the group's mean is what it would be
without it. Its turns carry the cookbook's own mark for masked turns, so a KL penalty does not train
on them either.

Rewards from `Env.step` count as well: the guard settles the total, and adjusts the group reward to
match. A ``TerminationRewardPolicy`` with ``zero_reward_on_limit`` runs later and would set the
rewards of left-out trajectories to 0; leave it off. Under a process executor, each process has its
own guard. Tested with tinker-cookbook 0.6.1: rl/{types,rollouts,data_processing}.py.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

from grpo_guard.adapters.received import Row, read, received
from grpo_guard.adapters.reward_function import (
    fitted,
    graded,
    without_lengths,
)
from grpo_guard.adapters.sequences import line_before, review_turns
from grpo_guard.core.detokenizer import Detokenizer
from grpo_guard.core.given import Given
from grpo_guard.guard import Guard
from grpo_guard.guard.graders import FAILED, finite_or_none
from grpo_guard.guard.settled_groups import settle_groups

MASKED: Final = "parse_error_masked"
"""The metric that makes the cookbook mask a transition's tokens."""
_CANNOT: Final = without_lengths("Tinker cookbook")
# Values of a trajectory's `StopReason` meaning that it was cut off rather than ended by the policy.
_CUT_OFF: Final = (
    "max_turns",
    "max_tokens",
    "max_sampled_tokens",
    "max_tool_calls",
    "context_overflow",
    "rollout_timeout",
)


class GuardedGroups:
    """Mixin that guards an `EnvGroupBuilder`; list it before the builder in a class's bases, and
    set ``guard`` and ``tokenizer`` in the class.

    An environment's ``node``, if it has one, names the author of its trajectory. The trajectory is
    then malformed if its ids contain special tokens other than one that closes a turn; to permit
    further special tokens, declare them in a `Detokenizer` and use that as ``tokenizer``.

    Raises:
        FrameworkError: the policy asks for something that the cookbook cannot do.
        AbstainError: the policy says to raise, or the guard abstained on too many trajectories;
            strategies that catch errors in a group skip that group.
    """

    guard: ClassVar[Guard]
    tokenizer: ClassVar[Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "guard" in vars(cls):
            cls.guard = fitted(cls.guard, "Tinker cookbook", _CANNOT)

    async def compute_group_rewards(
        self, trajectory_group: list[Any], env_group: Sequence[Any]
    ) -> list[tuple[float, dict[str, float | int]]]:
        """Return the final reward and metrics of each trajectory. Called by the cookbook."""
        turns = [
            (i, row)
            for i, (trajectory, env) in enumerate(zip(trajectory_group, env_group, strict=True))
            for row in self._rows(trajectory, getattr(env, "node", None))
        ]
        # The review comes first, so that nothing gets through if the guard fails.
        review = await asyncio.to_thread(review_turns, self.guard, turns)
        grade = super().compute_group_rewards  # type: ignore[misc]
        result = await graded(self.guard, type(self).__name__, grade, trajectory_group, env_group)
        given = [None] * len(trajectory_group) if result is FAILED else list(result)
        steps = [sum(turn.reward for turn in one.transitions) for one in trajectory_group]
        totals = [None if g is None else s + g[0] for s, g in zip(steps, given, strict=True)]
        if not self.guard.policy.watches:
            totals = finite_or_none(totals)
        settled = settle_groups(self.guard, totals, review.regrouped(None))
        answers: list[tuple[float, dict[str, float | int]]] = []
        for i, trajectory in enumerate(trajectory_group):
            reward = settled.kept[i]
            own, logged = given[i] or (0.0, {})
            if reward is None:
                final = settled.mean() - _take_out(trajectory)
            else:  # a reward that is kept stays the same to the last bit
                final = own if reward is totals[i] or reward == totals[i] else reward - steps[i]
            verdict = review.verdicts[i]
            figures = {
                "guard/reject": float(verdict.rejected),
                "guard/abstain": float(verdict.abstained),
                "guard/left_out": float(reward is None),
            }
            answers.append((final, dict(logged) | figures))
        return answers

    def _rows(self, trajectory: Any, node: Any) -> Iterator[Row]:
        """Yield one completion per action, with the observation that it answers as its prompt."""
        turns, detokenizer = trajectory.transitions, Detokenizer.of(self.tokenizer)
        for i, turn in enumerate(turns):
            last = i == len(turns) - 1
            cut = read(_cut_off, turn.ac.stop_reason, trajectory.stop_reason) is True
            prompt, ids = read(_ids, turn.ob), turn.ac.tokens
            tokens: Any = {"prompt_ids": prompt, "sampler_logprobs": turn.ac.maybe_logprobs}
            tokens["completion_ids"] = None if isinstance(ids, list) and not ids else ids
            if node is not None:
                tokens |= _line_before(prompt, ids, tokens["sampler_logprobs"], detokenizer)
            yield received(
                read(detokenizer.plain, () if prompt is None else prompt),
                read(detokenizer.plain, ids) if node is None else "",
                detokenizer=None if node is None else detokenizer,
                decoded=node is None,
                **tokens,
                finish_reason="length" if last and cut else None,
                prompt_trusted=node is None,  # another node's observation is also a claim
                node=node,
            )
        if not turns:
            yield received("", "", node=node)


def _line_before(prompt: Any, ids: Any, log_probs: Any, detokenizer: Detokenizer) -> dict[str, Any]:
    """Keywords that extend a node's turn back to the start of the line that it continues, because
    the node also chose the observation before the turn."""
    if not (isinstance(prompt, list) and isinstance(ids, list) and ids):
        return {}
    start = line_before(prompt, len(prompt), detokenizer)
    size = len(prompt) - start
    if not size:
        return {}
    if isinstance(log_probs, list):
        log_probs = [0.0] * size + log_probs
    return {
        "prompt_ids": prompt[:start],
        "completion_ids": prompt[start:] + ids,
        "sampler_logprobs": log_probs,
        "given": Given(((0, size),), ((0, 0),), masked=True),
    }


def _cut_off(of_turn: Any, of_trajectory: Any) -> bool:
    return of_turn == "length" or str(of_trajectory) in _CUT_OFF


def _take_out(trajectory: Any) -> float:
    """Mask a trajectory's turns, and return the sum of their rewards, each made finite."""
    for turn in trajectory.transitions:
        turn.metrics[MASKED] = 1.0
        (reward,) = finite_or_none([turn.reward])
        turn.reward = reward or 0.0
    return float(sum(turn.reward for turn in trajectory.transitions))


def _ids(observation: Any) -> tuple[int, ...] | None:
    """Token ids of an observation; None if it contains more than text, because the tokens that
    represent an image mean nothing on their own."""
    chunks = observation.chunks
    if not all(hasattr(chunk, "tokens") for chunk in chunks):
        return None
    return tuple(token for chunk in chunks for token in chunk.tokens)
