"""VLLMScorer on the offline engine, in this process."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.scorers.load import load_policy
from grpo_guard.logprob.scorers.vllm import VLLMScorer
from tests.helpers.reference_stats import reference_stats
from tests.vllm import in_process  # noqa: F401  # before vllm is imported
from tests.vllm.vllm_policy import PROMPTS, tiny_policy

pytestmark = pytest.mark.skipif(
    find_spec("vllm") is None, reason="needs the environment that `make vllm` builds"
)

SPEC = SamplingSpec("vllm", 1.0, 20, 0.9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def scorer(folder):
    from vllm import LLM

    llm = LLM(
        model=str(folder),
        dtype="float32",
        max_model_len=128,
        max_logprobs=30,
        max_num_seqs=4,
        enforce_eager=True,
    )
    return VLLMScorer.engine(llm, n_logprobs=30)


def sequences_of(tokenizer, seed):
    rng = np.random.default_rng(seed)
    return [
        Encoded(
            tuple(tokenizer(prompt)["input_ids"]),
            tuple(rng.integers(4, len(tokenizer), 10 + i).tolist()),
            False,
        )
        for i, prompt in enumerate(PROMPTS)
    ]


def test_numbers_match_transformers(scorer, folder):
    model, tokenizer = load_policy(str(folder), dtype="float32", device="cpu")
    sequences = sequences_of(tokenizer, 0)
    for s, stats in zip(sequences, scorer.score(sequences, SPEC), strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*s.prompt_ids, *s.completion_ids]])).logits[0]
        rows = logits[len(s.prompt_ids) - 1 : -1].double().numpy()
        expected = reference_stats(rows, np.array(s.completion_ids), SPEC, tie_margin=1e-4)
        np.testing.assert_allclose(stats.logprob, expected.logprob, atol=1e-4)
        np.testing.assert_allclose(stats.edge_gap, expected.edge_gap, atol=1e-4)
        apart = expected.ties == 0
        np.testing.assert_array_equal(stats.rank[apart], expected.rank[apart])


def test_identity_and_sizes_come_from_the_engine(scorer, folder):
    assert scorer.identity() == {
        "engine": "vllm",
        "architecture": str(folder),
        "dtype": "float32",
    }
    assert scorer.window == 512
    with pytest.raises(ValueError, match="max_logprobs 30"):
        VLLMScorer.engine(scorer.backend.llm, n_logprobs=31)


def test_overlong_sequence_is_refused_and_leaves_no_state(scorer, folder):
    _, tokenizer = load_policy(str(folder), dtype="float32", device="cpu")
    good = sequences_of(tokenizer, 1)
    long = Encoded((5,), (6,) * 127, False)
    with pytest.raises(ValueError, match="max_model_len 128"):
        scorer.score([*good, long], SPEC)
    assert [len(s) for s in scorer.score(good, SPEC)] == [10, 11, 12, 13]
