"""slime: the custom reward model, ``async rm(args, sample)`` (``--custom-rm-path``).

slime awaits ``rm(args, sample)`` for one `Sample` at a time, or ``rm(args, samples)`` for a group
under ``--group-rm``, and expects a number, or a dict in which ``--reward-key`` names the reward. A
sample carries its token ids and the engine's log-probs; node, round, slot and task are read from
its ``metadata`` if present.

By itself, slime never leaves a sample out of a group's baseline: ``remove_sample`` only empties the
loss mask. So `SlimeAdapter(leave_out=True)` also needs `rewards_without_left_out` as
``--custom-reward-post-process-path``.

Written against THUDM/slime at 624b824a898a (21 August 2026: rollout/rm_hub, utils/types.py,
ray/rollout.py); not run in slime, whose rollouts need GPUs. slime's evaluations call the same
function without saying so: give evaluation data sets an unguarded ``custom_rm_path``.
"""

import inspect
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

from grpo_guard.adapters.plain_numbers import log_probs_from, number_from
from grpo_guard.adapters.received import Row, claimed, read, received, review
from grpo_guard.adapters.reward_function import (
    RewardFunction,
    fitted,
    require_ids_read,
    require_one,
    without_leaving_out,
    without_no_gain,
)
from grpo_guard.adapters.sequences import mask_from, masked_in
from grpo_guard.core.completion import shown
from grpo_guard.core.detokenizer import REMEDY
from grpo_guard.guard import Guard, Review
from grpo_guard.guard.framework import FrameworkError
from grpo_guard.guard.graders import LARGEST_REWARD
from grpo_guard.guard.group_means import means_of_units
from grpo_guard.guard.policy_checks import own_detokenizer

_LEFT_OUT = "guard_left_out"  # an attribute, because a sample's metadata may come from another node
_SCALED = ("grpo", "gspo", "cispo")
_BY_GROUP = (*_SCALED, "reinforce_plus_plus_baseline")


class SlimeAdapter:
    """Guards a reward function ``rm(args, sample)`` or ``rm(args, samples)``, distinguished by the
    parameter's name.

    Args:
        leave_out: Whether the policy may leave completions out of their group. Completions left out
            get a reward of 0, ``remove_sample``, and a mark for `rewards_without_left_out`, which
            must be configured as slime's reward post-processing.
    """

    recognised_by: ClassVar = frozenset({"args", "sample"})

    def __init__(self, *, leave_out: bool = False) -> None:
        self.leave_out = leave_out

    def wrap(self, reward: Any, guard: Guard) -> Any:
        """Wrap a reward function. If the function returns a dict, only the reward in it changes.

        Raises:
            FrameworkError: the reward is a list (slime takes one function) or not a function; the
                policy leaves completions out of their group without ``leave_out``, or asks for
                "no_gain"; or the guard has no tokenizer for the ids that slime trains on.
        """
        require_one(reward, "slime")
        cannot = without_no_gain("slime's adapter", 'choose on_reject="drop"')
        if not self.leave_out:
            cannot = without_leaving_out("slime")
            if _takes_groups(reward):
                del cannot["on_long", "scale"]
        guard = fitted(guard, "slime", cannot)
        require_ids_read(guard, "slime")
        function = RewardFunction.inspect(reward, guard)

        def look(args: Any, *given: Any, **more: Any) -> Review:
            return review(guard, _rows(_given(given, more), guard))

        def settle(found: Review, result: Any, /, args: Any, *sent: Any, **more: Any) -> Any:
            given = _given(sent, more)
            group = isinstance(given, list | tuple)
            samples, results = (given, result) if group else ([given], [result])
            rewards = _rewards(function, results, len(samples), args)
            kept = guard.settle(rewards, found)
            if self.leave_out:
                kept = [
                    # Samples without a reward are left out as well if the guard handles failures.
                    _left_out(args, sample)
                    if after is None and (before is not None or guard.failures is not None)
                    else after
                    for sample, before, after in zip(samples, rewards, kept, strict=True)
                ]
            if not isinstance(results, list | tuple):  # an array cannot contain dicts
                return kept
            answers = [
                {**row, _key(function, row, args): value} if isinstance(row, Mapping) else value
                for row, value in zip(results, kept, strict=True)
            ]
            return answers if group else answers[0]

        return function.guarded(guard, look, settle)


def row_from(sample: Any, guard: Guard) -> Row:
    """Build the completion of a slime `Sample`; its group is ``group_index``. Tokens that
    ``loss_mask`` excludes (tool answers, or tokens of an older policy) are marked as given, and the
    response is then decoded from its tokens, turn by turn, with the guard's tokenizer."""

    def field(name: str) -> Any:
        return read(getattr, sample, name)  # reading an object may raise

    metadata = field("metadata")
    ids = read(_ids, sample, claimed(metadata, "node", "peer") is not None)
    ids = ids if isinstance(ids, dict) else {"completion_ids": ids}
    detokenizer = None
    if ids.get("given") is not None:
        detokenizer = guard.detokenizer or own_detokenizer(guard.verifier)
        if detokenizer is None:
            ids["malformed"] = f"several turns, and nothing reads their tokens; {REMEDY}"
    status = read(lambda: getattr(sample.status, "value", None))
    return received(
        field("prompt"),
        field("response"),
        **ids,
        detokenizer=detokenizer,
        node=claimed(metadata, "node", "peer"),
        group=field("group_index"),
        round=claimed(metadata, "round"),
        slot=claimed(metadata, "slot"),
        rollout=read(getattr, sample, "rollout_id", None),
        reference=field("label"),
        task=claimed(metadata, "task"),
        finish_reason={"completed": "stop", "truncated": "length"}.get(read(str, status)),
    )


def _ids(sample: Any, theirs: bool) -> dict[str, Any]:
    """Keywords for `received`: a sample's ids, log-probs and given spans. Empty if slime trains on
    none of the tokens. If the fields do not match, ``malformed`` gives the reason, because slime
    would train on the sample anyway."""
    n, tokens = sample.response_length, sample.tokens
    if tokens is None:
        return {}
    if not isinstance(tokens, list | tuple) and getattr(tokens, "ndim", None) != 1:
        raise TypeError("tokens: expected a list")  # a range costs its sender nothing
    if not len(tokens) or n == 0:
        return {}
    if type(n) is not int:
        raise TypeError("response_length: expected an integer")
    mask = None if sample.loss_mask is None else mask_from(sample.loss_mask, max(0, n) + 1)
    if not 0 < n <= len(tokens) or (mask is not None and len(mask) != n):
        return {"malformed": "tokens, response_length and loss_mask do not match"}
    if mask is not None and not any(mask):
        return {}
    log_probs = log_probs_from(sample.rollout_log_probs, n)
    if log_probs is None and sample.rollout_log_probs is not None:
        raise ValueError("rollout_log_probs: expected log-probs")  # see `_put_right`
    return {
        "prompt_ids": tokens[:-n],
        "completion_ids": tokens[-n:],
        "given": None if mask is None or all(mask) else masked_in(mask, n, theirs=theirs),
        "sampler_logprobs": log_probs,
    }


def _put_right(sample: Any) -> None:
    """Replace a sample's invalid log-probs with zeros: slime turns log-probs into a tensor and
    weights the loss by it, no matter what reward the sample earns."""
    given, n = read(getattr, sample, "rollout_log_probs"), read(getattr, sample, "response_length")
    tokens = read(getattr, sample, "tokens")
    if given is None or type(n) is not int or log_probs_from(given, n) is not None:
        return
    if isinstance(tokens, list | tuple):
        read(setattr, sample, "rollout_log_probs", [0.0] * min(max(0, n), len(tokens)))


def rewards_without_left_out(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Return slime's rewards and the values to train with, keeping left-out samples, which get 0,
    out of every baseline. If nothing was left out, the result equals slime's own: rewards minus the
    group's mean, divided by the group's standard deviation + 1e-6 under ``grpo_std_normalization``.

    A rollout with several samples (the same ``rollout_id``) counts once in the mean and the
    deviation, with the mean reward of its samples. If any of these samples was left out, all of
    them are.
    """
    found = [_reward(sample.get_reward_value(args)) for sample in samples]
    known, raw = [number is not None for number in found], [number or 0.0 for number in found]
    if args.advantage_estimator not in _BY_GROUP or not args.rewards_normalization:
        return raw, list(raw)
    places = [_place(args, sample, i) for i, sample in enumerate(samples)]
    out = _left_out_with_all_segments(samples, places)
    groups: dict[Any, list[int]] = {}
    for i, (group, _) in enumerate(places):
        # A single non-finite reward would spoil the whole group's advantages.
        if known[i] and places[i] not in out:
            groups.setdefault(group, []).append(i)
    trained = [0.0] * len(raw)
    scaled = args.grpo_std_normalization and args.advantage_estimator in _SCALED
    for rows in groups.values():
        units = means_of_units([raw[i] for i in rows], [places[i] for i in rows]).values()
        mean = statistics.fmean(units)
        spread = statistics.stdev(units) if scaled and len(units) > 1 else 0.0
        for i in rows:
            trained[i] = (raw[i] - mean) / (spread + 1e-6) if scaled else raw[i] - mean
    return raw, trained


def _place(args: Any, sample: Any, i: int) -> tuple[Hashable, Hashable]:
    """A sample's group and, within the group, its rollout, or the sample itself if it has no
    rollout id."""
    row = ("row", i // args.n_samples_per_prompt)
    rollout = read(getattr, sample, "rollout_id", None)
    group = row if sample.group_index is None else sample.group_index
    return group, ("sample", i) if rollout is None else rollout


def _left_out_with_all_segments(
    samples: Sequence[Any], places: Sequence[Hashable]
) -> frozenset[Hashable]:
    """Return the places of rollouts with a left-out sample, and remove all their samples from the
    loss. The guard cannot do this earlier, because slime requests each sample's reward
    separately."""
    out = frozenset(
        place
        for sample, place in zip(samples, places, strict=True)
        if getattr(sample, _LEFT_OUT, False)
    )
    for sample, place in zip(samples, places, strict=True):
        if place in out:
            sample.remove_sample = True
    return out


def _reward(given: Any) -> float | None:
    """Convert a reward to a float small enough to keep its group's standard deviation finite, or
    return None; True counts as 1."""
    given = float(given) if isinstance(given, bool) else given
    return number_from(given, -LARGEST_REWARD, LARGEST_REWARD)


def _left_out(args: Any, sample: Any) -> float:
    if not getattr(args, "custom_reward_post_process_path", None):
        raise FrameworkError(
            "slime would count a completion that is left out as reward 0 in its group; set "
            "--custom-reward-post-process-path "
            "grpo_guard.adapters.slime.rewards_without_left_out"
        )
    sample.remove_sample = True
    setattr(sample, _LEFT_OUT, True)
    return 0.0


def _takes_groups(reward: Any) -> bool:
    try:
        return "samples" in inspect.signature(reward).parameters
    except (TypeError, ValueError):
        return False


def _given(given: Sequence[Any], more: Mapping[str, Any]) -> Any:
    """The sample or samples of a call. slime passes them by position, but tests of a reward
    function might pass them by name."""
    return given[0] if given else more["sample"] if "sample" in more else more["samples"]


def _rows(given: Any, guard: Guard) -> list[Row]:
    samples = given if isinstance(given, list | tuple) else [given]
    rows = [row_from(sample, guard) for sample in samples]
    for sample in samples:
        _put_right(sample)
    return rows


def _rewards(
    function: RewardFunction, results: Any, expected: int, args: Any
) -> list[float | None]:
    if isinstance(results, list | tuple):
        results = [
            row[_key(function, row, args)] if isinstance(row, Mapping) else row for row in results
        ]
    return function.rewards(results, expected)


def _key(function: RewardFunction, row: Mapping[str, Any], args: Any) -> str:
    """The key of the reward in a function's result; evaluations can have their own key."""
    keys = [getattr(args, name, None) for name in ("reward_key", "eval_reward_key")]
    for key in keys:
        if key is not None and key in row:
            return str(key)
    raise ValueError(
        f"{function.name}: expected a dict with the reward under --reward-key ({keys[0]!r}), "
        f"got {shown(row)}"
    )
