"""Load a policy and its tokenizer without executing code from their files."""

from pathlib import Path
from typing import Any, Self

from grpo_guard.core.model_paths import missing, unreached, warn_unpinned


class FromPretrained:
    """Adds `from_pretrained` to classes whose first two arguments are a model and its tokenizer."""

    @classmethod
    def from_pretrained(
        cls,
        path_or_id: str,
        *,
        dtype: str | None = None,
        device: str | None = None,
        revision: str | None = None,
        **options: Any,
    ) -> Self:
        """Load a model and tokenizer as `load_policy` does; ``options`` are the constructor's."""
        model, tokenizer = load_policy(path_or_id, dtype=dtype, device=device, revision=revision)
        return cls(model, tokenizer, **options)  # type: ignore[call-arg]


def load_policy(
    path_or_id: str,
    *,
    dtype: str | None = None,
    device: str | None = None,
    revision: str | None = None,
    local_files_only: bool = False,
) -> tuple[Any, Any]:
    """Load (model, tokenizer) from a local folder or a model id, in eval mode.

    Weights are loaded from safetensors only (pickles execute code); ``trust_remote_code`` is off.

    Args:
        path_or_id, local_files_only: A local folder or a model id; whether never to ask the hub.
        dtype: Name of a torch dtype, or ``"auto"`` for the dtype of the saved weights. Default:
            fp32 on a CPU, bf16 on a GPU.
        device: A torch device; defaults to the GPU if there is one.
        revision: Use a commit hash, or the model's owner can change the weights.

    Raises:
        ValueError: the dtype or device is unknown, or no model or tokenizer is found. A failed
            allocation is raised unchanged.
    """
    if not local_files_only:
        warn_unpinned(path_or_id, revision)
    _require_model(path_or_id)  # before imports that take seconds
    if not local_files_only and (problem := unreached(path_or_id)):
        raise ValueError(f"{path_or_id}: {problem}")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from grpo_guard.logprob.scorers.memory import ran_out_of_memory

    device = _usable(device) or ("cuda" if torch.cuda.is_available() else "cpu")
    type_of_weights = _dtype(dtype, device)
    options: dict[str, Any] = {"revision": revision, "trust_remote_code": False}
    if local_files_only:
        options["local_files_only"] = True
    try:
        tokenizer = AutoTokenizer.from_pretrained(path_or_id, **options)
    except Exception as error:
        if Path(path_or_id).exists():
            expected = "a tokenizer next to the model"
        else:
            expected = "a model folder, but there is no such folder, or the id of a model to fetch"
        raise ValueError(f"{path_or_id}: expected {expected}: {_first_line(error)}") from error
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path_or_id, dtype=type_of_weights, use_safetensors=True, **options
        )
    except Exception as error:
        if ran_out_of_memory(error):
            raise
        raise ValueError(f"{path_or_id}: cannot load the model: {_first_line(error)}") from error
    return model.to(device).eval(), tokenizer


def _dtype(name: str | None, device: str) -> Any:
    import torch

    # bf16 products are emulated on most CPUs, which is slower and less exact.
    chosen = name or ("float32" if device == "cpu" else "bfloat16")
    found = chosen if chosen == "auto" else getattr(torch, chosen, None)
    if not isinstance(found, str | torch.dtype):
        raise ValueError(
            f"dtype: expected the name of a torch dtype such as float16 or bfloat16, got {name!r}"
        )
    return found


def _require_model(path_or_id: str) -> None:
    """Raise ValueError unless this is a folder containing a model, or looks like a model id."""
    path = Path(path_or_id)
    if path.exists():
        if not (path / "config.json").is_file():
            raise ValueError(f"{path_or_id}: expected a model folder with config.json, found none")
    elif problem := missing(path_or_id):
        raise ValueError(f"{path_or_id}: {problem}")


def _usable(device: str | None) -> str | None:
    """Return the device; raise ValueError if torch does not know it or this machine lacks it."""
    import torch

    from grpo_guard.logprob.scorers.memory import ran_out_of_memory

    try:
        if device is not None:
            torch.empty(1, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        if ran_out_of_memory(error):  # the device exists but is full
            raise
        raise ValueError(
            f"device: expected cpu, or a device that torch finds here, got {device!r}: "
            f"{_first_line(error)}"
        ) from None
    return device


def _first_line(error: Exception) -> str:
    """Return the first line of a loader's error, which says what is wrong; a dozen more follow."""
    return str(error).strip().partition("\n")[0][:300] or type(error).__name__
