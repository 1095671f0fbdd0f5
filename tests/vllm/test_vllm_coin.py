"""Nodes that sample with vLLM and a shared seed, verified with transformers."""

from dataclasses import replace
from importlib.util import find_spec

import pytest

from grpo_guard.core.completion import Completion
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.coin import PublicCoin
from grpo_guard.logprob.replay.generate import generate_under_coin
from grpo_guard.logprob.replay.verifier import SeedReplayVerifier
from grpo_guard.logprob.scorers.load import load_policy
from tests.vllm import in_process  # noqa: F401  # before vllm is imported
from tests.vllm.vllm_policy import PROMPTS, tiny_policy

pytestmark = pytest.mark.skipif(
    find_spec("vllm") is None, reason="needs the environment that `make vllm` builds"
)

# Under some seeds the random policy ends with its padding token, which is then stripped as padding.
COIN = PublicCoin("vllm")
SPECS = (
    SamplingSpec("vllm", 1.0, 20, 0.9, max_new_tokens=24),
    SamplingSpec("vllm", 0.8, 0, 1.0, max_new_tokens=24),
    SamplingSpec("vllm", 1.0, 0, 0.9, min_p=0.02, repetition_penalty=1.2, max_new_tokens=24),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def llm(folder):
    from vllm import LLM

    return LLM(
        model=str(folder),
        dtype="float32",
        max_model_len=128,
        max_num_seqs=3,  # fewer than requests, so they come, go and move in the batch
        enforce_eager=True,
        logits_processors=["grpo_guard.logprob.replay.vllm_processor:CoinProcessor"],
    )


def drawn(llm, spec, node="node-0"):
    from grpo_guard.logprob.replay.vllm_processor import coin_params

    seeds = [
        COIN.seed(round=0, node=node, slot=slot, prompt=prompt)
        for slot, prompt in enumerate(PROMPTS)
    ]
    outputs = llm.generate(
        list(PROMPTS), [coin_params(spec, seed) for seed in seeds], use_tqdm=False
    )
    return seeds, [
        Completion(
            prompt,
            output.outputs[0].text,
            prompt_ids=output.prompt_token_ids,
            completion_ids=output.outputs[0].token_ids,
            node="node-0",
            round=0,
            slot=slot,
        )
        for slot, (prompt, output) in enumerate(zip(PROMPTS, outputs, strict=True))
    ]


def verifier_of(folder, spec):
    model, tokenizer = load_policy(str(folder), dtype="float32", device="cpu")
    verifier = SeedReplayVerifier(
        model, tokenizer, sampling=spec, coin=COIN, slots=len(PROMPTS), profile="float32"
    )
    verifier.begin_round(0)
    return verifier


@pytest.mark.parametrize("spec", SPECS)
def test_transformers_replays_vllm_draws(llm, folder, spec):
    _, completions = drawn(llm, spec)
    verdicts = verifier_of(folder, spec).verify(completions)
    assert [v.reason for v in verdicts if not v.accepted] == []


@pytest.mark.parametrize("spec", SPECS)
def test_both_engines_draw_the_same_completion(llm, folder, spec):
    model, tokenizer = load_policy(str(folder), dtype="float32", device="cpu")
    seeds, completions = drawn(llm, spec)
    ours = generate_under_coin(
        model,
        [c.prompt_ids for c in completions],
        seeds,
        spec,
        eos_ids=[tokenizer.eos_token_id],
    )
    assert ours == [c.completion_ids for c in completions]


def test_seeds_of_another_node_are_rejected(llm, folder):
    _, completions = drawn(llm, SPECS[0], node="node-1")
    verdicts = verifier_of(folder, SPECS[0]).verify(completions)
    assert all(v.rejected for v in verdicts)


def test_parameters_that_would_fail_the_replay_are_refused(llm):
    from vllm.exceptions import VLLMValidationError

    from grpo_guard.logprob.replay.vllm_processor import coin_params

    params = coin_params(SPECS[0], 1)
    for name, value in (("n", 2), ("presence_penalty", 0.5), ("min_tokens", 3)):
        wrong = params.clone()
        setattr(wrong, name, value)
        with pytest.raises(VLLMValidationError, match=name):
            llm.generate(PROMPTS[0], wrong, use_tqdm=False)
    with pytest.raises(ValueError, match="max_new_tokens"):
        coin_params(replace(SPECS[0], max_new_tokens=None), 1)


def test_requests_without_a_seed_are_unchanged(llm):
    from vllm import SamplingParams

    (output,) = llm.generate(
        PROMPTS[0], SamplingParams(temperature=0.0, max_tokens=4), use_tqdm=False
    )
    assert len(output.outputs[0].token_ids) > 0
