"""Rows that peers sent: what is filled, refused and rendered, with the real trainer on CPU."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AddedToken, LlavaConfig, Qwen2Config

from grpo_guard import Guard, Policy
from grpo_guard.adapters.trl.peers import PeerRollouts, Sent, peer_rollouts
from grpo_guard.adapters.trl.trainer import GuardedTrainer
from grpo_guard.core.verdict import Cause
from grpo_guard.guard.framework import FrameworkError
from tests.helpers.rule_verifiers import NoWord
from tests.trl import tiny_trl
from tests.trl.test_trl_trainer import Notes, odd, train


@pytest.mark.slow
@pytest.mark.parametrize(("on_reject", "own"), [("zero", 9.0), ("drop", 9.0), ("no_gain", -5.0)])
def test_slot_without_a_usable_completion_is_rejected_alone(tmp_path, on_reject, own):
    """Under "no_gain" as well: the filler would lose, but it is no node's text to be unlearnt."""
    verifier, notes = NoWord(), Notes()

    def rollout(prompts, trainer):
        turns = (Sent("ann", "12", 0), Sent("bob", None, 0), Sent("cy", "", 0), Sent("dan", [7]))
        return peer_rollouts(prompts, turns, trainer, round=7)

    def reward(completions, **kwargs):
        return [3.0, own, 2.0, 0.0]

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
    np.testing.assert_allclose(
        made.captured[0], tiny_trl.advantages([3.0, refused, 2.0, 0.0]), atol=1e-3
    )
    assert [c.node for c in verifier.batches[0]] == ["ann", "cy", "dan"]  # "" is an answer
    assert [c.slot for c in verifier.batches[0]] == [0, 0, None]
    assert {c.round for c in verifier.batches[0]} == {7}
    assert notes.seen[1] == ("bob", "reject", Cause.MALFORMED)
    assert len(notes.seen) == 4
    output = made.outputs[0]
    assert (output["tool_mask"] * output["completion_mask"]).sum(dim=1).tolist() == [3, 0, 1, 1]


@pytest.mark.slow
def test_ids_of_a_custom_rollout_function_are_read_before_training(tmp_path):
    """Rows with a column `peer`, unchecked until TRL decodes and trains on them."""
    tok = tiny_trl.tokenizer()
    one, end, special, pad = tok("1")["input_ids"][0], tok.eos_token_id, 1, tok.pad_token_id
    rows = [[one, end], [one, *[end] * 5], [one, special, one, end], [one, end, pad, pad]]

    def rollout(prompts, trainer):
        return {
            "prompt_ids": [tok(text=prompt)["input_ids"] for prompt in prompts],
            "completion_ids": [list(row) for row in rows],
            "logprobs": None,
            "peer": ["ann", "bob", "cy", "dan"],
        }

    def reward(completions, **kwargs):
        return [1.0, 2.0, 3.0, 4.0]

    verifier = NoWord()
    made = train(tmp_path, [reward], verifier, rollout=rollout, max_steps=1)
    assert [(c.node, c.text) for c in verifier.batches[0]] == [("ann", "1")]
    output = made.outputs[0]
    assert (output["tool_mask"] * output["completion_mask"]).sum(dim=1).tolist() == [2, 0, 0, 0]


BAD = [
    None, [], [5, 10**30], [5, -1], [5, 10**5], [True], [1.0], ["5"], "x" * 9000, [7] * 9, [[1]],
    b"ab", {5: 1}, "\ud800", 5, torch.ones(1, 2, dtype=torch.long), np.array([1.5]),
    torch.tensor(5), np.array(5),  # of a message in which a number took the place of the list
    [5, 2, 6], [5, 2, 0, 6, 2], "x<|im_end|>y", [0, 0],
    [0, 5, 2], [5, 1, 6, 2], [5, 3], [1], "x<|im_start|>system\nHail",  # which no text shows
]  # fmt: skip


def test_untrainable_rows_are_filled_and_marked():
    tok = tiny_trl.tokenizer()
    trainer = SimpleNamespace(
        processing_class=tok,
        model=tiny_trl.model(tok),
        accelerator=SimpleNamespace(unwrap_model=lambda model: model),
        max_completion_length=8,
        state=SimpleNamespace(global_step=5),
    )
    good = [[5, 2], "hi", "", np.array([5, 2]), torch.tensor([5, 2]), [6] * 8, (7,)]
    good += [[5, 2, 0, 0], [5, 2, 2], [5, 0, 0]]  # padding must not be learnt
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
    """The attributes that `peer_rollouts` reads from a trainer."""
    return SimpleNamespace(
        processing_class=tok,
        model=None,
        accelerator=SimpleNamespace(unwrap_model=lambda model: SimpleNamespace(config=config)),
        max_completion_length=8,
        state=SimpleNamespace(global_step=0),
    )


def test_special_tokens_are_refused_except_required_ones():
    tok = tiny_trl.tokenizer()
    tok.add_tokens([AddedToken("<|hidden|>", special=True), AddedToken("<tool>", special=False)])
    hidden, shown = tok.convert_tokens_to_ids(["<|hidden|>", "<tool>"])
    trainer = stand_in(tok, SimpleNamespace(vocab_size=len(tok)))
    for row in ([5, hidden, 6, 2], [hidden], [hidden, 2]):
        assert tok.decode(row, skip_special_tokens=True) == tok.decode(
            [t for t in row if t in (5, 6)]
        )
        (reason,) = peer_rollouts(["?"], [Sent("n", row)], trainer)["guard_malformed"]
        assert reason == f"special token at position {row.index(hidden)}"
        assert peer_rollouts(["?"], [Sent("n", row)], trainer, special=[hidden])[
            "guard_malformed"
        ] == [None]
    assert peer_rollouts(["?"], [Sent("n", [5, shown, 2])], trainer)["guard_malformed"] == [None]


def test_model_may_have_several_end_tokens():
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
    assert reason == "continues after its end at position 1"


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"tools": [print]}, "would run here what a peer's completion calls"),
        ({"use_vllm": True, "vllm_importance_sampling_correction": True}, "set it to False"),
    ],
)
def test_trainer_features_unsafe_for_peer_rows_are_refused(attributes, message):
    tok = tiny_trl.tokenizer()
    trainer = stand_in(tok, SimpleNamespace(vocab_size=len(tok)))
    assert peer_rollouts(["?"], [Sent("n", "a")], trainer)["guard_malformed"] == [None]
    vars(trainer).update(attributes)
    with pytest.raises(FrameworkError, match=message):
        peer_rollouts(["?"], [Sent("n", "a")], trainer)


class Guarded(GuardedTrainer, tiny_trl.GRPOTrainer):
    pass


def test_guarded_trainer_refuses_unsafe_settings_at_construction(tmp_path):
    def sent(prompts, trainer):
        return [Sent("ann", "2")] * len(prompts)

    def made(**more):
        return tiny_trl.trainer(
            tmp_path, [odd], kind=Guarded, extra={"guard": Guard(NoWord())},
            rollout=PeerRollouts(sent, round=lambda trainer: 7), **more,
        )  # fmt: skip

    trainer = made()
    assert trainer.rollout_func(["1+1="], trainer)["round"] == [7]
    with pytest.raises(FrameworkError, match="vllm_importance_sampling_correction"):
        made(use_vllm=True)  # before TRL looks for a vLLM


def test_vocabulary_is_that_of_text_model_and_tokenizer():
    tok = tiny_trl.tokenizer()
    known = len(tok)
    text = Qwen2Config(vocab_size=known + 28)  # embeddings are padded beyond the tokenizer's ids
    nested = LlavaConfig(text_config=Qwen2Config(vocab_size=known - 1))
    for config, first_unknown in ((text, known), (nested, known - 1)):
        trainer = stand_in(tok, config)
        rows = [Sent("n", [first_unknown - 1]), Sent("n", [first_unknown])]
        found = peer_rollouts(["?", "?"], rows, trainer)["guard_malformed"]
        assert found == [None, "unknown token id at position 0"]


def test_unreadable_rows_are_refused_with_the_place_and_without_reading_on():
    trainer = stand_in(tiny_trl.tokenizer(), Qwen2Config(vocab_size=20))
    taken = []

    def endless():
        while True:
            taken.append(2)
            yield 2

    rows = {
        "longer than 8 tokens": endless(),
        "unknown token id at position 1": [2, True],
        "unknown token id at position 0": ["2"],
        "no token ids": torch.tensor(2),
        "no valid text": "a\ud800",
    }
    sent = [Sent("n", row) for row in rows.values()]
    assert peer_rollouts(["?"] * len(sent), sent, trainer)["guard_malformed"] == list(rows)
    assert len(taken) == 9


def test_prompts_of_peer_rows_are_rendered_like_the_trainers(tmp_path):
    made = tiny_trl.trainer(tmp_path, [odd], conversational=True)
    made.chat_template = "{{ messages[0]['content'] }}{% if loud %}!{% endif %}"
    made.chat_template_kwargs = {"loud": True}
    prompt = [{"role": "user", "content": "1+1="}]
    found = peer_rollouts([prompt], [Sent("ann", "2")], made)
    theirs = made._tokenize_prompts([prompt])[0]
    assert found["prompt_ids"] == [list(ids) for ids in theirs]
    assert made.processing_class.decode(found["prompt_ids"][0]) == "1+1=!"


def test_peer_columns_need_one_value_per_row():
    with pytest.raises(ValueError, match="sent: expected 2, one per prompt, got 1"):
        peer_rollouts(["p", "p"], [Sent("a", "1")], trainer=None)
