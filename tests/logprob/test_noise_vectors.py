"""A table of hashes and noise that every machine reproduces bit for bit.

The table was computed with plain Python integers, independently of the library. Some of its seeds
were computed backwards from their hashes (murmur3 is a bijection of each key), so that it holds the
ends and the middle of the range, where the formula changes its branch: random seeds would not hit
them.
"""

import json
from pathlib import Path

import pytest
import torch

from grpo_guard.logprob.noise import (
    NOISE_FRACTION,
    gumbel,
    hashed,
    signed,
)
from grpo_guard.logprob.noise import _fixed_gumbel as fixed_gumbel

CASES = json.loads(Path(__file__).with_name("noise_vectors.json").read_text())["cases"]
SEEDS = [int(case["seed"], 16) for case in CASES]
SIGNED = torch.tensor([signed(seed) for seed in SEEDS])
POSITIONS = torch.tensor([case["position"] for case in CASES])
TOKENS = torch.tensor([case["token"] for case in CASES])
HASHES = {
    "grpo-guard": torch.tensor([case["hash"] for case in CASES]),
    "vllm": torch.tensor([case["vllm_hash"] for case in CASES]),
}
FIXED = torch.tensor([case["noise"] for case in CASES])
VOCABULARY = 151_936

FAMILIES = pytest.mark.parametrize("family", HASHES)


def test_table_contains_the_ends_of_every_range():
    assert {0, 2**63, 2**64 - 1} <= set(SEEDS)
    assert {0, 2**32 - 1, 2**32} <= set(POSITIONS.tolist())
    assert {0, VOCABULARY - 1} <= set(TOKENS.tolist())
    assert {0, 2**31 - 1, 2**31, 2**32 - 1} <= set(HASHES["grpo-guard"].tolist())


@FAMILIES
def test_torch_hashes_match_the_table(family):
    assert torch.equal(hashed(SIGNED, POSITIONS, TOKENS, family), HASHES[family])


@FAMILIES
def test_python_integer_seeds_hash_as_in_the_table(family):
    for seed, position, token, expected in zip(
        SEEDS, POSITIONS, TOKENS, HASHES[family], strict=True
    ):
        assert hashed(seed, position, token, family) == expected


def test_torch_noise_matches_the_table():
    noise = gumbel(SIGNED, POSITIONS, TOKENS)
    assert noise.dtype == torch.float32
    assert torch.equal(noise.double() * 2**NOISE_FRACTION, FIXED.double())


def test_noise_follows_from_the_hash_in_integers():
    assert torch.equal(fixed_gumbel(HASHES["grpo-guard"]), FIXED)
