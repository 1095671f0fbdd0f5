"""Score completions with vLLM's ``prompt_logprobs``, without the weights in this process."""

from __future__ import annotations

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
    """Per-token statistics under the policy that a vLLM engine serves.

    The engine must hold exactly the weights that the completions are declared to come from: load
    each round's before scoring. vLLM lists, per position, log-probs at T = 1 of the ``n_logprobs``
    likeliest tokens and of the actual one, whatever the temperature (vllm 0.32 and 0.33;
    `top_stats.py` explains the arithmetic). From that, with p at the declared temperature:

    ===================  =========================================================================
    field                value
    ===================  =========================================================================
    edge_gap             exact; under top-p at most the true one if tokens tied with the k-th
                         may continue below the list, so always with n_logprobs = top_k
    in_set, and the      exact for K = the listed tokens of the top-k with their ties; any K that
    differences of       the prefix alone decides keeps the e-process valid
    logprob,
    log_set_mass,
    log_flat_mass
    logprob,             exact at T = 1, else lower bounds, using the largest possible normaliser
    max_logprob,
    log_set_mass,
    mass_above,
    log_flat_mass        (b = 0 exact, else as above); mass_above of an unlisted token: a lower
                         bound at every T
    tail_mass            upper bound, at T = 1 of listed tokens up to 1e-5
    rank                 exact for listed tokens; else at most the number of tokens that are at
                         least as likely, which is vLLM's own rank: ties count as above
    ties                 those in the list
    entropy              log V, an upper bound
    logit                31: vLLM does not report the level of the logits
    replay_margin        None
    ===================  =========================================================================

    It can feed `LogProbBoundVerifier` within the limits of `check`, and tests on tail masses,
    conservatively (above T = 1 hardly at all, because the unlisted mass may have any weight); it
    cannot feed seed replay.

    Args:
        backend: Provides the lists.
        model: Name of the policy, for `identity`.
        vocab_size: Rows of the model's embedding.
        window: Longest sequence that the policy takes, in tokens, which the nodes may fill: a
            longer completion is its author's fault. None = unknown. The engine needs
            max_model_len >= window + 1, since it always generates a token; a sequence that is too
            long only for the engine raises ValueError.
        dtype: The dtype that the engine computes in, as declared; the engine is not asked.

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
    ) -> VLLMScorer:
        """Ask a vLLM server; needs the ``openai`` package.

        Args:
            base_url, model, options: As for `ServerBackend`.
            config: Local model folder whose config.json supplies ``vocab_size`` and ``window`` if
                they are not given. Nothing is downloaded.
            vocab_size: Rows of the model's embedding.
            window, dtype: As for the constructor.

        Raises:
            ValueError: an argument is out of range, or the vocabulary's size is unknown.
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
        """Return engine, model name and the declared dtype."""
        return {"engine": "vllm", "architecture": self.model, "dtype": self._dtype}

    def check(self, spec: SamplingSpec) -> None:
        """Refuse a sampler that a list of the likeliest tokens cannot decide.

        Raises:
            ValueError: top-k off or longer than the list, a repetition penalty (it needs the logits
                of all seen tokens), or sglang's top-p (it counts the whole distribution).
        """
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
            EngineUnavailableError: no usable answer in time; its ``cause`` gives the reason.
        """
        self.check(spec)
        rows = [(*s.prompt_ids, *s.completion_ids) for s in sequences]
        # Checked before sending: one sequence that is too long must not cost the others a pass.
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
    """Read vocab_size and max_position_embeddings from a model folder; {} without one."""
    if folder is None:
        return {}
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise ValueError(f"config: expected a model folder with config.json, got {folder!s}")
    config: dict[str, Any] = json.loads(path.read_text())
    # Multimodal models keep the language model's numbers one level down.
    return {**config, **config.get("text_config", {})}
