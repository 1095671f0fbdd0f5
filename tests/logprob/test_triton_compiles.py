"""The Triton kernels compiled for NVIDIA GPUs, on a machine that needs none.

The compiler's output shows whether a kernel fits: registers spilled to memory multiply the run time
without changing the result.
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
    "tokens_per_row", "width", "stride_h", "stride_v", "stride_w", "rows", "columns",
    "stride_p", "first", "first_part", "leaders_per_row",
}  # fmt: skip
FP32 = {"scale", "cap"}
POINTERS = {
    "tokens": "*i64", "targets": "*i64", "counts": "*i32", "target_scores": "*fp32",
    "sums": "*fp32", "leaders": "*fp32", "out": "*fp32", "products": "*fp32",
}  # fmt: skip
# Integers that are multiples of 16 for the usual models, which the launcher detects.
DIVISIBLE = {"width", "stride_h", "stride_v", "stride_p"}
PLAIN = {"HAS_BIAS": False, "CAPPED": False}
TRANSFORMED = {"HAS_BIAS": True, "CAPPED": True}
LEADERS = {"FLAT": False, "RANKS": True, "BLOCK": 32}
WHOLE = {"FLAT": True, "RANKS": False, "BLOCK": 1}


@cache
def built(name, capability, constants, warps=4):
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
            signature[argument] = POINTERS.get(argument, "*bf16")
        if signature[argument][0] == "*" or argument in DIVISIBLE:
            attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(
        source,
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": warps, "num_stages": 3, "enable_fp_fusion": True},
    )


def spilled_bytes(compiled, tmp_path):
    """Stack per thread in the machine code (spilled registers); None without cuobjdump."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.exists():
        return None
    binary = tmp_path / "kernel.cubin"
    binary.write_bytes(compiled.asm["cubin"])
    usage = subprocess.run(
        [tool, "--dump-resource-usage", binary], capture_output=True, text=True, check=True
    ).stdout
    return int(re.search(r"STACK:(\d+)", usage)[1]) + int(re.search(r"LOCAL:(\d+)", usage)[1])


def assert_sound(compiled, tmp_path):
    assert "ld.local" not in compiled.asm["ptx"]
    assert "st.local" not in compiled.asm["ptx"]
    assert len(compiled.asm["cubin"]) > 1000
    # ptxas spills even if PTX still shows registers, so only the machine code tells.
    assert not spilled_bytes(compiled, tmp_path)


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("sums", [LEADERS, WHOLE], ids=["leaders", "whole"])
@pytest.mark.parametrize("head", [PLAIN, TRANSFORMED], ids=["plain", "transformed"])
def test_chunk_kernel_does_not_spill_registers(capability, sums, head, tmp_path):
    from grpo_guard.logprob.kernels.triton_launch import SEGMENT

    constants = {**head, **sums, "BV": SEGMENT}
    compiled = built("chunk_sums_kernel", capability, tuple(constants.items()), warps=8)
    assert_sound(compiled, tmp_path)


@pytest.mark.parametrize("capability", [80, 90])
def test_single_token_kernel_compiles(capability, tmp_path):
    constants = {**TRANSFORMED, "BH": 1024}
    compiled = built("token_scores_kernel", capability, tuple(constants.items()))
    assert_sound(compiled, tmp_path)
