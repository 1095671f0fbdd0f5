"""Weights and every module's output are bfloat16 numbers, and the original is untouched."""

import torch
from torch import nn

from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.evals.studies.rounding import rounded_to_bfloat16


def representable(x):
    return torch.equal(x, x.bfloat16().float())


def test_every_module_output_is_rounded_and_the_original_is_unchanged():
    model, tokenizer = load_bundled()
    before = {name: p.clone() for name, p in model.named_parameters()}
    rounded = rounded_to_bfloat16(model)
    seen = []
    for module in rounded.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda m, a, out: seen.append(representable(out)))
    ids = torch.tensor([tokenizer.encode("Tom has 7 apples and buys 5.")])
    with torch.no_grad():
        logits = rounded(ids).logits
        plain = model(ids).logits
    assert seen
    assert all(seen)
    assert representable(logits)
    assert all(representable(p) for p in rounded.parameters())
    assert not representable(plain)
    assert 1e-4 < (logits - plain).abs().max() < 1.0
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
