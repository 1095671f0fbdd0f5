"""The Triton kernels on a GPU, against float64; run with `make gpu`.

Elsewhere the same kernels run in Triton's interpreter, see
`tests/logprob/test_triton_interpreted.py`.
"""

import numpy as np
import pytest
import torch

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.kernels import head_stats as head_stats_module
from grpo_guard.logprob.kernels.scores import Head
from grpo_guard.logprob.kernels.triton_stats import triton_row_stats
from tests.helpers.reference_stats import reference_stats

pytest.importorskip("triton", reason="triton is not installed")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from tests.logprob import triton_cases, triton_checks

VOCAB = 151_936
ROWS = 512
CUDA = torch.device("cuda")
# Tie margin in raw logits: tensor cores sum thousands of fp32 products with less than fp32
# rounding.
NEAR = 1e-3
# Each example of the hypothesis cases has a new shape, and so compiles anew.
CASES = [name for name in triton_cases.CASES if not name.startswith("any ")]


@pytest.fixture(scope="module", autouse=True)
def exact_products():
    """Torch's defaults, whatever the environment requests."""
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(previous)


@pytest.mark.parametrize("name", CASES)
def test_interpreted_cases_hold_on_the_gpu(name, monkeypatch):
    monkeypatch.setattr(triton_checks, "DEVICE", "cuda")
    _, failure = triton_cases.result_of(name)
    assert failure is None, failure


def real_case(width, dtype, rows=ROWS):
    """Logits with a spread of 3; every second target is likely, every fourth ties exactly."""
    generator = torch.Generator(CUDA).manual_seed(width)
    hidden = torch.randn(rows, width, generator=generator, device=CUDA).to(dtype)
    weight = torch.randn(VOCAB, width, generator=generator, device=CUDA) * 3 / width**0.5
    weight = weight.to(dtype)
    targets = torch.randint(0, VOCAB, (rows,), generator=generator, device=CUDA)
    for rows_here in torch.arange(0, rows, 2, device=CUDA).split(64):
        logits = hidden[rows_here].float() @ weight.float().T
        targets[rows_here] = logits.topk(20).indices[:, 7]
    weight[targets[::4] // 2] = weight[targets[::4]]
    targets[0], targets[1] = 0, VOCAB - 1
    return hidden, Head(weight), targets


def float64_logits(hidden, head):
    """[N, V] in float64, computed slice by slice over the vocabulary."""
    return torch.cat([hidden.double() @ w.double().T for w in head.weight.split(16_384)], -1)


@pytest.mark.parametrize("top_k", [0, 50])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("width", [896, 3584])
def test_real_sizes_match_float64(width, dtype, temperature, top_k):
    hidden, head, targets = real_case(width, dtype)
    options = {"temperature": temperature, "top_k": top_k}
    stats = triton_row_stats(hidden, head, targets, **options)
    for rows in torch.arange(ROWS, device=CUDA).split(64):
        logits = float64_logits(hidden[rows], head)
        own = logits.gather(1, targets[rows, None])
        log_p = (logits / temperature).log_softmax(-1)
        p = log_p.exp()
        logprob = log_p.gather(1, targets[rows, None])[:, 0]
        assert (stats.logprob[rows] - logprob).abs().max() <= 1e-3
        assert (stats.logit[rows] - own[:, 0]).abs().max() <= 1e-3
        # Only tokens within the margin may be ordered differently.
        likelier = (logits > own + NEAR).sum(-1)
        near = ((logits - own).abs() <= NEAR).sum(-1) - 1
        assert (stats.rank[rows] >= likelier).all()
        assert (stats.rank[rows] <= likelier + near).all()
        slack = torch.where((logits - own).abs() <= 1e-4, p, 0.0).sum(-1) - logprob.exp() + 2e-4
        mass = torch.where(logits > own + NEAR, p, 0.0).sum(-1)
        assert (stats.mass_above[rows] >= mass - 2e-4).all()
        assert (stats.mass_above[rows] <= mass + slack).all()
        entropy = -(p * log_p).sum(-1)
        assert (stats.entropy[rows] - entropy).abs().max() <= 1e-3
    some = slice(0, 16)
    spec = SamplingSpec("transformers", temperature, top_k, 1.0)
    logits = float64_logits(hidden[some], head).cpu().numpy()
    expected = reference_stats(logits, targets[some].cpu().numpy(), spec)
    for name in ("max_logprob", "tail_mass", "log_set_mass", "log_flat_mass"):
        ours = getattr(stats, name)[some].double().cpu().numpy()
        tolerance = 1e-3 if name != "tail_mass" else 1e-3 * expected.tail_mass + 1e-12
        if name == "tail_mass":  # a near tie may fall on either side
            logprob, own = np.exp(expected.logprob), expected.logit[:, None]
            tolerance = tolerance + ((np.abs(logits - own) <= NEAR).sum(-1) - 1) * logprob * 1.001
        difference = np.abs(ours - getattr(expected, name)).T
        assert (difference <= tolerance).all(), name


def test_exact_ties_at_real_sizes():
    generator = torch.Generator(CUDA).manual_seed(0)
    hidden = torch.randint(-2, 3, (ROWS, 896), generator=generator, device=CUDA).bfloat16()
    weight = torch.randint(-1, 2, (VOCAB, 896), generator=generator, device=CUDA).bfloat16()
    targets = torch.randint(0, VOCAB, (ROWS,), generator=generator, device=CUDA)
    stats = triton_row_stats(hidden, Head(weight, scale=1 / 16), targets, temperature=0.5)
    for rows in torch.arange(ROWS, device=CUDA).split(64):
        logits = float64_logits(hidden[rows], Head(weight))
        own = logits.gather(1, targets[rows, None])
        assert (stats.rank[rows] == (logits > own).sum(-1)).all()
        assert (stats.ties[rows] == (logits == own).sum(-1) - 1).all()


@pytest.mark.parametrize("top_k", [0, 50])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_memory_besides_the_weights_is_bounded(dtype, top_k):
    hidden, head, targets = real_case(896, dtype)

    def call():
        triton_row_stats(hidden, head, targets, temperature=1.0, top_k=top_k)
        torch.cuda.synchronize()

    call()  # the BLAS library's own workspace is allocated by this call
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    assert torch.cuda.max_memory_allocated() - before <= 256 * 2**20


def test_tf32_of_the_trainer_does_not_affect_the_statistics():
    hidden, head, targets = real_case(896, torch.float32)
    exact = triton_row_stats(hidden, head, targets, temperature=1.0)
    torch.set_float32_matmul_precision("high")
    try:
        allowed = triton_row_stats(hidden, head, targets, temperature=1.0)
    finally:
        torch.set_float32_matmul_precision("highest")
    torch.testing.assert_close(exact.logprob, allowed.logprob, atol=1e-4, rtol=0)


def test_out_of_range_token_id_is_refused_without_breaking_the_device():
    hidden, head, targets = real_case(896, torch.bfloat16, rows=16)
    with pytest.raises(ValueError, match="token ids in"):
        triton_row_stats(hidden, head, targets + VOCAB, temperature=1.0)
    assert triton_row_stats(hidden, head, targets, temperature=1.0).logprob.isfinite().all()


@pytest.mark.parametrize("name", ["llama", "gemma2"])  # gemma2 caps its logits
def test_scorer_matches_the_cpu(name, monkeypatch):
    transformers = pytest.importorskip("transformers")
    from grpo_guard.logprob.encode import Encoded
    from grpo_guard.logprob.scorers.transformers import TransformersScorer

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        name, vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=128,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    rng = np.random.default_rng(0)
    prompt = tuple(rng.integers(3, 500, 20).tolist())
    sequences = [
        Encoded(prompt, tuple(rng.integers(3, 500, n).tolist()), False) for n in (30, 12, 1)
    ]
    spec = SamplingSpec("transformers", 0.8, 20, 0.95)
    expected = TransformersScorer(model).score(sequences, spec)
    calls, kernels = [], head_stats_module.triton_row_stats

    def counted(*arguments, **options):
        calls.append(1)
        return kernels(*arguments, **options)

    monkeypatch.setattr(head_stats_module, "triton_row_stats", counted)
    stats = TransformersScorer(model.cuda()).score(sequences, spec)
    assert calls, "the scorer did not use the kernels"
    assert not head_stats_module._triton_failed
    for ours, theirs in zip(stats, expected, strict=True):
        assert (np.abs(ours.rank - theirs.rank) <= theirs.ties + 1).all()
        for column in ("logprob", "max_logprob", "entropy", "log_set_mass", "log_flat_mass"):
            np.testing.assert_allclose(
                getattr(ours, column), getattr(theirs, column), atol=1e-3, err_msg=column
            )
