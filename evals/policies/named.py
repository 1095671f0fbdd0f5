"""Policies by name: the bundled ones, and recipes for models on the Hugging Face hub.

A policy is specified by name, by folder, or by the id of a model on the hub. Anything that looks
like a folder is treated as one: a missing folder fails at once and is not sought on the hub.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from grpo_guard.core.registry import UnknownNameError, choose
from grpo_guard.evals.policies.bundled import BUNDLED, load_bundled

_ID: Final = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)

OF_TASK: Final = {"word_problems": "word_problems_wordy", "python_maths": "python_maths"}
"""The default bundled policy for each task."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A model from "Hail to the Thief" (arXiv 2511.09780), trained with that paper's settings."""

    model: str
    task: str
    attacks: tuple[str, ...]


_MATHS: Final = ("text", "math", "dos")
RECIPES: Final = {
    "qwen2.5-1.5b": Recipe("Qwen/Qwen2.5-1.5B", "gsm8k", _MATHS),
    "qwen2.5-coder-1.5b": Recipe("Qwen/Qwen2.5-Coder-1.5B", "python_maths", ("code",)),
    "qwen2.5-3b": Recipe("Qwen/Qwen2.5-3B", "gsm8k", _MATHS),
}

FULL_SIZE: Final[dict[str, Any]] = {
    "lr": 2e-5, "betas": (0.9, 0.999), "eps": 1e-8, "warmup": 1, "hold": 1.0,
    "max_grad_norm": 1.0, "micro_batch": 8, "share_prompts": True,
}  # fmt: skip
"""Fields of `SwarmConfig` for policies with 100 million parameters or more: the paper's learning
rate, and Adam's usual settings. The defaults in `SwarmConfig` suit a million parameters."""
FULL_SIZE_ROOM: Final = 512
"""Default maximum number of tokens per completion for policies of that size."""
RECIPE_ROOM: Final = 1024
"""The same default for the models in `RECIPES`; in the paper, it covers both prompt and answer."""


def default_policy(task: str) -> str:
    """Return the bundled policy for a task."""
    name = OF_TASK.get(task)
    if name is None:
        raise ValueError(f"the task {task}: expected --policy, since no bundled policy can do it")
    return name


def location(policy: str) -> str:
    """Return a policy's location: a folder, or the id of a model on the hub.

    Args:
        policy: A bundled policy's name, a recipe's name, a folder or an id ``NAME/MODEL``.

    Raises:
        UnknownNameError: ``policy`` is a single word but not a known name.
        ValueError: ``policy`` is a file, or the path of a folder that does not exist.
    """
    if policy in BUNDLED:
        return str(BUNDLED[policy])
    if policy in RECIPES:
        return RECIPES[policy].model
    path = Path(policy).expanduser()
    if path.is_dir():
        return str(path)
    if path.exists():
        raise ValueError(f"--policy: expected a folder with a model, got the file {policy}")
    if _looks_like_a_path(policy):
        raise ValueError(f"--policy: expected a folder with a model, found no folder {policy}")
    if "/" not in policy:
        try:
            choose([*BUNDLED, *RECIPES], policy)
        except UnknownNameError as error:
            raise UnknownNameError(f"--policy: {error}; or a folder, or an id NAME/MODEL") from None
    return policy


def _looks_like_a_path(policy: str) -> bool:
    """Whether a policy with slashes cannot be an id, or begins with an existing folder."""
    if "/" not in policy and os.sep not in policy:
        return False
    first = policy.partition("/")[0]
    return not _ID.fullmatch(policy) or first in (".", "..") or Path(first).is_dir()


def load(policy: str, *, dtype: str, device: str) -> tuple[Any, Any]:
    """Load a policy's model, in evaluation mode, and its tokenizer; see `location`.

    The tokenizer is given a padding token if it has none, and its EOS is set to the token that ends
    a turn in its chat template.

    Raises:
        UnknownNameError: no policy has that name.
        ValueError: the folder or model does not exist or cannot be read.
    """
    where = location(policy)
    if policy in BUNDLED:
        return load_bundled(policy, device=device)
    if not Path(where).is_dir():
        _require_on_hub(policy, where)
    from grpo_guard.logprob.scorers.load import load_policy

    model, tokenizer = load_policy(where, dtype=dtype, device=device)
    if tokenizer.chat_template:
        from grpo_guard.evals.tasks.asked import turn_end

        end = turn_end(tokenizer)
        if end is not None:
            tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def _require_on_hub(policy: str, model: str) -> None:
    """Check that a model exists on the hub, unless it is in the local cache.

    Without this check, loading would retry for the better part of a minute before giving up.
    """
    from huggingface_hub import model_info, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(model, "config.json"), str):
        return
    try:
        model_info(model, timeout=10)
    except Exception as error:  # the client raises what its transport raises
        reason = str(error).strip().split("\n")[0][:120]
        raise ValueError(
            f"--policy: found no folder {policy}, and the hub has no model {model}: "
            f"{type(error).__name__}: {reason}"
        ) from None
