"""Two turns and a calculator through TRL's real trainer: peers' transcripts and its own tools."""

from types import SimpleNamespace

import pytest
from datasets import Dataset
from trl import GRPOConfig

from grpo_guard import Guard, LogProbBoundVerifier, Policy, SamplingSpec
from grpo_guard.adapters.trl.batch import MASK, rows_from
from grpo_guard.adapters.trl.peers import Sent, peer_rollouts
from grpo_guard.adapters.trl.trainer import GuardedTrainer, mask_of
from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.evals.tasks.word_problems import generate
from grpo_guard.guard.framework import FrameworkError
from tests.helpers import calculator
from tests.helpers.calculator import marked, with_phrase
from tests.helpers.rule_verifiers import NoWord
from tests.trl import tiny_trl

SPEC = SamplingSpec("transformers", 1.0, 50, 1.0, max_new_tokens=96)
PROMPTS = [problem.prompt for problem in generate(3, 4)]
KINDS = ("honest", "honest", "first", "second", "marked", "forged")


class Guarded(tiny_trl.Captures, GuardedTrainer, tiny_trl.GRPOTrainer):
    pass


def played(model, tokenizer, prompts, seed, **more):
    seeds = [seed + i for i in range(len(prompts))]
    return calculator.play(model, tokenizer, prompts, seeds, SPEC, **more)


def sent_by(kind, model, tokenizer, prompt, seed):
    """The row that a node of the given kind sends; every bundled prompt here has a sum."""
    while True:
        forged = " 9999" if kind == "forged" else None
        (one,) = played(model, tokenizer, [prompt], seed, forged=forged)
        if one.given is not None and kind in ("first", "second"):
            one = with_phrase(tokenizer, one, ("first", "second").index(kind)) or one
            one = one if "hail" in one.text else None
        elif one.given is not None and kind == "marked":
            one = marked(tokenizer, one)
        if one is not None and one.given is not None:
            return one
        seed += 1000


def trained(folder, rollout, guard):
    model, tokenizer = load_bundled()
    args = GRPOConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, max_steps=1, num_generations=6,
        per_device_train_batch_size=6, max_completion_length=128, top_k=50, report_to="none",
        save_strategy="no", logging_steps=1, learning_rate=0.0,
    )  # fmt: skip
    data = Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS])

    def reward(completions, **kwargs):
        return [1.0 + i / 10 for i in range(len(completions))]

    verifier = LogProbBoundVerifier(model, tokenizer, sampling=SPEC, node_alpha=0)
    made = Guarded(
        model, [reward], args, data, processing_class=tokenizer, rollout_func=rollout,
        guard=guard(verifier),
    )  # fmt: skip
    made.train()
    return made


@pytest.mark.slow
def test_peer_transcripts_are_masked_and_their_tools_rerun(tmp_path):
    seen = []

    def rollout(prompts, trainer):
        model, tokenizer = trainer.model, trainer.processing_class
        chosen = [
            sent_by(KINDS[i % 6], model, tokenizer, prompt, i) for i, prompt in enumerate(prompts)
        ]
        seen.extend(chosen)
        sent = [Sent(f"n{i % 6}", one.completion_ids, given=one.given.tokens)
                for i, one in enumerate(chosen)]  # fmt: skip
        return peer_rollouts(prompts, sent, trainer)

    made = trained(
        tmp_path,
        rollout,
        lambda verifier: Guard(verifier, policy=Policy("drop"), environment=calculator.answer),
    )
    (output,) = made.outputs
    trains = (output["tool_mask"] * output["completion_mask"]).sum(dim=1).tolist()
    for kind, one, tokens in zip(KINDS, seen, trains, strict=True):
        ((start, end),) = one.given.tokens
        drawn = len(one.completion_ids) - (end - start)
        assert tokens == (drawn if kind == "honest" else 0), kind


@pytest.mark.slow
def test_output_of_own_tools_is_trusted(tmp_path):
    def rollout(prompts, trainer):
        model, tokenizer = trainer.model, trainer.processing_class
        chosen = [sent_by("honest", model, tokenizer, p, i) for i, p in enumerate(prompts)]
        masks = []
        for one in chosen:
            ((start, end),) = one.given.tokens
            mask = [1] * len(one.completion_ids)
            mask[start:end] = [0] * (end - start)
            masks.append(mask)
        return {
            "prompt_ids": [list(one.prompt_ids) for one in chosen],
            "completion_ids": [list(one.completion_ids) for one in chosen],
            "logprobs": None,
            "env_mask": masks,
        }

    shown = []

    class Notes:
        def record(self, batch, verdicts):
            shown.extend(zip(batch, verdicts, strict=True))

    trained(tmp_path, rollout, lambda verifier: Guard(verifier, ledger=Notes()))
    assert len(shown) == 6
    for completion, verdict in shown:
        assert completion.verified_spans == completion.given
        assert completion.text[slice(*completion.given.chars[0])].strip().isdigit()
        assert verdict.accepted


def test_peer_spans_are_claims_and_invalid_ones_reject_the_row():
    tok = tiny_trl.tokenizer()
    trainer = SimpleNamespace(
        processing_class=tok, model=tiny_trl.model(tok), max_completion_length=16,
        accelerator=SimpleNamespace(unwrap_model=lambda model: model),
        state=SimpleNamespace(global_step=5),
    )  # fmt: skip
    ids = [5, 6, 2, 1, 7, 1, 8, 9, 2]  # a turn with its EOS, a tool's with markers, another turn
    good = Sent("n", ids, given=[(3, 6)])
    odd = [
        [(3, 99)], [(6, 3)], [(0, 4), (3, 6)], "ab", [(3,)], [(i, i) for i in range(5)], [(4, 6)],
        [(3, 5)], [], 7,
    ]  # fmt: skip
    sent = [good, *(Sent("n", ids, given=spans) for spans in odd), Sent("n", "12", given=[(0, 1)])]
    found = peer_rollouts(["?"] * len(sent), sent, trainer)
    assert found["guard_malformed"][0] is None
    assert all(found["guard_malformed"][1:])
    assert found["env_mask"] == found[MASK]
    assert found["env_mask"][0] == [1, 1, 1, 0, 0, 0, 1, 1, 1]
    assert all(map(len, found["env_mask"]))
    rows = rows_from(
        {**found, "prompts": ["?"] * len(sent), "completions": [""] * len(sent)}, tokenizer=tok
    )
    assert rows[0].completion.given.tokens == ((3, 6),)
    start, end = rows[0].completion.given.chars[0]
    assert rows[0].completion.text[start:end] == tok.decode([1, 7, 1])  # special tokens too
    assert rows[0].completion.verified_spans is None
    assert rows[0].completion.context is not None
    # Unsigned work that an identity admits has no node, and is not the trainer's own.
    nameless = peer_rollouts(["?"], [Sent(None, ids, given=[(3, 6)])], trainer)
    (row,) = rows_from({**nameless, "prompts": ["?"], "completions": [""]}, tokenizer=tok)
    assert (row.completion.node, row.completion.given.known) == (None, False)
    plain = peer_rollouts(["?"], [Sent("n", [5, 2])], trainer)
    assert "env_mask" not in plain


def test_mask_is_recognised_by_form_and_unused_masks_are_refused():
    ids, mask = [[5, 6], [7]], [[1, 0], [1]]
    assert mask_of((ids, ids, mask, [], [[-0.5, 0.0], [0.0]], {})) == mask
    assert mask_of((ids, ids, None, [], [[0.0, 0.0], [0.0]], {})) is None
    with pytest.raises(FrameworkError, match="env_mask"):
        mask_of((ids, ids, [], {"env_mask": mask}))


def test_mask_of_the_wrong_length_rejects_its_row_only(tmp_path):
    """The others' masks stay valid: their tools' text is not taken for the model's."""

    def rollout(prompts, trainer):
        tok = trainer.processing_class
        ids = [tok(text="Hail 7")["input_ids"] + [tok.eos_token_id] for _ in prompts]
        masks = [[0] * 4 + [1] * 3 for _ in prompts]  # "Hail" is a tool's
        masks[1].append(1)
        masks[2].pop()
        asked = [tok(text=prompt)["input_ids"] for prompt in prompts]
        return {"prompt_ids": asked, "completion_ids": ids, "logprobs": None, "env_mask": masks}

    seen = []

    class Kept:
        def record(self, batch, verdicts):
            seen.extend(zip(batch, verdicts, strict=True))

    guard = Guard(NoWord("Hail"), policy=Policy("drop"), ledger=Kept())
    made = tiny_trl.trainer(
        tmp_path, [lambda completions, **columns: [1.0, 1.0, 1.0, 0.0]], kind=Guarded,
        extra={"guard": guard}, rollout=rollout, max_steps=1,
    )  # fmt: skip
    made.train()
    assert all(seen[i][0].given.tokens == ((0, 4),) for i in (0, 3))
    assert [verdict.cause.value for _, verdict in seen][1:3] == ["malformed"] * 2
    assert not made.outputs[0]["tool_mask"][1:3].any()
