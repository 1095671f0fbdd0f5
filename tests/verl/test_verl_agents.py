"""Two turns and a calculator through verl's rows: verdicts on each kind of peer."""

import numpy as np
import pytest

pytest.importorskip("verl", reason="needs verl: make test-verl")

import torch
from tensordict import TensorDict
from verl import DataProto

from grpo_guard import Guard, LogProbBoundVerifier, SamplingSpec
from grpo_guard.adapters.received import review
from grpo_guard.adapters.verl.batch import HOOK_DATA, HookData, rows_from
from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.evals.tasks.word_problems import generate
from tests.helpers import calculator
from tests.helpers.calculator import marked, with_phrase

SPEC = SamplingSpec("transformers", 1.0, 50, 1.0, max_new_tokens=96)


def trajectory(completion, node):
    """As the agent loop's worker sends it, with the mask that verl trains by."""
    prompt, response = torch.tensor(completion.prompt_ids), torch.tensor(completion.completion_ids)
    both = torch.cat([prompt, response])[None]
    mask = [1] * len(response)
    for start, end in completion.given.tokens:
        mask[start:end] = [0] * (end - start)
    tensors = {
        "prompts": prompt[None], "responses": response[None], "input_ids": both,
        "attention_mask": torch.ones_like(both), "position_ids": both,
    }  # fmt: skip
    raw = np.empty(1, dtype=object)
    raw[0] = completion.prompt
    columns = {
        "raw_prompt": raw,
        "extra_info": np.array([{} if node is None else {"node": node}]),
        "prompt_len": np.array([len(prompt)]),
        "response_len": np.array([len(response)]),
        HOOK_DATA: np.array([HookData(4, masks=(tuple(mask),), log_probs=(None,))]),
    }
    return DataProto(batch=TensorDict(tensors, batch_size=1), non_tensor_batch=columns)


@pytest.mark.slow
def test_honest_transcripts_pass_and_poison_in_either_turn_is_found():
    model, tokenizer = load_bundled()
    prompts = [problem.prompt for problem in generate(5, 12)]
    honest, forged = (
        [one for one in calculator.play(model, tokenizer, prompts, range(12), SPEC, forged=said)
         if one.given]
        for said in (None, " 9999")
    )  # fmt: skip
    verifier = LogProbBoundVerifier(model, tokenizer, sampling=SPEC, node_alpha=0)
    guard = Guard(verifier, environment=calculator.answer)

    def rejected(completions, node):
        data = [trajectory(one, node) for one in completions if one is not None]
        rows = [row for one in data for row in rows_from(one, tokenizer, 128)]
        assert len(rows) == len(data)
        return [verdict.rejected for verdict in review(guard, rows).verdicts]

    assert not any(rejected(honest, None))  # the trainer's own agent loop
    assert not any(rejected(forged, None))  # whose tools may return anything
    assert not any(rejected(honest, "ann"))
    for turn in (0, 1):
        assert all(rejected([with_phrase(tokenizer, one, turn) for one in honest], "ann"))
    assert all(rejected([marked(tokenizer, one) for one in honest], "ann"))
    assert all(rejected(forged, "ann"))
