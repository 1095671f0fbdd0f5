"""TRL: reward functions of `GRPOTrainer` and `RLOOTrainer` (trl 1.6 and later).

TRL calls ``f(prompts=, completions=, completion_ids=, **columns, trainer_state=, log_extra=,
log_metric=)`` once per rank and generation batch, and adds up what the functions return. It leaves
a completion out of its group only where *every* function returns None, and a reward from one
unguarded function is a reward. Guard all of them, as one list::

    GRPOTrainer(reward_funcs=guard(verifier)([correct, well_formed]), ...)

Know what the guard can and cannot see from here:

* A verifier that scores tokens must look at the live weights: give it the model object that the
  trainer trains, not a copy that training leaves behind.
* Each rank sees its own slice of the batch, and **a group may straddle ranks**. The verdicts here
  are per completion; whatever compares a group's members must gather them first.
* `group` and `slot` of a completion number the prompts and rows of this rank's slice, and `round`
  is the trainer's step, unless columns `slot` and `round` say otherwise. A public coin needs a
  column `slot` that counts each node's share of a group: `docs/examples/trl_seed_replay.py`.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

from grpo_guard.adapters.reward_function import RewardFunction
from grpo_guard.adapters.shared_review import SharedReviews, shared_reviews
from grpo_guard.completion import Completion, CompletionError
from grpo_guard.framework import FrameworkError
from grpo_guard.guard import Guard, Review
from grpo_guard.policy import Policy

# Before this release a completion without any reward counted as reward 0 in its group's baseline.
NONE_IS_LEFT_OUT_SINCE = (1, 6)


class TRLAdapter:
    """Guards TRL reward functions: one verification per batch, however many functions share it."""

    def wrap(self, reward: Any, guard: Guard) -> Any:
        """The guarded form of a reward function, or of each in a list, to be given to the trainer.

        Sync stays sync and async stays async; the name is kept. The review of a batch is shared by
        all functions that this guard wraps, together or one by one. A rejected completion gets

        * ``on_reject="zero"``: 0.0 from every function;
        * ``"drop"``: None from every function, which leaves it out of its group;
        * a number: that number from the function that is called first, 0.0 from the others, so
          that the sum is the number where ``reward_weights`` is 1.

        A reward that is None stays None. Where one function of several says None of a rejected
        completion, the others' 0.0 still counts: the completion trains with 0, it is not left out.

        Raises:
            FrameworkError: something in the list is no function, two have the same name (TRL would
                merge their metrics), or the policy drops completions and the installed trl is too
                old to leave them out.
        """
        _require_dropping(guard.policy)
        together = isinstance(reward, list | tuple)
        functions = [RewardFunction.inspect(r) for r in (reward if together else [reward])]
        for name, count in Counter(f.name for f in functions).items():
            if count > 1:
                raise FrameworkError(
                    f"reward: {count} functions are named {name!r}, and TRL would merge their "
                    "metrics; set __name__ to tell them apart"
                )
        reviews = shared_reviews(guard)
        wrapped = [_wrap_one(function, guard, reviews) for function in functions]
        return wrapped if together else wrapped[0]


def _wrap_one(function: RewardFunction, guard: Guard, reviews: SharedReviews) -> Any:
    def settle(review: Review, first: bool, result: Any) -> list[float | None]:
        rewards = function.rewards(result, len(review.verdicts))
        policy = guard.policy
        if not first and not isinstance(policy.on_reject, str):
            policy = replace(policy, on_reject="zero")
        return guard.settle(rewards, review, policy=policy)

    if function.is_async:

        async def guarded_async(**kwargs: Any) -> list[float | None]:
            batch = completions_from(kwargs)
            review, first = await reviews.aget(guard, batch, reader=function)
            if first:
                _log(review, kwargs)
            result = await function.call(**function.arguments(kwargs))
            return settle(review, first, result)

        return function.dress(guarded_async)

    def guarded(**kwargs: Any) -> list[float | None]:
        batch = completions_from(kwargs)
        review, first = reviews.get(guard, batch, reader=function)
        if first:
            _log(review, kwargs)
        return settle(review, first, function.call(**function.arguments(kwargs)))

    return function.dress(guarded)


def _log(review: Review, kwargs: Mapping[str, Any]) -> None:
    """Metrics and a column of the completions table, in releases that offer them."""
    log_metric, log_extra = kwargs.get("log_metric"), kwargs.get("log_extra")
    if log_metric is not None:
        for name, value in review.metrics.items():
            log_metric(name, value)
    if log_extra is not None:
        rows = [
            v.outcome.value if v.accepted else f"{v.outcome.value}: {v.reason}"
            for v in review.verdicts
        ]
        log_extra("guard", rows)


def completions_from(kwargs: Mapping[str, Any]) -> list[Completion]:
    """The batch behind TRL's keywords, in the trainer's order.

    Columns that are used where they are present: ``node`` or ``peer``; ``answer``, ``solution`` or
    ``ground_truth``; ``task``; ``round``; ``slot``; ``prompt_ids``. The last must be your own
    tokenisation of the prompt: a sender who may choose the prompt chooses what looks likely after
    it. In a column ``round`` or ``slot``, what is no integer is None, not this function's own
    count: whoever leaves it out must not be given a slot.

    Raises:
        ValueError: prompts, completions and completion_ids differ in length.
        CompletionError: a row has the wrong form; a note says which.
    """
    texts = [_text(completion) for completion in kwargs["completions"]]
    n = len(texts)
    prompts, ids = kwargs.get("prompts"), kwargs.get("completion_ids")
    for name, values in (("prompts", prompts), ("completion_ids", ids)):
        if (values is None and name == "prompts") or (values is not None and len(values) != n):
            got = "nothing" if values is None else len(values)
            raise ValueError(f"{name}: expected {n}, one per completion, got {got}")
    nodes = _column(kwargs, n, "node", "peer")
    references = _column(kwargs, n, "answer", "solution", "ground_truth")
    tasks, prompt_ids = _column(kwargs, n, "task"), _column(kwargs, n, "prompt_ids")
    step = getattr(kwargs.get("trainer_state"), "global_step", None)
    rounds, slots = _integers(kwargs, n, "round"), _integers(kwargs, n, "slot")
    groups: dict[str, int] = {}
    sizes: Counter[int] = Counter()
    batch = []
    for i, text in enumerate(texts):
        prompt = prompts[i]  # type: ignore[index]  # checked above
        group = groups.setdefault(repr(prompt), len(groups))
        try:
            completion = Completion(
                prompt,
                text,
                completion_ids=None if ids is None else ids[i],
                node=None if nodes[i] is None else str(nodes[i]),
                group=group,
                round=rounds[i] if rounds else step if isinstance(step, int) else None,
                slot=slots[i] if slots else sizes[group],
                reference=references[i] if isinstance(references[i], str) else None,
                task=tasks[i] if isinstance(tasks[i], str) else None,
            )
        except CompletionError as error:
            error.add_note(f"in row {i} of the batch")
            raise
        batch.append(_with_prompt_ids(completion, prompt_ids[i]))
        sizes[group] += 1
    return batch


def _with_prompt_ids(completion: Completion, prompt_ids: Any) -> Completion:
    try:
        return replace(completion, prompt_ids=prompt_ids)
    except CompletionError:
        return completion  # without them the verifier tokenises the prompt itself


def _column(kwargs: Mapping[str, Any], n: int, *names: str) -> Sequence[Any]:
    for name in names:
        values = kwargs.get(name)
        if isinstance(values, list | tuple) and len(values) == n:
            return values
    return [None] * n


def _integers(kwargs: Mapping[str, Any], n: int, name: str) -> list[int | None]:
    """A column of whole numbers, None where a row has none; empty where there is no column."""
    values = kwargs.get(name)
    if not isinstance(values, list | tuple) or len(values) != n:
        return []
    # A sender may have chosen them: Python refuses to print a number of 5,000 digits, and the
    # exception would cost all others of the batch their verdicts.
    return [
        int(value) if isinstance(value, Integral) and _is_int64(value) else None for value in values
    ]


def _is_int64(value: Any) -> bool:
    return not isinstance(value, bool) and -(2**63) <= value < 2**63


def _text(completion: Any) -> Any:
    """A completion's text; of a conversation, all that the assistant's messages say."""
    if isinstance(completion, str):
        return completion
    messages = [completion] if isinstance(completion, Mapping) else completion
    if not isinstance(messages, list | tuple):
        return completion  # Completion says what is wrong with it
    parts: list[str] = []
    for message in messages:
        if isinstance(message, Mapping) and message.get("role") == "assistant":
            # A chat template may have split the thoughts off. They are trained on like the rest,
            # so poison put there must not pass unread.
            for key in ("reasoning_content", "thinking", "content"):
                parts += _strings(message.get(key))
    return "".join(parts)


def _strings(content: Any) -> list[str]:
    """Content is a string, None, or a list of parts of which some have text."""
    parts = content if isinstance(content, list | tuple) else [content]
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    return [text for text in texts if isinstance(text, str)]


def _require_dropping(policy: Policy) -> None:
    if policy.on_reject != "drop" and policy.on_abstain != "skip":
        return
    try:
        version = importlib.metadata.version("trl")
    except importlib.metadata.PackageNotFoundError:
        return
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < NONE_IS_LEFT_OUT_SINCE:
        needed = ".".join(map(str, NONE_IS_LEFT_OUT_SINCE))
        raise FrameworkError(
            f"trl {version} counts a completion that is left out as reward 0 in its group's "
            f'baseline; on_reject="drop" and on_abstain="skip" need trl >= {needed}. Upgrade it, '
            'or choose Policy(on_reject="zero", on_abstain="zero").'
        )
