"""GenRL: send ids and signatures with a node's texts, so that others can check them.

A GenRL payload has only texts. `Rollouts`, a mixin for GenRL's trainer, keeps the sampled ids,
drawn under a public coin if there is one; `Exchange`, a wrapper around the communication backend,
puts the ids into ``Payload.metadata``.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_guard.adapters.genrl.trees import CLAIMS
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.coin import PublicCoin


class Rollout(list[str]):
    """A prompt's G completions as GenRL represents them, a list of texts. ``claims`` maps a field
    of `Completion` to the value for each completion, [G]."""

    def __init__(self, texts: Sequence[str], claims: dict[str, list[Any]]) -> None:
        super().__init__(texts)
        self.claims = claims


def sampling_of(config: Any) -> SamplingSpec:
    """The sampler described by a `GRPOTrainerConfig` under a coin, where ``top_k=None`` turns top-k
    off. Without a coin, GenRL passes None on to transformers, whose default is 50."""
    return SamplingSpec(
        engine="transformers",
        temperature=config.temperature,
        top_k=config.top_k or 0,
        top_p=config.top_p,
        min_p=config.min_p or 0.0,
        repetition_penalty=config.repetition_penalty,
        max_new_tokens=config.max_new_tokens,
    )


class Rollouts:
    """Mixin that makes rollouts keep their token ids; list it before `GRPOLanguageTrainerModule` in
    a class's bases."""

    _coin: tuple[PublicCoin, Any, str] | None = None

    def under_coin(self, coin: PublicCoin, state: Any, node: Any) -> None:
        """From now on, sample for each slot the one completion that the coin allows, in the round
        of the `GameState` ``state``. ``node`` is the name that peers know this node by."""
        self._coin = coin, state, str(node)

    def generate(self, inputs: Any, return_completion_ids: bool = False, stage: int = 0) -> Any:
        """Generate completions as GenRL's method does, but return a `Rollout` for each prompt."""
        tokenizer: Any = self.processing_class  # type: ignore[attr-defined]
        eos = [int(tokenizer.eos_token_id)]
        if self._coin is None:
            from grpo_guard.logprob.replay.generate import until_eos  # padding follows the end

            texts, rows = super().generate(inputs, True, stage)  # type: ignore[misc]
            ids = [[list(until_eos(row.tolist(), eos)) for row in each] for each in rows]
        else:
            ids = self._drawn([row["prompt"] for row in inputs], tokenizer, eos)
            texts = [tokenizer.batch_decode(row, skip_special_tokens=True) for row in ids]
            rows = ids
        rollouts = [Rollout(t, {"completion_ids": i}) for t, i in zip(texts, ids, strict=True)]
        return (rollouts, rows) if return_completion_ids else rollouts

    def _drawn(self, prompts: Sequence[Any], tokenizer: Any, eos: list[int]) -> list[list[Any]]:
        from grpo_guard.logprob.replay.generate import generate_under_coin

        assert self._coin is not None
        coin, state, node = self._coin
        me: Any = self
        size = me.args.num_generations
        # Encoded the way the verifier does it; GenRL itself adds special tokens on top of the
        # template's.
        encoded = [
            tokenizer.apply_chat_template(
                prompt, tokenize=True, return_dict=False, add_generation_prompt=True
            )
            for prompt in prompts
            for _ in range(size)
        ]
        seeds = [
            coin.seed(round=state.round, node=node, slot=slot, prompt=prompt)
            for prompt in prompts
            for slot in range(size)
        ]
        drawn = [
            list(ids)
            for ids in generate_under_coin(
                me.model, encoded, seeds, sampling_of(me.args), eos_ids=eos
            )
        ]
        return [drawn[start : start + size] for start in range(0, len(drawn), size)]


class Around:
    """A wrapper around a GenRL object; anything that a subclass does not define is delegated to the
    object."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "_inner" or name.startswith("__"):  # a copy has no inner object yet
            raise AttributeError(name)
        return getattr(self._inner, name)


class Exchange(Around):
    """A communication backend that adds claims to the payloads it sends: ``claims`` gets ``{batch:
    [Payload]}`` and this node's name, and returns those for each payload. ``warn`` logs a
    failure."""

    def __init__(
        self,
        communication: Any,
        claims: Callable[[Any, Any], Mapping[Any, Sequence[Any]]],
        warn: Callable[[str, Exception], None],
    ) -> None:
        super().__init__(communication)
        self._claims, self._warn = claims, warn

    def all_gather_object(self, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Exchange objects as the backend's method does, after adding claims to the metadata of
        ``{batch: [Payload]}``."""
        try:
            claims = self._claims(obj, self._inner.get_id())
            sent = {
                batch: [_claiming(p, c) for p, c in zip(row, claims[batch], strict=True)]
                for batch, row in obj.items()
            }
        except Exception as error:
            # Sending payloads without claims is better than sending none.
            self._warn("rollouts are sent without ids and signatures", error)
            sent = obj
        return self._inner.all_gather_object(sent, *args, **kwargs)


def _claiming(payload: Any, claims: dict[str, Any] | None) -> Any:
    if not claims or not isinstance(payload.metadata, dict | None):
        return payload
    payload = copy.copy(payload)
    payload.actions = list(payload.actions)
    payload.metadata = {**(payload.metadata or {}), CLAIMS: claims}
    return payload
