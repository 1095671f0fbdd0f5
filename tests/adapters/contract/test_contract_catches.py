"""Negative controls of the contract: for each check, an adapter that must fail it."""

import asyncio
import copy
import time
from dataclasses import replace

import pytest

from grpo_guard import Guard
from grpo_guard.adapters.trl.reward import TRLAdapter
from tests.adapters.contract.contract_checks import CHECKS
from tests.adapters.contract.contract_trainers import TRAINERS

TRL = TRAINERS["trl"]


def wrong(change):
    """TRL's convention with a correct adapter, except for a change to the guarded function."""

    class Wrong(TRLAdapter):
        def wrap(self, reward, guard):
            guarded = super().wrap(reward, guard)
            if isinstance(reward, list):
                return [change(f, g, guard) for f, g in zip(reward, guarded, strict=True)]
            return change(reward, guarded, guard)

    return replace(TRL, adapter=Wrong)


def named(function, wrapper):
    wrapper.__name__ = getattr(function, "__name__", "grade")
    return wrapper


@wrong
def unguarded(reward, guarded, guard):
    return named(reward, lambda **given: reward(**given))


@wrong
def reversing(reward, guarded, guard):
    return named(reward, lambda **given: list(reversed(guarded(**given))))


@wrong
def swallowing(reward, guarded, guard):
    def swallow(**given):
        try:
            return guarded(**given)
        except Exception:
            return [0.0] * len(given["completions"])

    return named(reward, swallow)


@wrong
def rewording(reward, guarded, guard):
    def reword(**given):
        try:
            return guarded(**given)
        except Exception as error:
            raise RuntimeError("reward function failed") from error

    return named(reward, reword)


@wrong
def copying(reward, guarded, guard):
    return named(reward, lambda **given: guarded(**copy.deepcopy(given)))


@wrong
def sorting(reward, guarded, guard):
    def sort(**given):
        given["completions"].sort()
        return guarded(**given)

    return named(reward, sort)


@wrong
def editing(reward, guarded, guard):
    def edit(**given):
        result = reward(**given)
        result[:] = guarded(**given)
        return result

    return named(reward, edit)


@wrong
def silent(reward, guarded, guard):
    return named(reward, lambda **given: guarded(**given | {"log_metric": None}))


@wrong
def nameless(reward, guarded, guard):
    return lambda **given: guarded(**given)


@wrong
def stripping(reward, guarded, guard):
    def strip(**given):
        return guarded(**given | {"completions": [text.strip() for text in given["completions"]]})

    return named(reward, strip)


@wrong
def multiplying(reward, guarded, guard):
    """Zero times NaN is NaN, and zero times a penalty is a gain."""

    def multiply(**given):
        own, kept = reward(**given), guarded(**given)
        return [None if o is None else o if k else o * 0.0 for o, k in zip(own, kept, strict=True)]

    return named(reward, multiply)


@wrong
def lifting(reward, guarded, guard):
    """The effect of vetoing each reward on its own."""
    return named(reward, lambda **given: [max(0.0, kept) for kept in guarded(**given)])


@wrong
def twice(reward, guarded, guard):
    return named(reward, lambda **given: (guarded(**given), guarded(**given))[1])


@wrong
def unsupervised(reward, guarded, guard):
    def verify(**given):
        guard.verifier.verify([])
        return guarded(**given)

    return named(reward, verify)


@wrong
def mixing(reward, guarded, guard):
    latest = {}

    def mix(**given):
        latest.update(given)
        time.sleep(0.002)
        return guarded(**latest)

    return named(reward, mix)


@wrong
def mixing_async(reward, guarded, guard):
    latest = {}

    async def mix(**given):
        latest.update(given)
        await asyncio.sleep(0)
        return await guarded(**latest)

    return named(reward, mix)


class OneByOne(TRLAdapter):
    """Forgets that all functions of a list share one verification."""

    def wrap(self, reward, guard):
        if not isinstance(reward, list):
            return super().wrap(reward, guard)
        alone = super().wrap
        return [alone(f, Guard(guard.verifier, policy=guard.policy)) for f in reward]


class Uninspected(TRLAdapter):
    def wrap(self, reward, guard):
        return reward


MUST_FAIL = {
    "verdicts_become_rewards_in_order": [unguarded, reversing, multiplying],
    "vetoed_reward_never_beats_an_honest_wrong_answer": [lifting, unguarded],
    "default_policy_leaves_out_if_possible_and_pays_nothing_otherwise": [
        unguarded,
        replace(TRL, drops=False),
    ],
    "unsupported_policy_is_refused": [
        replace(TRL, drops=False),
        replace(TRL, batch=False),
    ],
    "abstentions_can_stop_the_run": [swallowing, replace(TRL, raises=False)],
    "too_many_abstentions_are_reported_and_earn_nothing": [swallowing],
    "failing_verifier_abstains": [unsupervised],
    "failing_ledger_is_reported": [swallowing, replace(TRL, raises=False)],
    "several_functions_are_vetoed_together": [replace(TRL, adapter=OneByOne), unguarded],
    "async_stays_async_and_sync_stays_sync": [unguarded],
    "concurrent_async_calls_do_not_mix": [mixing_async, unguarded],
    "exception_of_the_reward_function_propagates_unchanged": [swallowing, rewording],
    "reward_function_gets_its_inputs_unchanged": [copying, sorting],
    "returned_object_is_not_modified": [editing],
    "metrics_report_rejections": [silent],
    "names_are_kept": [nameless, unguarded],
    "models_names_and_classes_are_refused": [replace(TRL, adapter=Uninspected)],
    "unusual_texts_are_judged_like_any_other": [stripping],
    "threads_do_not_mix_up_completions": [mixing],
    "numbers_of_common_types_become_floats": [unguarded],
    "none_and_nan_are_kept_unless_rejected": [multiplying, replace(TRL, finite=True)],
    "invalid_results_are_errors_naming_the_function": [unguarded, swallowing],
    "strict_signature_gets_only_its_own_arguments": [unguarded],
    "nested_guard_vetoes_too": [unguarded, nameless],
    "ledger_records_each_completion_once": [twice],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "trainer"), [(check, t) for check, made in MUST_FAIL.items() for t in made]
)
def test_faulty_adapters_fail_their_check(check, trainer):
    with pytest.raises((Exception, pytest.fail.Exception)):
        CHECKS[check](trainer)


def test_every_check_has_an_adapter_that_fails_it():
    assert MUST_FAIL.keys() == CHECKS.keys()
