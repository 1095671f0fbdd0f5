"""The noise: the same bits everywhere, Gumbel-distributed, and equal to vLLM's."""

import math

import pytest
import torch

import grpo_guard.logprob.noise as noise_module
from grpo_guard.logprob.noise import (
    DOMAIN,
    NOISE_FRACTION,
    gumbel,
    hashed,
)
from grpo_guard.logprob.noise import _fixed_gumbel as fixed_gumbel

SEED = 0x0123456789ABCDEF
HASHES = [918278499, 1237618087, 2121967154, 1478429546]
FIXED = [373512, 282884, 100585, 226205]


def test_bits_match_the_test_vectors():
    """Nodes in other languages compute the same noise; a change here breaks running swarms."""
    position, token = torch.tensor([0, 0, 1, 5000]), torch.tensor([0, 151_935, 7, 42])
    assert hashed(SEED, position, token, "grpo-guard").tolist() == HASHES
    noise = gumbel(SEED, position, token) * 2**NOISE_FRACTION
    assert noise.tolist() == FIXED


def test_integer_noise_is_gumbel_to_five_digits():
    ends = torch.tensor([0, 1, 2, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1])
    h = torch.cat([ends, torch.randint(0, 2**32, (10_000,), generator=torch.manual_seed(0))])
    noise = fixed_gumbel(h).double() / 2**NOISE_FRACTION
    v = (h.double() + 0.5) / 2**32
    torch.testing.assert_close(noise, -torch.log(-torch.log1p(-v)), atol=5e-6, rtol=0)


def test_noise_is_gumbel_and_independent_between_tokens_positions_and_seeds():
    position, token = torch.arange(300)[:, None], torch.arange(1000)[None]
    noise = gumbel(SEED, position, token).double()
    n = noise.numel()
    assert noise.mean().item() == pytest.approx(0.5772, abs=5 * 1.2825 / math.sqrt(n))
    assert noise.std().item() == pytest.approx(1.2825, abs=0.01)
    others = (noise.roll(1, 0), noise.roll(1, 1), gumbel(SEED + 1, position, token).double())
    for other in (*others, gumbel(SEED, position, token, "vllm").double()):
        correlation = torch.corrcoef(torch.stack([noise.flatten(), other.flatten()]))[0, 1]
        assert abs(correlation.item()) < 5 / math.sqrt(n)


def test_argmax_of_score_and_noise_draws_from_the_softmax():
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    noise = gumbel(SEED, torch.arange(40_000)[:, None], torch.arange(4)[None])
    drawn = torch.bincount((p.log() + noise).argmax(-1), minlength=4) / 40_000
    assert ((drawn - p).abs() < 5 * (p * (1 - p) / 40_000).sqrt()).all()


def murmur3(seed, position, token):
    """Hash (seed low, seed high, position, token), independently in plain Python."""

    def rotl(x, r):
        return ((x << r) | (x >> (32 - r))) & 0xFFFFFFFF

    h = 0
    for k in (seed & 0xFFFFFFFF, seed >> 32, position, token):
        k = rotl(k * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
        h = (rotl(h ^ k, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    h ^= 16
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ h >> 16


def test_vllm_family_matches_its_hash_and_formula():
    assert DOMAIN["vllm"] == 0
    for position, token in ((0, 0), (17, 151_935), (99_999, 3)):
        h = murmur3(SEED, position, token)
        assert hashed(SEED, torch.tensor(position), torch.tensor(token), "vllm").item() == h
        expected = -math.log(-math.log1p(-(h + 0.5) / 2**32))
        got = gumbel(SEED, torch.tensor(position), torch.tensor(token), "vllm").item()
        assert got == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("seed", [SEED, 2**63 + 5])
def test_sglang_family_matches_its_hash_and_formula(seed):
    """As in `multinomial_with_seed`: -log(-log(h / (2^32 - 1))) in float64."""
    for position, token in ((0, 0), (17, 151_935), (99_999, 3)):
        h = murmur3(seed, position, token)
        place = torch.tensor(position), torch.tensor(token)
        assert hashed(seed, *place, "sglang").item() == 0xFFFFFFFF - h
        expected = -math.log(-math.log(h / 0xFFFFFFFF))
        assert gumbel(seed, *place, "sglang").item() == pytest.approx(expected, abs=2e-6)


def test_sglang_family_is_finite_at_both_ends(monkeypatch):
    """The engine bounds log u to [-largest, -2^-32]."""
    zero = torch.tensor(0)
    for complement, least, most in ((0, 22.1, 22.3), (0xFFFFFFFF, -710, -709)):
        monkeypatch.setattr(noise_module, "hashed", lambda *_, c=complement: torch.tensor(c))
        assert least <= gumbel(1, zero, zero, "sglang").item() <= most


def test_arguments_are_checked():
    zero = torch.tensor(0)
    with pytest.raises(ValueError, match=r"seed: expected 0 <= seed < 2\*\*64"):
        gumbel(2**64, zero, zero)
    with pytest.raises(ValueError, match="family: expected grpo-guard or vllm or sglang"):
        gumbel(1, zero, zero, "vllm-v1")
