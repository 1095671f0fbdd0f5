"""TRL's importance-sampling correction with the guard: the real trainer, a stand-in for vLLM.

The rows come from a rollout function with the sampler's log-probs; TRL itself weighs and masks.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from grpo_guard import Guard, Policy
from grpo_guard.adapters.trl.correction import masked_sequences, sampling_of
from grpo_guard.adapters.trl.trainer import GuardedTrainer
from tests.helpers.rule_verifiers import NoWord
from tests.trl import tiny_trl

SENT = ("12", "Hail", "3", "x")
REWARD = {"12": 1.0, "Hail": 5.0, "3": 2.0, "x": 0.0}
FAR = 2  # the row whose sampler is far from the policy


class Sampled:
    """As if vLLM had sampled: TRL corrects, and one row of each group is out of bounds."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.use_vllm, self._last_loaded_step = True, -1
        self.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
        self.outputs = []

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.outputs.append(output)
        return output


class Plain(Sampled, tiny_trl.CapturingTrainer):
    pass


class Guarded(Sampled, tiny_trl.Captures, GuardedTrainer, tiny_trl.GRPOTrainer):
    pass


def rollout(prompts, trainer):
    """Rows of four samplers with log-probs; those of row `FAR` are far too low."""
    tok = trainer.processing_class
    sent = [SENT[i % 4] for i in range(len(prompts))]
    asked = [tok(text=p)["input_ids"] for p in prompts]
    ids = [tok(text=t)["input_ids"] + [tok.eos_token_id] for t in sent]
    log_probs = []
    for i, (before, said) in enumerate(zip(asked, ids, strict=True)):
        row = torch.tensor([before + said], device=trainer.model.device)
        with torch.no_grad():
            logits = trainer.model(row).logits[0, len(before) - 1 : -1].float()
        exact = logits.log_softmax(-1)[range(len(said)), said].tolist()
        log_probs.append([x - 5.0 if i % 4 == FAR else x for x in exact])
    return {"prompt_ids": asked, "completion_ids": ids, "logprobs": log_probs}


def by_text(completions, **columns):
    return [REWARD[text] for text in completions]


def train(folder, kind, **settings):
    made = tiny_trl.trainer(folder, [by_text], kind=kind, rollout=rollout, **settings)
    made.train()
    return made


def ratios(trainer):
    return [output["importance_sampling_ratio"].flatten().tolist() for output in trainer.outputs]


def logged(trainer, name):
    return [row[name] for row in trainer.state.log_history if name in row]


def near(values):
    return pytest.approx(values, abs=1e-3)


def test_unguarded_trl_masks_the_sequence_and_keeps_it_in_the_baseline(tmp_path):
    made = train(tmp_path, Plain)
    assert ratios(made)[0] == near([1.0, 1.0, 0.0, 1.0])
    np.testing.assert_allclose(
        made.captured[0], tiny_trl.advantages([1.0, 5.0, 2.0, 0.0]), atol=1e-3
    )


@pytest.mark.parametrize(("leave_out", "third"), [(False, 2.0), (True, None)])
def test_veto_combined_with_a_masked_sequence(tmp_path, leave_out, third):
    guard = Guard(NoWord(), policy=Policy("drop"))
    made = train(tmp_path, Guarded, extra={"guard": guard, "leave_out_masked": leave_out})
    assert len(made.captured) == 2
    for captured in made.captured:
        np.testing.assert_allclose(
            captured, tiny_trl.advantages([1.0, None, third, 0.0]), atol=1e-3
        )
    assert ratios(made)[0] == near([1.0, 1.0, 0.0, 1.0])
    assert logged(made, "guard/masked_sequences") == [0.25, 0.25]
    # TRL's own metrics cover all rows, whatever the guard left out.
    assert logged(made, "sampling/importance_sampling_ratio/min")[0] == 0.0
    assert made.outputs[0]["tool_mask"][1].sum() == 0


def test_other_modes_mask_no_sequence(tmp_path):
    guard = Guard(NoWord(), policy=Policy("drop"))
    made = train(
        tmp_path, Guarded, extra={"guard": guard, "leave_out_masked": True},
        vllm_importance_sampling_mode="token_truncate",
    )  # fmt: skip
    np.testing.assert_allclose(
        made.captured[0], tiny_trl.advantages([1.0, None, 2.0, 0.0]), atol=1e-3
    )
    assert logged(made, "guard/masked_sequences") == []


def test_tokens_that_vllm_could_not_score_have_ratio_one():
    trainer = SimpleNamespace(
        use_vllm=True, vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode="sequence_mask", vllm_importance_sampling_clip_max=3.0,
    )  # fmt: skip
    policy = torch.tensor([[-1.0, -1.0], [-1.0, -1.0], [-1.0, -1.0]])
    said = [[-1.0, None], [-9.0, -1.0], [-9.0, -1.0]]
    drawn = [[1, 1], [1, 1], [0, 1]]
    assert masked_sequences(trainer, policy, said, drawn, 3) == [False, True, False]
    trainer.vllm_importance_sampling_clip_min = 0.5
    assert masked_sequences(trainer, policy, [[0.0, 0.0]] * 3, None, 3) == [True] * 3
    assert masked_sequences(trainer, None, said, drawn, 3) == [False] * 3


def test_log_probs_are_recognised_by_form():
    ids, said = [[5, 6], [7]], [[-0.5, None], [-0.1]]
    assert sampling_of(([[1]], ids, None, ["a", "b"], said, {}, None)) is said
    assert sampling_of(([[1]], ids, [[1, 0], [1]], ["a", "b"], None)) is None
