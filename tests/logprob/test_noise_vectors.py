"""One table of hashes and noise, which every implementation reproduces bit for bit.

The table was written by plain Python integers, apart from the library. Some of its seeds were
computed backwards from their hashes (murmur3 is a bijection of each key), so that it holds the ends
and the middle of the range, where the formula changes its branch: random seeds would not hit them.

Run as a script, this writes what the Triton kernel computes; under TRITON_INTERPRET=1, which triton
reads when it is first imported, that takes a process of its own.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from grpo_guard.logprob.noise import (
    NOISE_FRACTION,
    fixed_gumbel,
    gumbel,
    gumbel_numpy,
    hashed,
    signed,
)
from grpo_guard.logprob.noise import _tables as tables

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
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)
needs_compiler = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing"
)


def test_the_table_holds_the_ends_of_every_range():
    assert {0, 2**63, 2**64 - 1} <= set(SEEDS)
    assert {0, 2**32 - 1, 2**32} <= set(POSITIONS.tolist())
    assert {0, VOCABULARY - 1} <= set(TOKENS.tolist())
    assert {0, 2**31 - 1, 2**31, 2**32 - 1} <= set(HASHES["grpo-guard"].tolist())


@FAMILIES
def test_torch_hashes_by_the_table(family):
    assert torch.equal(hashed(SIGNED, POSITIONS, TOKENS, family), HASHES[family])


@FAMILIES
def test_seeds_as_python_integers_hash_by_the_table(family):
    for seed, position, token, expected in zip(
        SEEDS, POSITIONS, TOKENS, HASHES[family], strict=True
    ):
        assert hashed(seed, position, token, family) == expected


@FAMILIES
def test_numpy_hashes_by_the_table(family):
    with np.errstate(over="ignore"):  # products modulo 2^64 are meant
        arrays = (SIGNED.numpy(), POSITIONS.numpy(), TOKENS.numpy())
        np.testing.assert_array_equal(hashed(*arrays, family), HASHES[family].numpy())


def test_torch_makes_the_tables_noise():
    noise = gumbel(SIGNED, POSITIONS, TOKENS)
    assert noise.dtype == torch.float32
    assert torch.equal(noise.double() * 2**NOISE_FRACTION, FIXED.double())


def test_numpy_makes_the_tables_noise():
    for seed, position, token, expected in zip(SEEDS, POSITIONS, TOKENS, FIXED, strict=True):
        noise = gumbel_numpy(seed, position.numpy(), token.numpy())
        assert noise.dtype == np.float32
        assert noise.astype(np.float64) * 2**NOISE_FRACTION == expected


def test_noise_follows_from_the_hash_by_integers_alone():
    fixed = fixed_gumbel(HASHES["grpo-guard"].numpy(), *tables(), np.where)
    np.testing.assert_array_equal(fixed, FIXED.numpy())


@pytest.mark.slow
@needs_triton
def test_the_triton_kernel_makes_the_tables_noise(tmp_path):
    path = tmp_path / "noise.json"
    process = subprocess.run(
        [sys.executable, __file__, str(path)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    written = json.loads(path.read_text())
    assert written["table"] == FIXED.tolist()
    assert written["random"] == [True] * 4


@needs_triton
@needs_compiler
@pytest.mark.parametrize("capability", [80, 90])
def test_the_triton_kernel_compiles_and_multiplies_hashes_on_32_bits(capability, tmp_path):
    import triton
    from test_triton_compiles import assert_sound
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from grpo_guard.logprob.replay.triton_noise import BLOCK, gumbel_kernel

    inputs = dict.fromkeys(("seeds", "positions", "tokens", "logs", "ratios"), "*i64")
    source = ASTSource(
        fn=gumbel_kernel,
        signature={**inputs, "out": "*fp32", "n": "i32", "BLOCK": "constexpr"},
        constexprs={"BLOCK": BLOCK},
        attrs={(i,): [["tt.divisibility", 16]] for i in range(6)},
    )
    options = {"num_warps": 4, "enable_fp_fusion": True}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert_sound(compiled, tmp_path)
    # Each of the 8 elements of a thread has ten products of the hash and four of the logarithms;
    # as 64-bit ones, which cost four times as much, there were twice as many of these.
    assert compiled.asm["ptx"].count("mul.lo.s64") <= 8 * 7


@needs_triton
def test_the_kernel_refuses_what_it_would_read_wrongly():
    from grpo_guard.logprob.replay.triton_noise import triton_gumbel

    three = torch.arange(3)
    with pytest.raises(ValueError, match=r"positions: expected int64.*int32"):
        triton_gumbel(three, three.int(), three)
    with pytest.raises(ValueError, match=r"tokens: expected .* of one length.*\(2,\)"):
        triton_gumbel(three, three, three[:2])
    with pytest.raises(ValueError, match=r"seeds: expected .* one-dimensional.*\(1, 3\)"):
        triton_gumbel(three[None], three[None], three[None])


@needs_triton
@needs_compiler
def test_without_a_gpu_or_the_interpreter_the_kernel_is_refused():
    from grpo_guard.logprob.replay.triton_noise import triton_gumbel

    with pytest.raises(ValueError, match=r"expected one CUDA device, got .*cpu"):
        triton_gumbel(torch.arange(3), torch.arange(3), torch.arange(3))


def test_without_triton_the_import_error_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "grpo_guard.logprob.replay.triton_noise", raising=False)
    with pytest.raises(ImportError, match="the package triton"):
        importlib.import_module("grpo_guard.logprob.replay.triton_noise")


def main(path):
    from grpo_guard.logprob.replay.triton_noise import triton_gumbel

    noise = triton_gumbel(SIGNED, POSITIONS, TOKENS).double() * 2**NOISE_FRACTION
    random = []
    for n in (0, 1, 1024, 1025):  # none, and on both sides of a whole block
        generator = torch.Generator().manual_seed(n)
        seeds = torch.randint(-(2**63), 2**63 - 1, (n,), generator=generator)
        positions = torch.randint(0, 2**33, (n,), generator=generator)
        tokens = torch.randint(0, 2**18, (2 * n,), generator=generator)[::2]  # not contiguous
        ours = triton_gumbel(seeds, positions, tokens)
        random.append(torch.equal(ours, gumbel(seeds, positions, tokens)))
    with open(path, "w") as file:
        json.dump({"table": noise.tolist(), "random": random}, file)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1])
