"""Float32 matrix products on the CPU, using the faster of PyTorch's two libraries.

PyTorch multiplies float32 matrices with MKL. On AMD processors MKL leaves AVX-512 unused, and
oneDNN, which PyTorch uses for other dtypes, is about twice as fast. The choice depends on the
machine and the shapes, never on a measurement, so identical runs on identical machines produce
identical bits.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# Below these sizes the two libraries are about equally fast, or MKL is faster.
FEWEST_ROWS: Final = 16
FEWEST_COLUMNS: Final = 64
# oneDNN caches a half-megabyte kernel for every shape it sees. Batches can have any number of rows,
# so they are padded to one of a few sizes.
LARGEST: Final = 4096
_CPU: Final = Path("/proc/cpuinfo")


def product(x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
    """Compute ``x @ weight.T`` without gradients: [N, H], [V, H] -> [N, V], all in the same float
    dtype. The result may be written into the buffer ``out``."""
    if _suits(x, weight):
        return _onednn(x, weight, None)
    return torch.mm(x, weight.T, out=out)


@contextmanager
def faster_linear(module: nn.Module) -> Iterator[None]:
    """Make linear layers use the faster library for this thread's gradient-free forward passes.

    Compiled modules are left unchanged, because the compiler makes its own choice.
    """
    here = any(_is_float32_here(parameter) for parameter in module.parameters())
    if not (here and onednn_is_faster() and not _is_compiled(module)):
        yield
        return
    with _FasterLinear():
        yield


def _is_float32_here(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32


class _FasterLinear(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if torch.compiler.is_compiling():
            return func(*args, **(kwargs or {}))
        if func is nn.functional.linear and not kwargs and _suits(*args):
            x, weight, bias = (*args, None)[:3]
            return _onednn(x, weight, bias)
        return func(*args, **(kwargs or {}))


def _suits(x: Any, weight: Any, bias: Any = None) -> bool:
    """Whether oneDNN computes the same product as PyTorch's default, only faster."""
    tensors = [t for t in (x, weight, bias) if t is not None]
    return (
        onednn_is_faster()
        # Quantised and distributed weights implement their own product.
        and all(type(t) is Tensor or type(t) is nn.Parameter for t in tensors)
        and all(map(_is_float32_here, tensors))
        and all(t.layout == torch.strided for t in tensors)
        and x.ndim >= 2
        and x.numel() >= FEWEST_ROWS * x.shape[-1]
        and weight.ndim == 2
        and weight.shape[0] >= FEWEST_COLUMNS
        and weight.shape[1] == x.shape[-1] > 0
        and weight.is_contiguous()
        # The bias is read as contiguous numbers, whatever its shape and strides.
        and (bias is None or (bias.shape == weight.shape[:1] and bias.is_contiguous()))
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and _exact()
    )


def _exact() -> bool:
    """Whether the user wants full precision; at lower settings oneDNN may round the factors."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # the precision was set for one backend through the newer API
        return False


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    weight, bias = weight.detach(), bias if bias is None else bias.detach()
    pieces = []
    for rows in torch.split(x.reshape(-1, x.shape[-1]), LARGEST):
        missing = size_of(len(rows)) - len(rows)
        filled = nn.functional.pad(rows, (0, 0, 0, missing)) if missing else rows.contiguous()
        made = torch.ops.mkldnn._linear_pointwise(filled, weight, bias, "none", [], "")
        pieces.append(made[: len(rows)])
    result = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    return result.view(*x.shape[:-1], -1)


def size_of(rows: int) -> int:
    """Round up to one of 37 sizes up to `LARGEST`: the powers of two plus, from 256 up, seven more
    between consecutive powers."""
    whole = 1 << (rows - 1).bit_length()
    step = whole if whole <= 256 else whole // 16
    return max(FEWEST_ROWS, -(-rows // step) * step)


@functools.cache
def onednn_is_faster() -> bool:
    """Whether this is an AMD CPU with AVX-512 and a PyTorch build that has both libraries."""
    mkl = bool(torch.backends.mkl.is_available())  # type: ignore[no-untyped-call]
    mkldnn = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
    if not (mkl and mkldnn):
        return False
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not _is_amd():
        return False
    return _works()


def _is_amd() -> bool:
    try:
        with _CPU.open() as file:
            return "AuthenticAMD" in file.read(4096)
    except OSError:
        return False


def _works() -> bool:
    """Try out the operator, which is internal to PyTorch: any version may change or remove it."""
    cpu32: dict[str, Any] = {"device": "cpu", "dtype": torch.float32}
    x = torch.arange(FEWEST_ROWS * 3, **cpu32).view(-1, 3)
    weight = torch.arange(12, **cpu32).view(4, 3)
    try:
        with torch.no_grad():
            return torch.equal(_onednn(x, weight, None), x @ weight.T)
    except Exception:
        return False


def _is_compiled(module: nn.Module) -> bool:
    return any(
        hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None) is not None
        for m in module.modules()
    )
