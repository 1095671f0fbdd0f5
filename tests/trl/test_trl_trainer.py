"""The guarded trainer, with the real GRPOTrainer and RLOOTrainer on CPU."""

import functools

import numpy as np
import pytest
import torch

from grpo_guard import Guard, Policy, guard
from grpo_guard.adapters.flagged_tokens import flagged_tokens
from grpo_guard.adapters.trl.trainer import GuardedTrainer
from grpo_guard.core.ensemble import AllOf, AnyOf
from grpo_guard.core.verdict import Cause, Finding, accept, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.guard.framework import FrameworkError
from tests.helpers.rule_verifiers import Broken, NoWord
from tests.trl import tiny_trl

SENT = ("12", "Hail", "3", "x")
REWARD = {"12": 1.0, "Hail": 5.0, "3": 2.0, "x": 0.0, "": 3.0}


class Guarded(tiny_trl.Captures, GuardedTrainer, tiny_trl.GRPOTrainer):
    pass


class GuardedRLOO(tiny_trl.Captures, GuardedTrainer, tiny_trl.RLOOTrainer):
    pass


class FirstTokens(CompletionVerifier):
    """Rejects a word, reporting the completion's first two tokens and one past its end."""

    name = "first_tokens"

    def verify(self, batch):
        findings = (
            Finding("word", "says it", token_span=(0, 2)),
            Finding("far", "beyond", token_span=(90, 99)),
        )
        return [
            reject(self.name, findings=findings) if "Hail" in c.text else accept(self.name)
            for c in batch
        ]


class Notes:
    def __init__(self):
        self.seen = []

    def record(self, batch, verdicts):
        self.seen += [
            (c.node, v.outcome.value, v.cause) for c, v in zip(batch, verdicts, strict=True)
        ]


def by_text(completions, **kwargs):
    return [REWARD[text] for text in completions]


async def length(completions, **kwargs):
    return [float(len(text)) for text in completions]


def not_my_task(completions, **kwargs):
    return [None] * len(completions)


def rloo(rewards):
    """RLOO's advantages: each reward minus the mean of the others."""
    r = np.array([np.nan if x is None else x for x in rewards], dtype=np.float64)
    n = (~np.isnan(r)).sum()
    return np.nan_to_num(r - (np.nansum(r) - r) / (n - 1), nan=0.0)


def train(folder, functions, verifier, *, policy=None, kind=Guarded, ledger=None, **settings):
    options = {"guard": Guard(verifier, policy=policy, ledger=ledger)}
    options |= {k: settings.pop(k) for k in ("mask_spans",) if k in settings}
    rollout = settings.pop("rollout", tiny_trl.peers(*SENT))
    made = tiny_trl.trainer(
        folder, functions, rollout=rollout, kind=kind, extra=options, **settings
    )
    made.train()
    return made


@pytest.mark.parametrize(
    ("on_reject", "totals"),
    [
        ("zero", [1 + 2, 0, 2 + 1, 0 + 1]),
        ("drop", [1 + 2, None, 2 + 1, 0 + 1]),
        pytest.param(-1.0, [1 + 2, -1, 2 + 1, 0 + 1], marks=pytest.mark.slow),
    ],
)
def test_one_veto_covers_all_functions_before_the_baseline(tmp_path, on_reject, totals):
    verifier, notes = NoWord(), Notes()
    made = train(
        tmp_path,
        [by_text, length, not_my_task],
        verifier,
        policy=Policy(on_reject=on_reject),
        ledger=notes,
    )
    assert len(verifier.batches) == 2
    for captured in made.captured:
        np.testing.assert_allclose(captured, tiny_trl.advantages(totals), atol=1e-3)
    first = verifier.batches[0][1]
    assert (first.node, first.group, first.slot, first.round) == ("peer1", 0, 1, 0)
    assert first.prompt_ids == tuple(made.processing_class(first.prompt)["input_ids"])
    assert len(notes.seen) == 8
    assert made.state.log_history[0]["guard/reject_rate/no_word"] == 0.25
    assert list(made._logs["extra"]["guard"])[1] == "reject: says Hail"
    assert made.reward_func_names == ["by_text", "length", "not_my_task"]


@pytest.mark.slow
def test_left_out_rows_have_no_loss_not_even_kl(tmp_path):
    made = train(tmp_path, [by_text], NoWord(), policy=Policy(on_reject="drop"))
    output = made.outputs[0]
    kept = output["completion_mask"] * output["tool_mask"]
    assert kept.sum(dim=1).tolist() == [3, 0, 2, 2]  # characters and EOS
    assert int(output["num_items_in_batch"]) == 7
    made = train(tmp_path, [by_text], NoWord(), policy=Policy(on_reject="zero"))
    assert "tool_mask" not in made.outputs[0]
    assert int(made.outputs[0]["num_items_in_batch"]) == 12


@pytest.mark.parametrize("loss_type", ["dapo", pytest.param("grpo", marks=pytest.mark.slow)])
def test_batch_left_out_entirely_does_not_change_the_weights(tmp_path, loss_type):
    made = train(tmp_path, [by_text], Broken(), loss_type=loss_type)
    fresh = tiny_trl.model(made.processing_class)
    for a, b in zip(made.model.parameters(), fresh.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert made.captured == [[0.0] * 4] * 2


def test_flagged_tokens_are_masked_and_the_reward_stays(tmp_path):
    made = train(tmp_path, [by_text], FirstTokens(), mask_spans=True, loss_type="dapo")
    for captured, output in zip(made.captured, made.outputs, strict=True):
        np.testing.assert_allclose(captured, tiny_trl.advantages([1, 5, 2, 0]), atol=1e-3)
        assert output["tool_mask"].tolist() == [[1] * 5, [0, 0, 1, 1, 1], [1] * 5, [1] * 5]
        assert int(output["num_items_in_batch"]) == 12 - 2
    assert made.state.log_history[0]["guard/masked_tokens"] == pytest.approx(2 / 12)


def test_rejection_without_tokens_is_a_veto_under_mask_spans_too(tmp_path):
    made = train(tmp_path, [by_text], AllOf(FirstTokens(), NoWord()), mask_spans=True)
    np.testing.assert_allclose(made.captured[0], tiny_trl.advantages([1, None, 2, 0]), atol=1e-3)


def test_tokens_of_a_verdict():
    def bad(*spans, name="a"):
        return reject(name, findings=[Finding("k", "m", token_span=s) for s in spans])

    def both(kind, *members):
        return kind(*map(Fixed, members)).verify([None])[0]

    class Fixed(CompletionVerifier):
        def __init__(self, verdict):
            self.verdict, self.name = verdict, verdict.verifier

        def verify(self, batch):
            return [self.verdict]

    assert flagged_tokens(accept("a"), 9) == ()
    assert flagged_tokens(bad((2, 4), (0, 1), (8, 20), (30, 40), (5, 5)), 9) == (
        (2, 4),
        (0, 1),
        (8, 9),
    )
    assert flagged_tokens(reject("a", Cause.MALFORMED, "m"), 9) == ()
    assert flagged_tokens(both(AllOf, bad((0, 1)), bad((4, 5), name="b")), 9) == ((0, 1), (4, 5))
    assert flagged_tokens(both(AllOf, bad((0, 1)), accept("b")), 9) == ((0, 1),)
    assert flagged_tokens(both(AllOf, bad((0, 1)), reject("b", message="all of it")), 9) == ()
    assert flagged_tokens(both(AnyOf, bad((0, 1)), bad((0, 1), name="b")), 9) == ((0, 1), (0, 1))
    # A completion flagged from end to end is rejected as a whole.
    assert flagged_tokens(bad((0, 9)), 9) == ()
    assert flagged_tokens(bad((4, 20), (0, 2), (1, 4)), 9) == ()
    assert flagged_tokens(bad((0, 4), (5, 9)), 9) == ((0, 4), (5, 9))
    assert flagged_tokens(both(AllOf, bad((0, 5)), bad((5, 9), name="b")), 9) == ()


@pytest.mark.slow
def test_evaluation_is_not_judged(tmp_path):
    verifier, notes = NoWord(), Notes()
    made = train(tmp_path, [by_text], verifier, ledger=notes, max_steps=1)
    judged, heard = len(verifier.batches), len(notes.seen)
    assert heard
    logged = made.evaluate(tiny_trl.dataset().select(range(4)))
    assert (len(verifier.batches), len(notes.seen)) == (judged, heard)
    assert logged["eval_reward"] == np.mean([REWARD[text] for text in SENT])
    made.train()
    assert len(notes.seen) > heard


def cost(completions, **kwargs):
    return [2.0 if text == "3" else -4.0 for text in completions]


def toll(completions, **kwargs):
    return [7.0] * len(completions)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "on_reject", "hail"),
    [
        (cost, "zero", -2),  # weighed -1, a cost of -4 is a gain: vetoed to the lowest, "3"'s -2
        (toll, "zero", -7),  # and one of 7 a penalty: it stays
        (toll, -3.0, -3),  # one function returns None, one has weight 0: the number applies
    ],
)
def test_veto_respects_reward_weights(tmp_path, function, on_reject, hail):
    made = train(
        tmp_path,
        [not_my_task, length, function],
        NoWord(),
        policy=Policy(on_reject=on_reject),
        max_steps=1,
        reward_weights=[1.0, 0.0, -1.0],
    )
    kept = [-float(value) for value in function(list(SENT))]
    kept[SENT.index("Hail")] = hail
    np.testing.assert_allclose(made.captured[0], tiny_trl.advantages(kept), atol=1e-3)


def test_guarded_functions_are_refused(tmp_path):
    for function in (by_text, length):
        guarded = guard(NoWord())(function)
        partial = functools.update_wrapper(functools.partial(guarded), guarded)
        del partial.guard
        for one in (guarded, partial):
            with pytest.raises(FrameworkError, match=f"'{function.__name__}' is already guarded"):
                train(tmp_path, [one], NoWord())


@pytest.mark.slow
@pytest.mark.parametrize("mixin", [False, True])
@pytest.mark.parametrize(("on_reject", "mine"), [("zero", 0), ("drop", None)])
def test_rloo_drops_or_zeroes_a_rejected_completion(tmp_path, mixin, on_reject, mine):
    policy = Policy(on_reject=on_reject)
    functions, kind, extra = [odd], GuardedRLOO, {"guard": Guard(Odd(), policy=policy)}
    if not mixin:
        functions, kind, extra = guard(Odd(), policy=policy)([odd]), tiny_trl.CapturingRLOO, {}
    made = tiny_trl.trainer(
        tmp_path, functions, kind=kind, extra=extra, beta=0.0, learning_rate=1e-3
    )
    made.train()
    assert len(made.captured) == 2
    for captured in made.captured:
        np.testing.assert_allclose(captured, rloo([1, mine, 3, mine]), atol=1e-4)


def odd(completions, **kwargs):
    return [1.0 + i for i in range(len(completions))]


class Odd(CompletionVerifier):
    """Rejects every second row."""

    name = "odd"

    def verify(self, batch):
        return [
            reject(self.name, message="odd") if c.slot % 2 else accept(self.name) for c in batch
        ]


def test_token_masks_are_refused_if_the_trainer_has_none(tmp_path):
    with pytest.raises(FrameworkError, match="mask_spans: GuardedRLOO has one ratio"):
        tiny_trl.trainer(
            tmp_path,
            [odd],
            kind=GuardedRLOO,
            extra={"guard": Guard(Odd()), "mask_spans": True},
            beta=0.0,
        )


def test_ready_made_classes():
    from grpo_guard.adapters.trl import trainer

    assert trainer.GuardedGRPOTrainer.__mro__[1:3] == (
        GuardedTrainer,
        GuardedTrainer.__mro__[1],
    )
    assert issubclass(trainer.GuardedRLOOTrainer, tiny_trl.RLOOTrainer)
    with pytest.raises(AttributeError, match="no attribute 'GuardedPPOTrainer'"):
        _ = trainer.GuardedPPOTrainer


def test_token_masks_are_refused_with_length_scaling(tmp_path):
    guard = Guard(FirstTokens(), policy=Policy(on_reject="drop", on_long="scale"))
    with pytest.raises(FrameworkError, match="mask_spans lets them keep their reward"):
        tiny_trl.trainer(tmp_path, [odd], kind=Guarded, extra={"guard": guard, "mask_spans": True})


def only_right(completions, **kwargs):
    return [{"12": 1.0, "Hail": 0.0, "3": 2.0, "x": 0.0}[text] for text in completions]


def format_of_hail(completions, **kwargs):
    return [float(text == "Hail") for text in completions]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("functions", "totals"),
    [
        ([only_right], [1.0, 0.0, 2.0, 0.0]),  # loses, so it stays
        ([by_text], [1.0, None, 2.0, 0.0]),  # would gain
        ([only_right, format_of_hail], [1.0, 1.0, 2.0, 0.0]),  # a sum of 1 is no gain
        ([only_right, format_of_hail, format_of_hail], [1.0, None, 2.0, 0.0]),
    ],
)
def test_no_gain_leaves_out_rows_that_gain_in_the_sum(tmp_path, functions, totals):
    functions = [
        f if i < 2 else lambda completions, **kw: format_of_hail(completions)
        for i, f in enumerate(functions)
    ]
    for i, function in enumerate(functions[2:]):
        function.__name__ = f"again_{i}"
    made = train(tmp_path, functions, NoWord(), policy=Policy(on_reject="no_gain"), max_steps=1)
    np.testing.assert_allclose(made.captured[0], tiny_trl.advantages(totals), atol=1e-3)
    trained = made.outputs[0]["completion_mask"]
    if "tool_mask" in made.outputs[0]:
        trained = trained * made.outputs[0]["tool_mask"]
    assert (trained.sum(dim=1) > 0).tolist() == [total is not None for total in totals]


def test_no_gain_needs_the_guarded_trainer():
    with pytest.raises(FrameworkError, match="use the guarded trainer"):
        guard(NoWord(), policy=Policy(on_reject="no_gain"))(by_text)
