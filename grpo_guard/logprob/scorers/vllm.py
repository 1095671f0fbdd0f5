"""Score completions with vLLM's ``prompt_logprobs``, without the weights in this process."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.core.verdict import Cause
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.scorers.top_stats import TopList, TopListError, top_stats
from grpo_guard.logprob.scorers.vllm_backends import EngineUnavailableError, ServerBackend
from grpo_guard.logprob.stats import TokenStats

__all__ = ["EngineUnavailableError", "VLLMScorer"]


class VLLMScorer:
    """Computes per-token statistics under the policy served by a vLLM engine.

    The engine must hold exactly the weights that the completions are declared to come from, so load
    each round's weights before scoring. Whatever the temperature, vLLM lists for each position the
    log-probs at T = 1 of the ``n_logprobs`` most likely tokens and of the actual token (vllm 0.32
    and 0.33). From these, the following fields are computed, with p at the declared temperature
    (`top_stats.py` explains the arithmetic):

    ===================  =========================================================================
    field                value
    ===================  =========================================================================
    edge_gap             exact; under top-p a lower bound if tokens tied with the k-th may
                         continue below the list, as they always may with n_logprobs = top_k
    in_set, and the      exact if K is the listed tokens of the top-k with their ties; any K that
    differences of       depends on the prefix alone keeps the e-process valid
    logprob,
    log_set_mass,
    log_flat_mass
    logprob,             exact at T = 1, else lower bounds from the largest possible normaliser
    max_logprob,
    log_set_mass,
    mass_above,
    log_flat_mass        (exact for b = 0, else as above); mass_above of an unlisted token is a
                         lower bound at every T
    tail_mass            upper bound; for listed tokens at T = 1 exact to within 1e-5
    rank                 exact for listed tokens; else vLLM's own rank, which counts the tokens at
                         least as likely: tokens that tie count as likelier
    ties                 number of tied tokens in the list
    entropy              log V, an upper bound
    logit                31, because vLLM does not report logit levels
    replay_margin        None
    ===================  =========================================================================

    The scorer is sufficient for `LogProbBoundVerifier` within the limits of `check`, and for tests
    on tail masses, which are then conservative (above T = 1 they detect hardly anything, because
    the unlisted mass can have any weight). The scorer does not support seed replay.

    Args:
        backend: Provides the lists of most likely tokens.
        model: Name of the policy, for `identity`.
        vocab_size: Number of rows of the model's embedding.
        window: Maximum sequence length of the policy in tokens, or None if unknown. The nodes may
            use all of it, and a longer completion is its author's fault. The engine needs
            max_model_len >= window + 1, because it always generates a token; a sequence that is too
            long only for the engine raises ValueError.
        dtype: The declared dtype of the engine's computation; the engine is not asked.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        backend: ServerBackend,
        model: str,
        *,
        vocab_size: int,
        window: int | None = None,
        dtype: str = "unknown",
    ) -> None:
        if not 1 <= backend.n_logprobs <= vocab_size:
            raise ValueError(
                f"n_logprobs: expected an integer from 1 to vocab_size = {vocab_size}, "
                f"got {backend.n_logprobs!r}"
            )
        if window is not None and window < 2:
            raise ValueError(f"window: expected an integer >= 2 or None, got {window!r}")
        self.backend = backend
        self.model = model
        self.vocab_size = vocab_size
        self.window = window
        self._dtype = dtype

    @classmethod
    def server(
        cls,
        base_url: str,
        model: str,
        *,
        config: str | Path | None = None,
        vocab_size: int | None = None,
        window: int | None = None,
        dtype: str = "unknown",
        **options: Any,
    ) -> "VLLMScorer":
        """Build a scorer that queries a vLLM server; needs the ``openai`` package.

        Args:
            base_url, model, options: Arguments of `ServerBackend`.
            config: Local model folder whose config.json supplies ``vocab_size`` and ``window`` if
                not given. Nothing is downloaded.
            vocab_size: Number of rows of the model's embedding.
            window, dtype: As for the constructor.

        Raises:
            ValueError: an argument is out of range, or the vocabulary size is unknown.
            ImportError: the ``openai`` package is missing.
        """
        known = _read_config(config)
        size = vocab_size if vocab_size is not None else known.get("vocab_size")
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"vocab_size: expected an integer >= 1 or a config, got {size!r}")
        length = window if window is not None else known.get("max_position_embeddings")
        backend = ServerBackend(base_url, model, **options)
        return cls(backend, model, vocab_size=size, window=length, dtype=dtype)

    def identity(self) -> dict[str, str]:
        """Return the engine, model name and declared dtype."""
        return {"engine": "vllm", "architecture": self.model, "dtype": self._dtype}

    def check(self, spec: SamplingSpec) -> None:
        """Refuse a sampler that cannot be checked using a list of the most likely tokens, by
        ValueError: top-k is off or larger than the list, or there is a repetition penalty (which
        needs the logits of all seen tokens) or sglang's top-p (of the whole distribution)."""
        n = self.backend.n_logprobs
        if not 1 <= spec.top_k <= n:
            raise ValueError(
                f"SamplingSpec.top_k: VLLMScorer expects 1 to n_logprobs = {n}, got {spec.top_k}. "
                "Raise n_logprobs and the engine's max_logprobs, or score with the weights"
            )
        if spec.repetition_penalty != 1.0:
            raise ValueError(
                "SamplingSpec.repetition_penalty: VLLMScorer expects 1 (off), "
                f"got {spec.repetition_penalty}"
            )
        if spec.engine == "sglang" and spec.top_p < 1:
            raise ValueError(
                "SamplingSpec.top_p: VLLMScorer expects 1 (off) with engine 'sglang', "
                f"got {spec.top_p}"
            )

    def score(
        self, sequences: Sequence[Encoded], spec: SamplingSpec, *, mass_margin: float = 0.0
    ) -> list[TokenStats]:
        """Compute the statistics of each completion's tokens, in the order of ``sequences``.

        Raises:
            ValueError: see `check`; or a sequence exceeds the window or the engine's limit.
            EngineUnavailableError: there was no usable answer in time.
        """
        self.check(spec)
        rows = [(*s.prompt_ids, *s.completion_ids) for s in sequences]
        # Checked before sending, so that one overlong sequence does not cost the others a pass.
        for i, row in enumerate(rows):
            if self.window is not None and len(row) > self.window:
                raise ValueError(
                    f"sequences[{i}]: expected at most window = {self.window} tokens, "
                    f"got {len(row)}"
                )
        lists = self.backend.lists(rows, [len(s.prompt_ids) for s in sequences])
        return [
            top_stats(self._table(positions, sequence), spec, mass_margin=mass_margin)
            for positions, sequence in zip(lists, sequences, strict=True)
        ]

    def _table(self, positions: Any, sequence: Encoded) -> TopList:
        try:
            return TopList.of(
                positions,
                sequence.completion_ids,
                length=self.backend.n_logprobs,
                vocab_size=self.vocab_size,
            )
        except TopListError as error:
            raise EngineUnavailableError(Cause.PROVIDER, f"{self.model}: {error}") from error


def _read_config(folder: str | Path | None) -> dict[str, Any]:
    """Read a model folder's config.json; return {} if no folder is given."""
    if folder is None:
        return {}
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise ValueError(f"config: expected a model folder with config.json, got {folder!s}")
    config: dict[str, Any] = json.loads(path.read_text())
    # Multimodal models keep the language model's numbers one level down.
    return {**config, **config.get("text_config", {})}
