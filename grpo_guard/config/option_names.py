"""Option names of the verifiers that need torch, so that a typo is refused before torch loads.

Reading the names from the signatures of the classes would load torch first, which takes seconds. A
test checks that the two agree.
"""

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
"""Name of a verifier -> names of the options that a guard file can set."""
PYTHON_ONLY: Final = ("scorer", "store", "tokenizer", "key")
"""Names of parameters that take objects; a file that sets one is refused later with its own
message."""
