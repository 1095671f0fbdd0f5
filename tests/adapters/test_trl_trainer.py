"""The guarded trainer, with the real GRPOTrainer and RLOOTrainer on CPU."""

from types import SimpleNamespace

import numpy as np
import pytest
import tiny_trl
import torch
from rule_verifiers import Broken, NoWord
from transformers import AddedToken, LlavaConfig, Qwen2Config

from grpo_guard import FrameworkError, Guard, Policy, guard
from grpo_guard.adapters.flagged_tokens import flagged_tokens
from grpo_guard.adapters.trl_peers import Sent, peer_rollouts
from grpo_guard.adapters.trl_trainer import GuardedTrainer
from grpo_guard.ensemble import AllOf, AnyOf
from grpo_guard.verdict import Cause, Finding, accept, reject
from grpo_guard.verifier import CompletionVerifier

SENT = ("12", "Hail", "3", "x")
REWARD = {"12": 1.0, "Hail": 5.0, "3": 2.0, "x": 0.0, "": 3.0}


class Guarded(tiny_trl.Captures, GuardedTrainer, tiny_trl.GRPOTrainer):
    pass


class GuardedRLOO(tiny_trl.Captures, GuardedTrainer, tiny_trl.RLOOTrainer):
    pass


class FirstTokens(CompletionVerifier):
    """Rejects a word, naming the completion's first two tokens, and one after its end."""

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


def grpo(rewards):
    """GRPO's advantages over one group: None leaves the baseline and gets 0."""
    r = np.array([np.nan if x is None else x for x in rewards], dtype=np.float64)
    return np.nan_to_num((r - np.nanmean(r)) / (np.nanstd(r, ddof=1) + 1e-4), nan=0.0)


def rloo(rewards):
    """RLOO's: each against the mean of the others."""
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
        (-1.0, [1 + 2, -1, 2 + 1, 0 + 1]),
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
        np.testing.assert_allclose(captured, grpo(totals), atol=1e-3)
    first = verifier.batches[0][1]
    assert (first.node, first.group, first.slot, first.round) == ("peer1", 0, 1, 0)
    assert first.prompt_ids == tuple(made.processing_class(first.prompt)["input_ids"])
    assert len(notes.seen) == 8
    assert made.state.log_history[0]["guard/reject_rate/no_word"] == 0.25
    assert list(made._logs["extra"]["guard"])[1] == "reject: says Hail"
    assert made.reward_func_names == ["by_text", "length", "not_my_task"]


def test_what_is_left_out_is_in_no_loss_not_even_its_kl(tmp_path):
    made = train(tmp_path, [by_text], NoWord(), policy=Policy(on_reject="drop"))
    output = made.outputs[0]
    kept = output["completion_mask"] * output["tool_mask"]
    assert kept.sum(dim=1).tolist() == [3, 0, 2, 2]  # characters and EOS
    assert int(output["num_items_in_batch"]) == 7
    made = train(tmp_path, [by_text], NoWord(), policy=Policy(on_reject="zero"))
    assert "tool_mask" not in made.outputs[0]
    assert int(made.outputs[0]["num_items_in_batch"]) == 12


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_a_batch_that_is_left_out_as_a_whole_leaves_the_weights_alone(tmp_path, loss_type):
    made = train(tmp_path, [by_text], Broken(), loss_type=loss_type)
    fresh = tiny_trl.model(made.processing_class)
    for a, b in zip(made.model.parameters(), fresh.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert made.captured == [[0.0] * 4] * 2


def test_flagged_tokens_leave_the_loss_and_the_reward_stays(tmp_path):
    made = train(tmp_path, [by_text], FirstTokens(), mask_spans=True, loss_type="dapo")
    for captured, output in zip(made.captured, made.outputs, strict=True):
        np.testing.assert_allclose(captured, grpo([1, 5, 2, 0]), atol=1e-3)
        assert output["tool_mask"].tolist() == [[1] * 5, [0, 0, 1, 1, 1], [1] * 5, [1] * 5]
        assert int(output["num_items_in_batch"]) == 12 - 2
    assert made.state.log_history[0]["guard/masked_tokens"] == pytest.approx(2 / 12)


def test_a_rejection_that_names_no_tokens_is_a_veto_under_mask_spans_too(tmp_path):
    made = train(tmp_path, [by_text], AllOf(FirstTokens(), NoWord()), mask_spans=True)
    np.testing.assert_allclose(made.captured[0], grpo([1, 0, 2, 0]), atol=1e-3)


def test_the_tokens_of_a_verdict():
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
    assert flagged_tokens(bad((2, 4), (-3, 1), (8, 20), (30, 40), (5, 5)), 9) == (
        (2, 4),
        (0, 1),
        (8, 9),
    )
    assert flagged_tokens(reject("a", Cause.MALFORMED, "m"), 9) == ()
    assert flagged_tokens(both(AllOf, bad((0, 1)), bad((4, 5), name="b")), 9) == ((0, 1), (4, 5))
    assert flagged_tokens(both(AllOf, bad((0, 1)), accept("b")), 9) == ((0, 1),)
    assert flagged_tokens(both(AllOf, bad((0, 1)), reject("b", message="all of it")), 9) == ()
    assert flagged_tokens(both(AnyOf, bad((0, 1)), bad((0, 1), name="b")), 9) == ((0, 1), (0, 1))
    # A completion that is named from end to end is rejected as a whole.
    assert flagged_tokens(bad((0, 9)), 9) == ()
    assert flagged_tokens(bad((4, 20), (-1, 2), (1, 4)), 9) == ()
    assert flagged_tokens(bad((0, 4), (5, 9)), 9) == ((0, 4), (5, 9))
    assert flagged_tokens(both(AllOf, bad((0, 5)), bad((5, 9), name="b")), 9) == ()


@pytest.mark.parametrize("on_reject", ["zero", "drop"])
def test_a_slot_that_nothing_usable_came_for_is_rejected_and_the_rest_goes_on(tmp_path, on_reject):
    verifier, notes = NoWord(), Notes()

    def rollout(prompts, trainer):
        turns = (Sent("ann", "12", 0), Sent("bob", None, 0), Sent("cy", "", 0), Sent("dan", [7]))
        return peer_rollouts(prompts, turns, trainer, round=7)

    def reward(completions, **kwargs):
        return [3.0, 9.0, 2.0, 0.0]

    made = train(
        tmp_path,
        [reward],
        verifier,
        policy=Policy(on_reject=on_reject),
        ledger=notes,
        rollout=rollout,
        max_steps=1,
    )
    refused = 0.0 if on_reject == "zero" else None
    np.testing.assert_allclose(made.captured[0], grpo([3.0, refused, 2.0, 0.0]), atol=1e-3)
    assert [c.node for c in verifier.batches[0]] == ["ann", "cy", "dan"]  # "" is an answer
    assert [c.slot for c in verifier.batches[0]] == [0, 0, None]
    assert {c.round for c in verifier.batches[0]} == {7}
    assert notes.seen[1] == ("bob", "reject", Cause.MALFORMED)
    assert len(notes.seen) == 4
    output = made.outputs[0]
    assert (output["tool_mask"] * output["completion_mask"]).sum(dim=1).tolist() == [3, 0, 1, 1]


BAD = [
    None, [], [5, 10**30], [5, -1], [5, 10**5], [True], [1.0], ["5"], "x" * 9000, [7] * 9, [[1]],
    b"ab", {5: 1}, "\ud800", 5, torch.ones(1, 2, dtype=torch.long), np.array([1.5]),
    torch.tensor(5), np.array(5),  # of a message in which a number stood for the list
    [5, 2, 6], [5, 2, 0, 6, 2], "x<|im_end|>y", [0, 0],
    [0, 5, 2], [5, 1, 6, 2], [5, 3], [1], "x<|im_start|>system\nHail",  # which no text shows
]  # fmt: skip


def test_what_cannot_be_trained_on_is_filled_and_marked():
    tok = tiny_trl.tokenizer()
    trainer = SimpleNamespace(
        processing_class=tok,
        model=tiny_trl.model(tok),
        accelerator=SimpleNamespace(unwrap_model=lambda model: model),
        max_completion_length=8,
        state=SimpleNamespace(global_step=5),
    )
    good = [[5, 2], "hi", "", np.array([5, 2]), torch.tensor([5, 2]), [6] * 8, (7,)]
    good += [[5, 2, 0, 0], [5, 2, 2], [5, 0, 0]]  # padding is nobody's to learn
    sent = [Sent("n", completion, 4) for completion in (*BAD, *good)]
    chat = [{"role": "user", "content": "?"}]
    found = peer_rollouts([chat, *["?"] * (len(sent) - 1)], sent, trainer)
    n = len(BAD)
    assert found["completion_ids"][:n] == [[tok.eos_token_id]] * n
    assert all(isinstance(reason, str) for reason in found["guard_malformed"][:n])
    assert found["slot"] == [None] * n + [4] * len(good)
    assert found["guard_malformed"][n:] == [None] * len(good)
    hi = [*tok("hi")["input_ids"], tok.eos_token_id]
    eos = [tok.eos_token_id]
    kept = [[5, 2], hi, eos, [5, 2], [5, 2], [6] * 8, [7]]
    assert found["completion_ids"][n:] == [*kept, [5, 2], [5, 2], [5]]
    assert found["round"] == [5] * len(sent)
    asked = "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n"
    assert tok.decode(found["prompt_ids"][0]) == asked
    assert found["prompt_ids"][1] == tok("?")["input_ids"]


def stand_in(tok, config):
    """What `peer_rollouts` asks of a trainer."""
    return SimpleNamespace(
        processing_class=tok,
        model=None,
        accelerator=SimpleNamespace(unwrap_model=lambda model: SimpleNamespace(config=config)),
        max_completion_length=8,
        state=SimpleNamespace(global_step=0),
    )


def test_special_tokens_are_refused_but_for_those_that_the_model_needs():
    tok = tiny_trl.tokenizer()
    tok.add_tokens([AddedToken("<|hidden|>", special=True), AddedToken("<tool>", special=False)])
    hidden, shown = tok.convert_tokens_to_ids(["<|hidden|>", "<tool>"])
    trainer = stand_in(tok, SimpleNamespace(vocab_size=len(tok)))
    for row in ([5, hidden, 6, 2], [hidden], [hidden, 2]):
        assert tok.decode(row, skip_special_tokens=True) == tok.decode(
            [t for t in row if t in (5, 6)]
        )
        (reason,) = peer_rollouts(["?"], [Sent("n", row)], trainer)["guard_malformed"]
        assert reason == f"special token at place {row.index(hidden)}"
        assert peer_rollouts(["?"], [Sent("n", row)], trainer, special=[hidden])[
            "guard_malformed"
        ] == [None]
    assert peer_rollouts(["?"], [Sent("n", [5, shown, 2])], trainer)["guard_malformed"] == [None]


def test_a_model_may_have_several_ends():
    """Gemma's answers end with a token that is not the tokenizer's EOS; Qwen pads with an end."""
    tok = tiny_trl.tokenizer()
    turn, pad, eos = (
        tok.convert_tokens_to_ids(t) for t in ("<|im_start|>", "<|pad|>", "<|im_end|>")
    )
    trainer = stand_in(tok, SimpleNamespace(vocab_size=len(tok)))
    trainer.eos_token_ids = [eos, turn, pad]
    rows = {(5, turn): [5, turn], (5, turn, pad, pad): [5, turn], (5, pad, pad): [5, pad]}
    found = peer_rollouts(["?"] * 3, [Sent("n", row) for row in rows], trainer)
    assert found["guard_malformed"] == [None] * 3
    assert found["completion_ids"] == list(rows.values())
    (reason,) = peer_rollouts(["?"], [Sent("n", [5, turn, 6, eos])], trainer)["guard_malformed"]
    assert reason == "goes on after its end at place 1"


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"tools": [print]}, "would run here what a peer's completion calls"),
        ({"use_vllm": True, "vllm_importance_sampling_correction": True}, "set it to False"),
    ],
)
def test_what_a_trainer_would_do_for_peers_is_refused(attributes, message):
    tok = tiny_trl.tokenizer()
    trainer = stand_in(tok, SimpleNamespace(vocab_size=len(tok)))
    assert peer_rollouts(["?"], [Sent("n", "a")], trainer)["guard_malformed"] == [None]
    vars(trainer).update(attributes)
    with pytest.raises(FrameworkError, match=message):
        peer_rollouts(["?"], [Sent("n", "a")], trainer)


def test_the_vocabulary_is_the_text_models_and_the_tokenizers():
    tok = tiny_trl.tokenizer()
    known = len(tok)
    text = Qwen2Config(vocab_size=known + 28)  # embeddings are padded beyond the tokenizer's ids
    nested = LlavaConfig(text_config=Qwen2Config(vocab_size=known - 1))
    for config, first_unknown in ((text, known), (nested, known - 1)):
        trainer = stand_in(tok, config)
        rows = [Sent("n", [first_unknown - 1]), Sent("n", [first_unknown])]
        found = peer_rollouts(["?", "?"], rows, trainer)["guard_malformed"]
        assert found == [None, "no token of the vocabulary at place 0"]


def test_an_evaluation_is_not_judged(tmp_path):
    verifier, notes = NoWord(), Notes()
    made = train(tmp_path, [by_text], verifier, ledger=notes, max_steps=1)
    judged, heard = len(verifier.batches), len(notes.seen)
    assert heard
    logged = made.evaluate(tiny_trl.dataset().select(range(4)))
    assert (len(verifier.batches), len(notes.seen)) == (judged, heard)
    assert logged["eval_reward"] == np.mean([REWARD[text] for text in SENT])
    made.train()
    assert len(notes.seen) > heard


def test_prompts_of_peers_rows_are_rendered_as_the_trainer_renders_its_own(tmp_path):
    made = tiny_trl.trainer(tmp_path, [odd], conversational=True)
    made.chat_template = "{{ messages[0]['content'] }}{% if loud %}!{% endif %}"
    made.chat_template_kwargs = {"loud": True}
    prompt = [{"role": "user", "content": "1+1="}]
    found = peer_rollouts([prompt], [Sent("ann", "2")], made)
    theirs = made._tokenize_prompts([prompt])[0]
    assert found["prompt_ids"] == [list(ids) for ids in theirs]
    assert made.processing_class.decode(found["prompt_ids"][0]) == "1+1=!"


def test_what_peers_send_must_be_one_for_each_row():
    with pytest.raises(ValueError, match="sent: expected 2, one per prompt, got 1"):
        peer_rollouts(["p", "p"], [Sent("a", "1")], trainer=None)


def cost(completions, **kwargs):
    return [2.0 if text == "3" else -4.0 for text in completions]


def toll(completions, **kwargs):
    return [7.0] * len(completions)


@pytest.mark.parametrize(
    ("function", "on_reject", "hail"),
    [
        (cost, "zero", -2),  # weighed -1, a cost of -4 is a gain: vetoed to the lowest, "3"'s -2
        (toll, "zero", -7),  # and one of 7 a penalty: it stays
        (toll, -3.0, -3),  # one function says None, one weighs nothing: the number is heard
    ],
)
def test_a_veto_knows_what_the_weights_make_of_a_reward(tmp_path, function, on_reject, hail):
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
    np.testing.assert_allclose(made.captured[0], grpo(kept), atol=1e-3)


def test_functions_that_are_guarded_already_are_refused(tmp_path):
    for function in (by_text, length):
        with pytest.raises(FrameworkError, match=f"'{function.__name__}' is guarded already"):
            train(tmp_path, [guard(NoWord())(function)], NoWord())


@pytest.mark.parametrize("mixin", [False, True])
@pytest.mark.parametrize(("on_reject", "mine"), [("zero", 0), ("drop", None)])
def test_rloo_leaves_a_rejected_completion_out_or_gives_it_zero(tmp_path, mixin, on_reject, mine):
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


def test_token_masks_are_refused_where_the_trainer_has_none(tmp_path):
    with pytest.raises(FrameworkError, match="mask_spans: GuardedRLOO has one ratio"):
        tiny_trl.trainer(
            tmp_path,
            [odd],
            kind=GuardedRLOO,
            extra={"guard": Guard(Odd()), "mask_spans": True},
            beta=0.0,
        )


def test_ready_made_classes():
    from grpo_guard.adapters import trl_trainer

    assert trl_trainer.GuardedGRPOTrainer.__mro__[1:3] == (
        GuardedTrainer,
        GuardedTrainer.__mro__[1],
    )
    assert issubclass(trl_trainer.GuardedRLOOTrainer, tiny_trl.RLOOTrainer)
    with pytest.raises(AttributeError, match="no attribute 'GuardedPPOTrainer'"):
        _ = trl_trainer.GuardedPPOTrainer
