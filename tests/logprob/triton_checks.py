"""Shared parts of the Triton kernel cases: inputs, and the float64 results they must match."""

import numpy as np
import torch

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.kernels import triton_stats
from grpo_guard.logprob.kernels.scores import Head
from grpo_guard.logprob.kernels.statistics import RowStats
from tests.helpers.reference_stats import CLOSE, EXACT, reference_stats

# Device of the kernels; `tests/gpu` runs the same cases on a GPU.
DEVICE = "cpu"


def moved(hidden, head, targets):
    bias = None if head.bias is None else head.bias.to(DEVICE)
    head = Head(head.weight.to(DEVICE), bias, head.scale, head.softcap)
    return hidden.to(DEVICE), head, targets.to(DEVICE)


def triton_row_stats(hidden, head, targets, **options):
    stats = triton_stats.triton_row_stats(*moved(hidden, head, targets), **options)
    return RowStats(*(column.cpu() for column in stats))


def logits_of(hidden, head):
    """Raw logits in float64."""
    z = hidden.double() @ head.weight.double().T
    z = (z if head.bias is None else z + head.bias.double()) * head.scale
    return z if head.softcap is None else torch.tanh(z / head.softcap) * head.softcap


def errors(hidden, head, targets, *, temperature=1.0, top_k=0, exact=True, **options):
    """Largest difference from float64 for each statistic."""
    stats = triton_row_stats(hidden, head, targets, temperature=temperature, top_k=top_k, **options)
    spec = SamplingSpec("transformers", temperature, top_k, 1.0)
    logits = logits_of(hidden, head).numpy()
    with np.errstate(invalid="ignore"):
        expected = reference_stats(logits, targets.numpy(), spec)
    if exact:
        for name in EXACT:
            np.testing.assert_array_equal(
                getattr(stats, name).numpy(), getattr(expected, name), err_msg=name
            )
    else:  # real-valued: exact except for logits that agree to five digits
        own = logits[np.arange(len(targets)), targets.numpy()][:, None]
        near = (np.abs(logits - own) <= 1e-5 * np.maximum(1, np.abs(own))).sum(-1) - 1
        assert (np.abs(stats.rank.numpy() - expected.rank) <= near).all()
    found = {}
    for name in CLOSE:
        a, b = getattr(stats, name).double().numpy(), getattr(expected, name)
        same = np.isneginf(a) & np.isneginf(b)
        found[name] = float(np.abs(np.where(same, 0, a) - np.where(same, 0, b)).max())
    return found


def check(*arguments, without=(), **options):
    """Compare with float64 within the tolerances and return the errors."""
    found = errors(*arguments, **options)
    for name, error in found.items():
        if name not in without:
            assert error <= CLOSE[name], f"{name} is off by {error:.2e}"
    return found


def integers(seed, rows=9, vocab=300, width=20, **head):
    """Integer-valued states and weights: float32 computes exactly the logits of float64."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randint(-4, 5, (rows, width), generator=generator).float()
    weight = torch.randint(-4, 5, (vocab, width), generator=generator).float()
    targets = torch.randint(0, vocab, (rows,), generator=generator)
    return hidden, Head(weight, **{"scale": 1 / 16, **head}), targets


def reals(seed, rows=9, vocab=300, width=32, dtype=torch.float32, spread=3.0, **head):
    """Random states, and weights with a spread that gives logits of about ``spread``."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, width, generator=generator).to(dtype)
    weight = (torch.randn(vocab, width, generator=generator) * spread / width**0.5).to(dtype)
    return hidden, Head(weight, **head), torch.randint(0, vocab, (rows,), generator=generator)
