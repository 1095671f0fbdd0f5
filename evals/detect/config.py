"""The configuration of a detection run, and the policy that it samples from and scores with."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.evals.defences.own import GuardFile

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CONTROL_COUNT: Final = 32
MOST: Final = 10**9
"""Larger than any number of given completions: use all of them."""


class NotEnoughError(RuntimeError):
    """Too few completions are long enough, or none were given."""


@dataclass(frozen=True, slots=True)
class DetectConfig:
    """Everything that determines a detection run.

    Args:
        model: Local folder or model id. None with ``honest``: completions are judged by their text
            alone, and their ids are dropped, since poison could have none.
        task: One of `grpo_guard.evals.tasks.registry.TASKS`.
        data: A file in GSM8K's format; None = generated problems, GSM8K through ``datasets``.
        attacks: Names that `grpo_guard.evals.attacks.registry.on_texts` accepts.
        n: Honest completions wanted; with ``honest`` at most so many.
        min_tokens: Shortest completion that counts, EOS included.
        spec: The declared sampler. Its ``max_new_tokens`` limits only the sampling; the verifier
            does not get it, since poison would otherwise be rejected for its length alone.
        dtype: Weights' type while sampling; verification uses float32.
        profiles: Drift profiles of the log-prob check, one verifier each: ``"bfloat16"`` is its
            default, for machines that differ; ``"float32"`` is tighter and fits if both sides
            compute in float32.
        alpha: The verifier's budget of false positives per completion.
        seed: Determines questions, samples, poison and controls.
        batch_size: Completions sampled at once.
        control_count: Completions per negative control; 0 = no controls.
        guards: The user's own, on ``model`` and ``spec``; with ``honest`` as their files say.
        honest: Completions in the format of ``grpo-guard verify``, in place of sampling.
        mapped: ``FIELD=NAME`` for columns of ``honest`` with other names.
    """

    model: str | None
    spec: SamplingSpec
    task: str = "gsm8k"
    data: Path | None = None
    attacks: tuple[str, ...] = ("text", "math", "code")
    n: int = 200
    min_tokens: int = 96
    dtype: str = "float32"
    profiles: tuple[str, ...] = ("bfloat16",)
    verifiers: tuple[str, ...] = ("logprob_bound",)
    alpha: float = 1e-3
    seed: int = 0
    batch_size: int = 16
    control_count: int = CONTROL_COUNT
    guards: tuple[GuardFile, ...] = ()
    honest: Path | None = None
    mapped: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as JSON, with names of files and digests of guards."""
        return asdict(replace(self, guards=())) | {
            "data": self.data.name if self.data else None,
            "honest": self.honest.name if self.honest else None,
            "guards": {guard.name: guard.digest for guard in self.guards},
        }


@dataclass(frozen=True, slots=True)
class Loaded:
    """A policy in one number format."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load(model: str, dtype: str) -> Loaded:
    """Load a policy from safetensors; ``ValueError`` says what is missing."""
    from grpo_guard.logprob.scorers.load import load_policy

    return Loaded(*load_policy(model, dtype=dtype))
