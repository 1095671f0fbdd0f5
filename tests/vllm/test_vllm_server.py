"""VLLMScorer against a real server on this machine's CPU, and against transformers in fp32."""

import os
import random
import signal
import sys
import threading
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import openai
import psutil
import pytest
import torch

from grpo_guard import Completion, LogProbBoundVerifier, SamplingSpec
from grpo_guard.core.supervise import supervised
from grpo_guard.core.verdict import Cause
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.scorers.load import load_policy
from grpo_guard.logprob.scorers.transformers import TransformersScorer
from grpo_guard.logprob.scorers.vllm import EngineUnavailableError, VLLMScorer
from grpo_guard.logprob.stats import FLATTENINGS
from tests.helpers.reference_stats import reference_stats
from tests.helpers.vllm_server import ServerError, vllm_server
from tests.vllm.vllm_policy import PROMPTS, policy_folder

pytestmark = pytest.mark.skipif(
    find_spec("vllm") is None, reason="needs the environment that `make vllm` builds"
)

MAX_MODEL_LEN = 256
MAX_NEW_TOKENS = 96
SPECS = {
    "plain": SamplingSpec("vllm", 1.0, 20, 1.0, max_new_tokens=MAX_NEW_TOKENS),
    "cool": SamplingSpec("vllm", 0.7, 20, 0.95, max_new_tokens=MAX_NEW_TOKENS),
    "hot": SamplingSpec("vllm", 1.3, 10, 1.0, min_p=0.02, max_new_tokens=MAX_NEW_TOKENS),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return policy_folder(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def policy(folder):
    return load_policy(str(folder), dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def server(folder):
    python = Path(sys.executable)
    with vllm_server(python, folder, max_model_len=MAX_MODEL_LEN, max_logprobs=40) as answer:
        yield answer


@pytest.fixture(scope="module")
def honest(server, policy):
    """What a swarm node that samples with vLLM itself sends: 8 completions per spec."""
    url, key = server
    _, tokenizer = policy
    client = openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=300)

    @cache
    def sample(name):
        spec = SPECS[name]
        prompts = [tokenizer(p)["input_ids"] for p in PROMPTS]
        reply = client.completions.create(
            model="policy",
            prompt=prompts,
            n=2,
            max_tokens=spec.max_new_tokens,
            temperature=spec.temperature,
            top_p=spec.top_p,
            seed=0,
            extra_body={"top_k": spec.top_k, "min_p": spec.min_p, "return_token_ids": True},
        )
        return [
            Completion(
                PROMPTS[choice.index // 2], choice.text, completion_ids=tuple(choice.token_ids)
            )
            for choice in reply.choices
        ]

    return sample


def scorer_of(server, folder, **options):
    url, key = server
    options = {"n_logprobs": 40, "api_key": key, "timeout": 300, "dtype": "float32", **options}
    return VLLMScorer.server(url, "policy", config=folder, **options)


def encoded(tokenizer, completions):
    return [Encoded(tuple(tokenizer(c.prompt)["input_ids"]), c.completion_ids, False)
            for c in completions]  # fmt: skip


def references(model, sequences, spec):
    """`reference_stats` in float64 from the full fp32 logits of transformers."""
    for s in sequences:
        with torch.no_grad():
            logits = model(torch.tensor([[*s.prompt_ids, *s.completion_ids]])).logits[0]
        rows = logits[len(s.prompt_ids) - 1 : -1].double().numpy()
        yield reference_stats(rows, np.array(s.completion_ids), spec, tie_margin=2e-3)


@pytest.mark.parametrize("name", SPECS)
def test_numbers_match_transformers(name, server, folder, policy, honest):
    model, tokenizer = policy
    spec = SPECS[name]
    sequences = encoded(tokenizer, honest(name))
    # Honest tokens, and some that lie far outside every list.
    noise = random.Random(0)
    foreign = tuple(noise.randrange(20, model.config.vocab_size) for _ in range(60))
    sequences.append(Encoded(sequences[0].prompt_ids, foreign, False))
    got = scorer_of(server, folder).score(sequences, spec)
    pairs = list(zip(got, references(model, sequences, spec), strict=True))

    def both(field):
        return [np.concatenate([getattr(stats, field) for stats in side])
                for side in zip(*pairs, strict=True)]  # fmt: skip

    # Log-probs at T = 1 relative to the likeliest token's, which is known at every temperature.
    logits = [(logprob - top) * spec.temperature for logprob, top in
              zip(both("logprob"), both("max_logprob"), strict=True)]  # fmt: skip
    difference = np.abs(logits[0] - logits[1])
    if spec.temperature == 1:
        difference = np.abs(np.subtract(*both("logprob")))
    print(
        f"\n{name}: {len(difference)} tokens, log-probs differ by at most "
        f"{difference.max():.2e}, p99 {np.quantile(difference, 0.99):.2e}"
    )
    assert difference.max() <= 1e-3
    gap, expected_gap = both("edge_gap")
    if spec.top_p == 1:
        np.testing.assert_allclose(gap, expected_gap, atol=1e-3)
    else:  # a nucleus's edge jumps where a cumulative mass is about top_p
        assert (np.abs(gap - expected_gap) > 1e-3).mean() < 0.01
    rank, expected_rank = both("rank")
    apart = both("ties")[1] == 0
    listed = expected_rank < 40
    assert apart[listed].mean() > 0.9
    np.testing.assert_array_equal(rank[apart], expected_rank[apart])
    tail, expected_tail = both("tail_mass")
    assert (tail >= expected_tail * (1 - 1e-3)).all()
    above, expected_above = both("mass_above")
    assert (above <= expected_above + 1e-4).all()
    bound, value = both("entropy")
    assert (bound >= value - 1e-3).all()


def test_set_relative_numbers_match_the_full_logits(server, folder, policy, honest):
    """K and its normalisers directly from transformers' logits, at T = 0.7."""
    model, tokenizer = policy
    spec = SPECS["cool"]
    sequences = encoded(tokenizer, honest("cool"))[:4]
    for s, stats in zip(sequences, scorer_of(server, folder).score(sequences, spec), strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*s.prompt_ids, *s.completion_ids]])).logits[0]
        rows = logits[len(s.prompt_ids) - 1 : -1].double() / spec.temperature
        best = rows.topk(spec.top_k, -1).values
        own = rows.gather(-1, torch.tensor(s.completion_ids)[:, None])[:, 0]
        log_p = (own - best.logsumexp(-1)).numpy()
        inside = stats.in_set
        assert inside.mean() > 0.99
        np.testing.assert_allclose(
            (stats.logprob - stats.log_set_mass)[inside], log_p[inside], atol=2e-3
        )
        for b, column in zip(FLATTENINGS, stats.log_flat_mass.T, strict=True):
            expected = (b * (best - best.logsumexp(-1, keepdim=True))).logsumexp(-1).numpy()
            np.testing.assert_allclose(column - b * stats.log_set_mass, expected, atol=2e-3)


@pytest.mark.parametrize("profile", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SPECS)
def test_honest_work_passes_and_foreign_tokens_fail(name, profile, server, folder, policy, honest):
    _, tokenizer = policy
    options = {"scorer": scorer_of(server, folder), "sampling": SPECS[name], "profile": profile}
    verdicts = LogProbBoundVerifier(tokenizer=tokenizer, **options).verify(honest(name))
    assert [v.reason for v in verdicts if not v.accepted] == []
    noise = random.Random(1)
    foreign = []
    for c in honest(name)[:4]:
        ids = [noise.randrange(20, len(tokenizer)) for _ in range(40)]
        foreign.append(Completion(c.prompt, tokenizer.decode(ids), completion_ids=ids))
    verifier = LogProbBoundVerifier(tokenizer=tokenizer, check_text=False, **options)
    assert all(v.rejected for v in verifier.verify(foreign))


def test_verdicts_agree_with_local_weights(server, folder, policy, honest):
    model, tokenizer = policy
    completions = honest("plain") + honest("hot")  # the latter lie about their sampler
    options = {"sampling": SPECS["plain"], "profile": "float32"}
    served, own = (
        LogProbBoundVerifier(tokenizer=tokenizer, scorer=scorer, **options).verify(completions)
        for scorer in (scorer_of(server, folder), TransformersScorer(model))
    )
    assert [v.outcome for v in served] == [v.outcome for v in own]


def test_prompt_beyond_the_server_window_affects_only_itself(server, folder, policy, honest):
    _, tokenizer = policy
    good = honest("plain")[:3]
    prompt = PROMPTS[3]  # too long for the server, but not for the model itself
    while len(tokenizer(prompt)["input_ids"]) < MAX_MODEL_LEN:
        prompt += " " + PROMPTS[3]
    long = Completion(prompt, good[0].text, completion_ids=good[0].completion_ids)
    scorer = scorer_of(server, folder)
    sequences = encoded(tokenizer, [long])
    with pytest.raises(ValueError, match=r"400.*length"):
        scorer.score(sequences, SPECS["plain"])
    verifier = LogProbBoundVerifier(tokenizer=tokenizer, scorer=scorer, sampling=SPECS["plain"])
    verdicts = supervised(verifier, [*good, long])
    assert [v.accepted for v in verdicts] == [True, True, True, False]
    assert verdicts[3].abstained


def test_full_window_fits_if_the_engine_has_one_more_token(server, folder):
    scorer = scorer_of(server, folder)
    ids = tuple(range(20, 20 + MAX_MODEL_LEN - 1))
    (stats,) = scorer.score([Encoded(ids[:1], ids[1:], False)], SPECS["plain"])
    assert len(stats) == MAX_MODEL_LEN - 2
    with pytest.raises(ValueError, match="400"):
        scorer.score([Encoded(ids, (1,), False)], SPECS["plain"])


def test_more_log_probs_than_the_server_allows(server, folder):
    with pytest.raises(ValueError, match="400"):
        scorer_of(server, folder, n_logprobs=41).score(
            [Encoded((30,), (31,), False)], SPECS["plain"]
        )


def test_wrong_key_and_wrong_model(server, folder, policy, honest):
    sequence = Encoded((30,), (31,), False)
    with pytest.raises(EngineUnavailableError, match="401") as caught:
        scorer_of(server, folder, api_key="wrong").score([sequence], SPECS["plain"])
    assert caught.value.cause is Cause.PROVIDER
    assert server[1] not in str(caught.value)
    with pytest.raises(EngineUnavailableError, match="404"):
        VLLMScorer.server(server[0], "other", config=folder, api_key=server[1]).score(
            [sequence], SPECS["plain"]
        )
    verifier = LogProbBoundVerifier(
        None,
        policy[1],
        scorer=scorer_of(server, folder, api_key="wrong"),
        sampling=SPECS["plain"],
    )
    assert all(v.abstained for v in supervised(verifier, honest("plain")[:2]))


def test_server_that_cannot_start_reports_why(tmp_path):
    with (
        pytest.raises(ServerError, match="ended with code"),
        vllm_server(Path(sys.executable), tmp_path, max_model_len=64, max_logprobs=5),
    ):
        pass


def test_killed_server_comes_last(server, folder, policy, honest):
    """The server dies in the middle of the work: an exception with a cause, and no hang."""
    _, tokenizer = policy
    sequences = encoded(tokenizer, honest("plain")) * 20
    (child,) = [p for p in psutil.Process().children() if "api_server" in " ".join(p.cmdline())]
    family = [child, *child.children(recursive=True)]
    killer = threading.Timer(0.7, os.killpg, (child.pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(EngineUnavailableError) as caught:
        scorer_of(server, folder, timeout=60, attempts=3).score(sequences, SPECS["plain"])
    assert caught.value.cause is Cause.PROVIDER
    assert psutil.wait_procs(family, timeout=10)[1] == []
