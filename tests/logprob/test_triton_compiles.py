"""The Triton kernels compiled for NVIDIA GPUs, on a machine that needs none.

Whether a kernel fits is known from what the compiler makes of it: registers that spill to memory
and loads that are not pipelined cost a multiple of the time, and neither changes a result.
"""

import importlib.util
import inspect
import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="triton is not installed"
    ),
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing"
    ),
]

INTEGERS = {
    "tokens_per_row", "width", "stride_h", "stride_v", "stride_w", "rows", "vocab", "columns",
    "stride_p", "first", "first_part", "leaders_per_row",
}  # fmt: skip
FP32 = {"scale", "cap"}
POINTERS = {
    "tokens": "*i64", "targets": "*i64", "counts": "*i32", "target_scores": "*fp32",
    "margins": "*fp32", "sums": "*fp32", "leaders": "*fp32", "out": "*fp32", "products": "*fp32",
}  # fmt: skip
# Integers that are multiples of 16 for the usual models; the launcher finds that out by itself.
DIVISIBLE = {"width", "stride_h", "stride_v", "stride_p"}
PLAIN = {"HAS_BIAS": False, "CAPPED": False}
FUSED = {**PLAIN, "UPCAST": False, "EVEN": True, "SPLIT": 1024}
LEADERS = {"FLAT": False, "RANKS": True, "BLOCK": 32}
WHOLE = {"FLAT": True, "RANKS": False, "BLOCK": 1}


@cache
def built(name, capability, constants, dtype="bf16", divisible=True, warps=4, stages=3):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from grpo_guard.logprob.kernels import triton_kernels

    kernel = getattr(triton_kernels, name)
    constants = dict(constants)
    signature, attributes = {}, {}
    for i, argument in enumerate(inspect.signature(kernel.fn).parameters):
        if argument in constants:
            signature[argument] = "constexpr"
        elif argument in FP32:
            signature[argument] = "fp32"
        elif argument in INTEGERS:
            signature[argument] = "i32"
        else:
            signature[argument] = POINTERS.get(argument, f"*{dtype}")
        if divisible and (signature[argument][0] == "*" or argument in DIVISIBLE):
            attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(
        source,
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True},
    )


def fused(capability, bn, bv, bh, warps, sums, **options):
    constants = {**FUSED, **sums, "BN": bn, "BV": bv, "BH": bh}
    return built("fused_sums_kernel", capability, tuple(constants.items()), warps=warps, **options)


def spilled_bytes(compiled, tmp_path):
    """Stack per thread of the machine code, where spilled registers go; None without cuobjdump."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.exists():
        return None
    binary = tmp_path / "kernel.cubin"
    binary.write_bytes(compiled.asm["cubin"])
    said = subprocess.run(
        [tool, "--dump-resource-usage", binary], capture_output=True, text=True, check=True
    ).stdout
    return int(re.search(r"STACK:(\d+)", said)[1]) + int(re.search(r"LOCAL:(\d+)", said)[1])


def assert_sound(compiled, tmp_path, allowed=0):
    assert "ld.local" not in compiled.asm["ptx"]
    assert "st.local" not in compiled.asm["ptx"]
    assert len(compiled.asm["cubin"]) > 1000
    # ptxas spills where PTX still shows registers, so only the machine code tells.
    assert (spilled_bytes(compiled, tmp_path) or 0) <= allowed


@pytest.mark.parametrize("sums", [LEADERS, WHOLE], ids=["leaders", "whole"])
@pytest.mark.parametrize(
    ("bn", "bv", "warps", "allowed"),
    [(64, 128, 4, 0), (64, 128, 8, 0), (128, 128, 8, 0)],
)
def test_the_fused_kernel_keeps_its_registers_and_three_stages_on_hopper(
    bn, bv, warps, allowed, sums, tmp_path
):
    compiled = fused(90, bn, bv, 64, warps, sums)
    assert_sound(compiled, tmp_path, allowed)
    assert "wgmma.mma_async" in compiled.asm["ptx"]
    assert compiled.metadata.shared >= 3 * (bn + bv) * 64 * 2


@pytest.mark.parametrize("sums", [LEADERS, WHOLE], ids=["leaders", "whole"])
def test_the_fused_kernel_keeps_its_registers_on_ampere(sums, tmp_path):
    compiled = fused(80, 64, 128, 64, 8, sums)
    assert_sound(compiled, tmp_path)
    assert "mma.sync" in compiled.asm["ptx"]
    # Copies wait in the registers' stage before they are used: three stages are two in memory.
    assert compiled.metadata.shared >= 2 * (64 + 128) * 64 * 2


def test_every_tile_that_is_tuned_over_is_one_of_those_above():
    from grpo_guard.logprob.kernels.triton_launch import SPLIT, tile_configs

    tiles = {(c["BN"], c["BV"], c["num_warps"]) for wide in (0, 1) for c in tile_configs(wide)}
    assert tiles == {(64, 128, 4), (64, 128, 8), (128, 128, 8)}
    assert all(SPLIT % bv == 0 for _, bv, _ in tiles)


def test_without_multiples_of_16_nothing_is_pipelined():
    """Why strides reach the launcher as plain integers, whose divisibility triton sees."""
    compiled = fused(90, 64, 128, 64, 4, LEADERS, divisible=False)
    assert compiled.metadata.shared < 2 * (64 + 128) * 64 * 2


@pytest.mark.parametrize("capability", [80, 90])
def test_fp32_operands_compile(capability, tmp_path):
    compiled = fused(capability, 64, 128, 32, 8, LEADERS, dtype="fp32")
    assert_sound(compiled, tmp_path)
    assert "tf32" not in compiled.asm["ptx"]


@pytest.mark.parametrize("capability", [80, 90])
def test_all_head_transforms_and_a_ragged_width_compile(capability, tmp_path):
    transforms = {"HAS_BIAS": True, "CAPPED": True, "EVEN": False, **WHOLE}
    assert_sound(fused(capability, 64, 128, 64, 8, transforms), tmp_path, 128)


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("sums", [LEADERS, WHOLE], ids=["leaders", "whole"])
def test_the_kernel_that_reads_a_chunk_keeps_its_registers(capability, sums, tmp_path):
    from grpo_guard.logprob.kernels.triton_launch import SEGMENT

    constants = {**PLAIN, **sums, "BV": SEGMENT}
    compiled = built("chunk_sums_kernel", capability, tuple(constants.items()), warps=8)
    assert_sound(compiled, tmp_path)


@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernel_for_single_tokens_compiles(capability, tmp_path):
    constants = {"HAS_BIAS": True, "CAPPED": True, "BH": 1024}
    compiled = built("token_scores_kernel", capability, tuple(constants.items()))
    assert_sound(compiled, tmp_path)
