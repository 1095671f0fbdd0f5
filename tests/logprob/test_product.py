"""The faster CPU product: the same numbers, only where it is allowed, in one thread."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_guard.logprob.kernels import product as module
from grpo_guard.logprob.kernels.product import faster_linear, product
from grpo_guard.logprob.scorers.transformers import TransformersScorer
from tests.logprob.test_transformers_scorer import (
    ARCHITECTURES,
    SPEC,
    assert_full_logits_agree,
    group,
    model_of,
)

pytestmark = pytest.mark.skipif(not module._works(), reason="this PyTorch has no such operator")


@pytest.fixture(autouse=True)
def anywhere(monkeypatch):
    """Act as a processor on which oneDNN is faster."""
    monkeypatch.setattr(module, "onednn_is_faster", lambda: True)


@pytest.fixture
def calls(monkeypatch):
    """Record the calls of oneDNN."""
    taken = []
    own = module._onednn

    def counted(x, weight, bias):
        taken.append(tuple(x.shape))
        return own(x, weight, bias)

    monkeypatch.setattr(module, "_onednn", counted)
    return taken


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 200), columns=st.integers(1, 300), inner=st.integers(1, 200),
    seed=st.integers(0, 1000),
)  # fmt: skip
def test_product_matches_float64(rows, columns, inner, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inner, generator=generator)
    weight = torch.randn(columns, inner, generator=generator)
    with torch.no_grad():
        got = product(x, weight, out=torch.empty(rows, columns))
    exact = x.double() @ weight.double().T
    assert got.shape == exact.shape
    assert float((got - exact).abs().max()) <= 1e-5 * inner**0.5 * 4


def test_infinities_and_nan_keep_their_positions(calls):
    x, weight = torch.ones(32, 8), torch.ones(128, 8)
    x[3, 2], weight[5, 1], weight[7, 0] = torch.nan, torch.inf, -torch.inf
    with torch.no_grad():
        got = product(x, weight)
    assert calls
    assert torch.equal(got.isnan(), (x @ weight.T).isnan())
    assert torch.equal(got.isposinf(), (x @ weight.T).isposinf())


X, W = torch.randn(32, 64), torch.randn(128, 64)


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        (X[:15], W),
        (X, W[:63]),
        (X.bfloat16(), W.bfloat16()),
        (X.double(), W.double()),
        (X, torch.randn(64, 128).T),
    ],
    ids=["few rows", "few columns", "bfloat16", "float64", "not contiguous"],
)
def test_other_products_use_pytorch(x, weight, calls):
    with torch.no_grad():
        assert torch.equal(product(x, weight), x @ weight.T)
    assert not calls


def test_gradients_autocast_and_lower_precision_use_pytorch(calls):
    layer = torch.nn.Linear(64, 128)
    with faster_linear(layer):
        assert layer(X).requires_grad
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert layer(X).dtype == torch.bfloat16
    assert not calls
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.no_grad(), faster_linear(layer):
            layer(X)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert not calls


@pytest.mark.parametrize("setting", ["tf32", "bf16"])
def test_newer_precision_interface_is_supported(setting, calls):
    """Reading the older one then raises: a GPU trainer with TF32 and a scorer on the CPU."""
    backend = torch.backends.mkldnn.matmul
    before = backend.fp32_precision
    backend.fp32_precision = setting
    try:
        with torch.no_grad():
            assert product(X, W).shape == (32, 128)
    finally:
        backend.fp32_precision = before
    assert not calls


@pytest.mark.parametrize(
    "bias",
    [torch.randn(256)[::2], torch.zeros(1).expand(128), torch.tensor(2.0), torch.randn(1, 128)],
    ids=["stride", "expanded", "a number", "two dimensions"],
)
def test_unusual_bias_uses_pytorch(bias, calls):
    with torch.no_grad(), faster_linear(torch.nn.Linear(1, 1)):
        got = torch.nn.functional.linear(X, W, bias)
    assert torch.equal(got, torch.nn.functional.linear(X, W, bias))
    assert not calls


def test_sparse_factors_use_pytorch(calls):
    with torch.no_grad(), faster_linear(torch.nn.Linear(1, 1)):
        got = torch.nn.functional.linear(X, W.to_sparse_csr())
    torch.testing.assert_close(got, X @ W.T)
    assert not calls


def test_row_counts_are_rounded_to_few_sizes():
    """An attack on memory: oneDNN caches a kernel for every number of rows it has seen."""
    sizes = {rows: module.size_of(rows) for rows in range(1, module.LARGEST + 1)}
    assert len(set(sizes.values())) == 37
    assert all(size >= rows for rows, size in sizes.items())
    assert all(size < 2 * rows for rows, size in sizes.items() if rows >= module.FEWEST_ROWS)
    assert all(size <= 1.125 * rows for rows, size in sizes.items() if rows > 256)


@pytest.mark.parametrize("rows", [16, 17, 511, 512, 4096, 4097, 8193, 9000])
def test_pieces_add_up_to_the_whole(rows, calls):
    x, bias = torch.randn(rows, 64), torch.randn(128)
    with torch.no_grad(), faster_linear(torch.nn.Linear(1, 1)):
        got = torch.nn.functional.linear(x, W, bias)
    assert calls
    torch.testing.assert_close(got, x @ W.T + bias, rtol=1e-5, atol=1e-4)


def test_compiled_function_within_a_forward_is_left_alone():
    layer = torch.nn.Linear(64, 128)
    layer.forward = torch.compile(layer.forward, backend="eager", fullgraph=True)
    with torch.no_grad(), faster_linear(layer):
        got = layer(X)
    torch.testing.assert_close(got, X @ layer.weight.T + layer.bias)


def test_a_linear_layer_keeps_its_bias_and_shape(calls):
    layer = torch.nn.Linear(64, 128)
    x = torch.randn(2, 3, 16, 64)
    with torch.inference_mode(), faster_linear(layer):
        got = layer(x.transpose(1, 2))
        assert torch.nn.functional.linear(x, layer.weight, bias=layer.bias).shape[-1] == 128
    assert got.shape == (2, 16, 3, 128)
    assert len(calls) == 1  # with keyword arguments it is PyTorch's own
    torch.testing.assert_close(got, layer(x.transpose(1, 2)).detach())


def test_other_threads_and_later_calls_are_unaffected(calls):
    layer = torch.nn.Linear(64, 128)

    def elsewhere():
        with torch.no_grad():
            layer(X)

    with torch.no_grad(), faster_linear(layer):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    with torch.no_grad():
        layer(X)
    assert not calls


def test_compiled_module_is_left_alone(calls):
    layer = torch.nn.Linear(64, 128)
    layer.compile(backend="eager")
    with torch.no_grad(), faster_linear(layer):
        layer(X)
    assert not calls


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_matches_its_full_logits(name, calls):
    model = model_of(name, ARCHITECTURES[name])
    rng = np.random.default_rng(0)
    sequences = group(rng, lengths=(40, 40, 33, 1)) + group(rng, 33, (27, 27))
    stats = TransformersScorer(model).score(sequences, SPEC)
    assert calls
    assert_full_logits_agree(model, sequences, stats)


def test_unknown_processor_is_not_assumed_faster(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_CPU", tmp_path / "none")
    assert not module._is_amd()
    (tmp_path / "none").write_text("vendor_id : GenuineIntel\n")
    assert not module._is_amd()
