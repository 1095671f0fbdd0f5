"""The sampling parameters declared by a swarm.

Engines apply the same filters in different orders, and the order changes the nucleus. According to
the source of transformers 5.23, vLLM 0.33 and SGLang 0.5.23, the orders are:

* transformers: repetition penalty, temperature, top-k, top-p (renormalised after top-k), min-p
* vllm: repetition penalty, temperature, min-p, top-k, top-p (renormalised after both)
* sglang: penalties, temperature, then top-k and top-p jointly on the full distribution, then min-p

All three keep the token that crosses top-p; ties with the k-th logit are kept.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from grpo_guard.core.arguments import is_count, is_finite, worded_class
from grpo_guard.core.naming import near

Engine: TypeAlias = Literal["transformers", "vllm", "sglang"]


@worded_class
@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """The sampling parameters that every node must use.

    Nothing is inherited from a model's ``generation_config``. Engines do that silently
    (transformers falls back to top_k = 50, a vLLM server to the model's file), and a verifier that
    guessed would reject honest work. Engine, temperature, top_k and top_p must be given; the other
    parameters are off by default. Raises ValueError if an argument is out of range.

    Args:
        engine: The sampling engine, ``"transformers"``, ``"vllm"`` or ``"sglang"``; it determines
            the order of the filters.
        temperature: The sampler's temperature, > 0, such as 1.0. Greedy decoding is ``top_k=1`` at
            any temperature.
        top_k: Number of most likely tokens to keep, such as 50; 0 keeps all.
        top_p: Keep the smallest set of most likely tokens with this probability mass, in (0, 1],
            such as 0.95; 1 keeps all.
        min_p: Keep tokens with at least this share of the maximum probability, in [0, 1); 0 turns
            this filter off.
        repetition_penalty: Penalty on tokens that occur in the prompt or completion, > 0; 1 means
            no penalty.
        max_new_tokens: Maximum length of a completion in tokens, including EOS; None if it is not
            declared.
        eos_token_ids: Ids of tokens that end a completion; empty for the tokenizer's EOS.
    """

    engine: Engine
    temperature: float
    top_k: int
    top_p: float
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        p, least, limit = self.top_p, self.min_p, self.max_new_tokens
        heat, penalty, ids = self.temperature, self.repetition_penalty, self.eos_token_ids
        above = "a finite number > 0"
        for name, expected, ok in (
            ("engine", "one of " + ", ".join(get_args(Engine)), self.engine in get_args(Engine)),
            ("temperature", f"{above} (greedy decoding is top_k=1)", is_finite(heat) and heat > 0),
            ("top_k", "an integer >= 0 (0 = off)", is_count(self.top_k)),
            ("top_p", "a number in (0, 1] (1 = off)", is_finite(p) and 0 < p <= 1),
            ("min_p", "a number in [0, 1) (0 = off)", is_finite(least) and 0 <= least < 1),
            ("repetition_penalty", f"{above} (1 = off)", is_finite(penalty) and penalty > 0),
            ("max_new_tokens", "an integer >= 1 or None", limit is None or is_count(limit, 1)),
            ("eos_token_ids", "a sequence of integers >= 0", all(map(is_count, ids))),
        ):
            if not ok:
                got = getattr(self, name)
                nearest = near(get_args(Engine), got) if isinstance(got, str) else []
                hint = f"; did you mean {nearest[0]!r}?" if nearest and name == "engine" else ""
                raise ValueError(f"SamplingSpec.{name}: expected {expected}, got {got!r}{hint}")
        object.__setattr__(self, "eos_token_ids", tuple(ids))

    @property
    def truncates(self) -> bool:
        """Whether any filter is on. Without a filter, every token is in the support."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0
