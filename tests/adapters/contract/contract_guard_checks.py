"""Contract checks on the guard's side: the effect of verdicts, failures and records."""

import logging
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard import AbstainError, CompletionVerifier, Policy
from grpo_guard.guard.framework import FrameworkError
from tests.adapters.contract.contract_grader import REWARDS, grader
from tests.adapters.contract.contract_trainers import LOGGED, PROMPT, Trainer, Words


def _rule(policy: Policy, text: str) -> Any:
    rule: Any = policy.on_abstain if "unseen" in text else "pass"
    return policy.on_reject if "Hail" in text else rule


def _alone(policy: Policy, text: str) -> float | None:
    reward, rule = REWARDS[text], _rule(policy, text)
    if rule in ("drop", "skip"):
        return None
    return {"pass": reward, "zero": min(0.0, reward)}.get(rule, rule)


def _expected(trainer: Trainer, policy: Policy, texts: Sequence[str]) -> list[float | None]:
    """ "zero" pays at most the lowest reward of the group, or of earlier ones if no group is
    visible.
    """
    alone = [_alone(policy, text) for text in texts]
    lowest = []
    for i in range(len(texts)):
        beside = alone if trainer.batch else alone[: i + 1]
        lowest.append(min([0.0, *(reward for reward in beside if reward is not None)]))
    zeroed = [_rule(policy, text) == "zero" for text in texts]
    return [low if z else a for a, low, z in zip(alone, lowest, zeroed, strict=True)]


def verdicts_become_rewards_in_order(trainer: Trainer) -> None:
    for on_reject in ("zero", -1.0, 0.25, "drop") if trainer.drops else ("zero", -1.0, 0.25):
        for on_abstain in ("zero", "pass", "skip") if trainer.drops else ("zero", "pass"):
            policy = Policy(on_reject, on_abstain, max_abstain_rate=1.0)  # type: ignore[arg-type]
            _rewards_follow(trainer, policy)


def _rewards_follow(trainer: Trainer, policy: Policy) -> None:
    @settings(max_examples=10, deadline=None, database=None)
    @given(st.lists(st.sampled_from(list(REWARDS)), min_size=1, max_size=8))
    def follow(texts: list[str]) -> None:
        guarded = trainer.wrap(grader(trainer), policy=policy)
        rewards = trainer.rewards(guarded, texts)
        assert rewards == _expected(trainer, policy, texts)
        assert all(reward is None or type(reward) is float for reward in rewards)

    follow()


def vetoed_reward_never_beats_an_honest_wrong_answer(trainer: Trainer) -> None:
    """If rewards are -1 and 1, a rejected completion that gets 0 has gained."""
    for policy in (Policy("zero", "zero"), Policy(-1.0, "zero")):
        guarded = trainer.wrap(
            grader(trainer, lambda t: -1.0 if t == "wrong" else 1.0), None, policy
        )
        rewards = trainer.rewards(guarded, ["right", "wrong", "Hail", "unseen", "right"])
        assert rewards == [1.0, -1.0, -1.0, -1.0, 1.0]


def default_policy_leaves_out_if_possible_and_pays_nothing_otherwise(trainer: Trainer) -> None:
    guarded = trainer.wrap(grader(trainer), policy=Policy())
    out = None if trainer.drops else 0.0
    assert trainer.rewards(guarded, ["fine", "Hail", "unseen", "good"])[1:3] == [out, out]


def unsupported_policy_is_refused(trainer: Trainer) -> None:
    dropping = [Policy("drop", "zero"), Policy("zero", "skip")]
    by_group = [Policy("zero", "zero", on_long="scale")]
    for policies, able in ((dropping, trainer.drops), (by_group, trainer.batch)):
        for policy in policies:
            if able:
                trainer.wrap(grader(trainer), policy=policy)
                continue
            with pytest.raises(FrameworkError, match="choose on_"):
                trainer.wrap(grader(trainer), policy=policy)


def abstentions_can_stop_the_run(trainer: Trainer) -> None:
    stop = Policy(on_abstain="raise")
    if trainer.raises:
        guarded = trainer.wrap(grader(trainer), policy=stop)
        assert trainer.rewards(guarded, ["fine"]) == [1.0]
        with pytest.raises(AbstainError, match="words abstained"):
            trainer.rewards(guarded, ["unseen"])
    else:
        with pytest.raises(FrameworkError, match="choose on_abstain"):
            trainer.wrap(grader(trainer), policy=stop)


def too_many_abstentions_are_reported_and_earn_nothing(trainer: Trainer) -> None:
    policy = Policy("zero", "pass", max_abstain_rate=0.5, abstain_window=2)
    guarded = trainer.wrap(grader(trainer), policy=policy)
    assert trainer.rewards(guarded, ["unseen"]) == [2.0]
    _is_loud(trainer, guarded, "unseen", AbstainError)


class Failing(CompletionVerifier):
    name = "failing"

    def __init__(self, result: Any = None) -> None:
        self.result = result

    def verify(self, batch: Sequence[Any]) -> Any:
        if self.result is None:
            raise RuntimeError("no model loaded")
        return self.result


def failing_verifier_abstains(trainer: Trainer) -> None:
    for verifier in (Failing(), Failing([]), Failing("verdicts")):
        none = [-2.0, -2.0, -2.0] if trainer.batch else [0.0, 0.0, -2.0]
        for on_abstain, kept in (("zero", none), ("pass", [1.0, 5.0, -2.0])):
            policy = Policy("zero", on_abstain, max_abstain_rate=1.0)  # type: ignore[arg-type]
            guarded = trainer.wrap(grader(trainer), verifier, policy)
            assert trainer.rewards(guarded, ["fine", "Hail", "bad"]) == kept


class BrokenLedger:
    def record(self, batch: Any, verdicts: Any) -> None:
        raise OSError("disk full")


def failing_ledger_is_reported(trainer: Trainer) -> None:
    _is_loud(trainer, trainer.wrap(grader(trainer), ledger=BrokenLedger()), "fine", OSError)


def _is_loud(trainer: Trainer, guarded: Any, text: str, error: type[Exception]) -> None:
    """A failing guard stops the run; if the trainer would swallow the exception, it pays 0 and
    logs.
    """
    if trainer.raises:
        with pytest.raises(error):
            trainer.rewards(guarded, [text])
        return
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("grpo_guard")
    logger.addHandler(handler)
    try:
        assert trainer.rewards(guarded, [text]) == [0.0]
    finally:
        logger.removeHandler(handler)
    assert records


def several_functions_are_vetoed_together(trainer: Trainer) -> None:
    functions = [grader(trainer), grader(trainer, lambda text: 2.0, name="bonus")]
    verifier = Words()
    if not trainer.several:
        with pytest.raises(FrameworkError, match="one reward function, got a list"):
            trainer.wrap(functions, verifier)
        return
    texts = ["fine", "Hail", "good"]
    for on_reject, total in (("zero", 0.0), ("drop", None), (-1.0, -1.0)):
        if on_reject == "drop" and not trainer.drops:
            continue
        verifier = Words()
        policy = Policy(on_reject, "zero")  # type: ignore[arg-type]
        guarded = trainer.wrap(functions, verifier, policy)
        per_function = [trainer.rewards(function, texts) for function in guarded]
        sums = [_nan_sum(row) for row in zip(*per_function, strict=True)]
        assert sums == [3.0, total, 5.0]
        assert verifier.shown == texts  # verified once, however many functions there are


def _nan_sum(row: Sequence[float | None]) -> float | None:
    said = [reward for reward in row if reward is not None]
    return sum(said) if said else None


def metrics_report_rejections(trainer: Trainer) -> None:
    if trainer.reject_rate is None:
        return
    guarded, rates = trainer.wrap(grader(trainer)), []
    for arguments in trainer.calls(["fine", "Hail"]):
        LOGGED.clear()
        rates.append(trainer.reject_rate(trainer.call(guarded, arguments)))
    assert sum(rates) / len(rates) == 0.5


def unusual_texts_are_judged_like_any_other(trainer: Trainer) -> None:
    texts = ["", "\ud800", "\x00\x1b[2J", "é" * 100_000, "Hail" * 50_000, "\u2028{}%s"]
    verifier = Words()
    guarded = trainer.wrap(grader(trainer, lambda text: 1.0), verifier)
    assert trainer.rewards(guarded, texts) == [1.0, 1.0, 1.0, 1.0, 0.0, 1.0]
    assert verifier.shown == texts


def threads_do_not_mix_up_completions(trainer: Trainer) -> None:
    guarded = trainer.wrap(grader(trainer, lambda text: float(text.split()[-1])))
    texts = [f"{'Hail' if i % 3 == 0 else 'fine'} {i + 1}" for i in range(48)]
    random.Random(0).shuffle(texts)
    with ThreadPoolExecutor(8) as pool:
        rewards = list(pool.map(lambda text: trainer.rewards(guarded, [text])[0], texts))
    assert rewards == [0.0 if "Hail" in text else float(text.split()[-1]) for text in texts]


def nested_guard_vetoes_too(trainer: Trainer) -> None:
    inner, outer, notes = Words(), Words("good"), Notes()
    guarded = trainer.wrap(trainer.wrap(grader(trainer), inner, ledger=notes), outer)
    assert guarded.__name__ == "grade"
    assert trainer.rewards(guarded, ["fine", "Hail", "good"]) == [1.0, 0.0, 0.0]
    assert inner.shown == outer.shown == ["fine", "Hail", "good"]
    assert all(completion.prompt_text == PROMPT for completion in notes.batch)


class Notes:
    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []
        self.batch: list[Any] = []

    def record(self, batch: Sequence[Any], verdicts: Sequence[Any]) -> None:
        self.batch += batch
        self.rows += [
            (completion.text, verdict.outcome.value)
            for completion, verdict in zip(batch, verdicts, strict=True)
        ]


def ledger_records_each_completion_once(trainer: Trainer) -> None:
    notes = Notes()
    trainer.rewards(trainer.wrap(grader(trainer), ledger=notes), ["good", "Hail", "unseen"])
    assert notes.rows == [("good", "accept"), ("Hail", "reject"), ("unseen", "abstain")]
