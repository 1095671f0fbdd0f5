"""Options of the verifiers that need torch, by name, so that a typo is refused before torch loads.

Reading them from the classes' signatures would load torch first, which takes seconds. A test
compares both.
"""

from __future__ import annotations

from typing import Final

_WRAPPERS: Final = ("only", "calibration")
_LOADED: Final = ("model", "dtype", "device", "revision", "name", "alpha", "profile")
_SCORED: Final = (
    *_LOADED, *_WRAPPERS, "sampling", "text_profile", "threads", "memory_budget", "check_end",
    "check_text", "require_ids", "trust_prompt_ids", "special", "strict", "chat_template_kwargs",
)  # fmt: skip

OPTIONS: Final = {
    "logprob_bound": (*_SCORED, "node_alpha"),
    "tail_probability": (*_SCORED, "answer_positions", "number_positions"),
    "seed_replay": (*_SCORED, "coin", "family", "nodes", "prompts", "run", "slots"),
    "reference_likelihood": (
        *_LOADED, *_WRAPPERS, "memory_budget", "max_new_tokens", "tail", "chat_template_kwargs",
    ),
}  # fmt: skip
"""Verifier -> the options that a guard file may set."""
PYTHON_ONLY: Final = ("scorer", "store", "tokenizer", "key")
"""Parameters that take objects: refused later, with another message."""
