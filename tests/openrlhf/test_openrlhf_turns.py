"""Guarded agents with several turns, and a verifier that scores real tokens with a real model."""

import asyncio
from types import SimpleNamespace as Fields

import pytest
import torch

pytest.importorskip("openrlhf", reason="needs openrlhf: make test-openrlhf")

from openrlhf.utils.agent import (
    AgentInstanceBase,
    MultiTurnAgentExecutor,
    SingleTurnAgentExecutor,
)
from transformers import Qwen2Config, Qwen2ForCausalLM

from grpo_guard import Guard, LogProbBoundVerifier, Policy, SamplingSpec
from grpo_guard.adapters.openrlhf.agent import GuardedAgent
from grpo_guard.core.turns import APART, own_words
from grpo_guard.logprob.scorers.transformers import TransformersScorer
from tests.openrlhf.openrlhf_parts import (
    PROMPT,
    TOKENIZER,
    Engine,
    actor,
    advantages_of,
    experiences_of,
    ids_of,
    run,
    trained_text,
)
from tests.openrlhf.openrlhf_verifiers import Words

FEEDBACK = "<|im_start|>user\nAnd, Hail?<|im_end|>\n<|im_start|>assistant\n"


class Dialogue(AgentInstanceBase):
    """Two turns; 1 for an answer with a 7 in the second."""

    def __init__(self, *args, **kwargs):
        self.turns = 0

    async def reset(self, states, **kwargs):
        return {"observation": "Be brief.\n" + states["observation"]}

    async def step(self, states, **kwargs):
        self.turns += 1
        return {
            "rewards": torch.tensor(float(self.turns == 2 and "7" in states["action_text"])),
            "environment_feedback": FEEDBACK if self.turns == 1 else "",
            "done": self.turns == 2,
            "extra_logs": {"turns": torch.tensor(float(self.turns))},
        }


def dialogues(policy, *, spans=False):
    class AgentExecutor(GuardedAgent, MultiTurnAgentExecutor):
        guard = Guard(Words(), policy=policy)
        mask_spans = spans

        def __init__(self):
            super().__init__(Dialogue)

    return AgentExecutor()


class Script:
    """Answers by question, because turns of several samples arrive in any order."""

    def __init__(self, *samples):
        self.samples, self.started = samples, 0

    async def generate(self, prompt_token_ids, sampling_params, multi_modal_data=None):
        text = TOKENIZER.decode(prompt_token_ids)
        if FEEDBACK in text:
            sample = next(s for s in self.samples if s[0] + "<|im_end|>" + FEEDBACK in text)
            said = sample[1]
        else:
            said = self.samples[self.started][0]
            self.started += 1
        await asyncio.sleep(0.001 * len(said))
        return await Engine(said).generate(prompt_token_ids, sampling_params)


TALKS = (("Yes.", "It is 7."), ("No.", "It is 8."), ("Hail!", "It is 7"), ("Why?", "7 Hail"))


def test_all_turns_are_judged_but_not_the_environments_text():
    executor = dialogues(Policy(on_reject="zero"))
    responses = run(actor(Script(*TALKS), executor=executor), 4, max_length=300)
    (batch,) = executor.guard.verifier.batches
    opening = "Be brief.\n" + PROMPT
    for whole, own, talk in zip(batch, own_words(batch), TALKS, strict=True):
        assert own.text.split(APART) == list(talk)
        assert whole.prompt == opening
        assert list(whole.prompt_ids) == ids_of(opening)
        assert TOKENIZER.decode(whole.completion_ids).startswith(f"{talk[0]}<|im_end|>{FEEDBACK}")
        assert whole.finish_reason == "stop"
        assert len(whole.sampler_logprobs) == len(whole.completion_ids)
    assert len({c.group for c in batch}) == 1
    # Text from the environment is not held against the author.
    assert [r["extra_logs"]["guard_reject"] for r in responses] == [0, 0, 1, 1]
    assert [r["reward"] for r in responses] == [1.0, 0.0, 0.0, 0.0]
    found, _ = advantages_of(responses, "dr_grpo")
    assert found == pytest.approx([0.75, -0.25, -0.25, -0.25], abs=1e-6)


def test_turns_are_left_out_and_masked():
    dropped = run(
        actor(Script(*TALKS), executor=dialogues(Policy(on_reject="drop"))), 4, max_length=300
    )
    assert advantages_of(dropped, "dr_grpo")[0] == pytest.approx([0.5, -0.5, 0, 0], abs=1e-6)
    assert [trained_text(r) for r in dropped[2:]] == ["H", "W"]
    executor = dialogues(Policy(), spans=True)
    masked = run(actor(Script(*TALKS), executor=executor), 4, max_length=300)
    assert [trained_text(r) for r in masked[2:]] == ["!<|im_end|>It is 7<|im_end|>",
                                                     "Why?<|im_end|>7 <|im_end|>"]  # fmt: skip
    assert [r["reward"] for r in masked] == [1.0, 0.0, 1.0, 1.0]


def test_conversation_beyond_the_window_keeps_a_visible_token():
    executor = dialogues(Policy(on_reject="drop"))
    limit = len(ids_of("Be brief.\n" + PROMPT)) + 70
    responses = run(actor(Script(*TALKS), executor=executor), 4, max_length=limit)
    for row in experiences_of(responses, max_length=limit):
        assert row.action_mask.sum() >= 1


def tiny_model():
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(TOKENIZER), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, pad_token_id=0,
        eos_token_id=TOKENIZER.eos_token_id, bos_token_id=None, initializer_range=0.3,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


class Sampling:
    """A model in place of the engine; one sample's tokens are changed afterwards."""

    def __init__(self, model, top_k, forged=None):
        self.model, self.top_k, self.forged, self.asked = model, top_k, forged, 0

    async def generate(self, prompt_token_ids, sampling_params, multi_modal_data=None):
        number, self.asked = self.asked, self.asked + 1
        prompt = torch.tensor([prompt_token_ids])
        with torch.no_grad():
            full = self.model.generate(
                prompt, attention_mask=torch.ones_like(prompt), do_sample=True, max_new_tokens=24,
                temperature=1.0, top_k=self.top_k, top_p=1.0, pad_token_id=0,
            )  # fmt: skip
            ids = full[0, prompt.shape[1] :]
            if number == self.forged:
                logits = self.model(full).logits[0, prompt.shape[1] - 1 : -1]
                ids[3] = int(logits[3, 4:].argmin()) + 4
        said = TOKENIZER.decode(ids)
        output = Fields(token_ids=ids.tolist(), text=said, finish_reason="length", logprobs=None)
        return Fields(outputs=[output])


def test_forged_token_is_found_and_masked(tmp_path):
    model = tiny_model()
    spec = SamplingSpec("transformers", 1.0, 8, 1.0)
    verifier = LogProbBoundVerifier(
        None, TOKENIZER, scorer=TransformersScorer(model), sampling=spec,
        special=TOKENIZER.all_special_ids,  # an untrained model draws them like any others
    )  # fmt: skip
    reward = tmp_path / "reward.py"
    reward.write_text("def reward_func(queries, prompts, labels): return {'rewards': 1.0}\n")

    class AgentExecutor(GuardedAgent, SingleTurnAgentExecutor):
        guard = Guard(verifier, policy=Policy(on_reject="drop"))
        mask_spans = True

        def __init__(self):
            super().__init__(str(reward))

    torch.manual_seed(1)
    honest = run(actor(Sampling(model, 8), executor=AgentExecutor()), 6, logprobs=None)
    assert [r["extra_logs"]["guard_accept"] for r in honest] == [1.0] * 6
    forged = run(actor(Sampling(model, 8, forged=2), executor=AgentExecutor()), 6, logprobs=None)
    assert [r["extra_logs"]["guard_reject"] for r in forged] == [0, 0, 1, 0, 0, 0]
    start = len(ids_of(PROMPT))
    masked = [range(*span) for span in forged[2]["action_ranges"]]
    assert not any(start + 3 in tokens for tokens in masked)
    assert sum(map(len, masked)) > 0
