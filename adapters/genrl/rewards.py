"""GenRL: settle rewards where completions cannot leave their group and the guard must not raise."""

import copy
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from grpo_guard.adapters.genrl.trees import Tree
from grpo_guard.adapters.reward_function import RewardFunction
from grpo_guard.core.verdict import Verdict, reject
from grpo_guard.guard import Guard
from grpo_guard.guard.framework import FrameworkError
from grpo_guard.guard.graders import FAILED, finite_or_none
from grpo_guard.guard.review import Review
from grpo_guard.guard.settled_groups import settle_groups

Raw = list[float | None]


def guarded_store(
    store: Any, guard: Guard, reward: Callable[[RewardFunction, int, Any], dict[Any, Any]]
) -> Any:
    """Copy GenRL's reward store, for all rounds or for one; ``reward`` is called instead of each
    reward function, with the function, its stage and the game state."""
    store = copy.copy(store)
    if hasattr(store, "reward_fn_stores"):
        # GenRL uses the same store for all rounds.
        rounds = {id(of_round): of_round for of_round in store.reward_fn_stores}
        guarded = {key: guarded_store(of_round, guard, reward) for key, of_round in rounds.items()}
        store.reward_fn_stores = [guarded[id(of_round)] for of_round in store.reward_fn_stores]
        return store
    functions = [RewardFunction.inspect(call, guard) for call in store.reward_fns]
    for function in functions:
        if function.is_async:
            raise FrameworkError(f"{function.name}: GenRL does not await a reward function")
    store.reward_fns = [f.dress(partial(reward, f, stage)) for stage, f in enumerate(functions)]
    return store


def raw_rewards(
    function: RewardFunction,
    state: Any,
    trees: Sequence[Tree],
    own: Collection[Any],
    warn: Callable[[str, Exception], None],
) -> list[Raw]:
    """Call a reward function and return its rewards, [G] for each tree. A completion in a foreign
    tree has the reward None if the function returned no number for it.

    The function reads world states that peers made up. If it fails, it is called again with only
    this node's own trees, so that no peer can end another node's game. That call's errors are
    raised. Under a guard with ``failures``, only the second call is counted; if it fails, all
    rewards are None, and AbstainError is raised if too many failed.
    """
    # The result is read within the call: a result that cannot be read is a failure like any other.
    asked = replace(function, read=lambda result: _rows(function, result, trees, own))
    if any(tree.agent not in own for tree in trees):
        try:
            return cast("list[Raw]", asked.attempt(state))
        except Exception as error:
            warn(f"{function.name} failed on foreign trees, which earn nothing", error)
        alone = copy.copy(state)
        alone.trees = {agent: of for agent, of in state.trees.items() if agent in own}
        state = alone
    answer = asked.ask(state)
    return [[None] * len(tree.texts) for tree in trees] if answer is FAILED else answer


def _rows(
    function: RewardFunction, result: Any, trees: Sequence[Tree], own: Collection[Any]
) -> list[Raw]:
    rows: list[Raw] = []
    for tree in trees:
        try:
            values = result[tree.agent][tree.batch][tree.place]
            rows.append(function.rewards(values, len(tree.texts)))
        except (TypeError, ValueError, LookupError) as error:
            if tree.agent in own:
                raise TypeError(
                    f"{function.name}: expected {{agent: {{batch: [[reward] per node]}}}} with "
                    f"{len(tree.texts)} rewards for each node: {error!s:.200}"
                ) from error
            rows.append([None] * len(tree.texts))
    return rows


def settled(
    guard: Guard, trees: Sequence[Tree], found: Sequence[Review], raw: Sequence[Raw]
) -> list[list[float]]:
    """Settle rewards, [G] for each tree; all results are finite. A completion without a finite
    reward leaves its group under a guard with ``failures``; otherwise it earns the same as a
    rejected one. A single NaN would make all weights NaN, and an author might know how to make a
    grader return NaN."""
    verdicts: list[Verdict] = []
    rewards: Raw = []
    groups: list[Hashable] = []
    for i, (of_tree, row) in enumerate(zip(found, raw, strict=True)):
        finite = finite_or_none(row)
        if guard.failures is None:
            verdicts += [
                reject("reward", message="no finite reward") if value is None else verdict
                for verdict, value in zip(of_tree.verdicts, finite, strict=True)
            ]
            rewards += [value or 0.0 for value in finite]
        else:
            verdicts += of_tree.verdicts
            rewards += finite
        # GenRL's groups are trees, even if two agents answer the same prompt.
        groups += [i] * len(row)
    review = replace(Review.joined(found).regrouped(groups), verdicts=verdicts)
    filled = iter(settle_groups(guard, rewards, review).filled)
    return [[next(filled) for _ in row] for row in raw]
