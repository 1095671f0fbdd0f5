"""The configuration of a detection run, and the policy used for sampling and scoring."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.evals.defences.own import GuardFile

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CONTROL_COUNT: Final = 32
MOST: Final = 10**9
"""A value of ``n`` above any number of given completions, so that all of them are used."""


class NotEnoughError(RuntimeError):
    """Raised if too few completions are long enough, or none were given."""


@dataclass(frozen=True, slots=True)
class DetectConfig:
    """Everything that determines a detection run.

    Args:
        model: Local folder or model id. Can be None with ``honest``: completions are then judged
            only by their text, and their ids are dropped, because poison could not have any.
        task: One of `grpo_guard.evals.tasks.registry.TASKS`.
        data: A file in GSM8K's format. None for generated problems, and for GSM8K through
            ``datasets``.
        attacks: Names that `grpo_guard.evals.attacks.registry.on_texts` accepts.
        n: Number of honest completions; with ``honest``, the maximum number.
        min_tokens: Minimum number of tokens, EOS included, for a completion to count.
        spec: The declared sampler. Its ``max_new_tokens`` limits only the sampling; the verifier
            does not get it, because poison would otherwise be rejected for its length alone.
        dtype: Type of the weights while sampling; verification uses float32.
        profiles: Drift profiles of the log-prob check, one verifier each: ``"bfloat16"`` is the
            default, for machines that differ; ``"float32"`` is tighter, and fits if both sides
            compute in float32.
        alpha: The verifier's budget of false positives per completion.
        seed: Seed that determines questions, samples, poison and controls.
        control_count: Number of completions per negative control; 0 for no controls.
        guards: The user's own guards, which use ``model`` and ``spec``; with ``honest``, they use
            the model and sampler that their files name.
        honest: File of honest completions, in the format of ``grpo-guard verify``, to be used
            instead of sampling.
        mapped: ``FIELD=NAME`` for each column of ``honest`` that has a different name.
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
        """Return the configuration as JSON, with the names of files and the digests of guards."""
        return asdict(replace(self, guards=())) | {
            "data": self.data.name if self.data else None,
            "honest": self.honest.name if self.honest else None,
            "guards": {guard.name: guard.digest for guard in self.guards},
        }


@dataclass(frozen=True, slots=True)
class Loaded:
    """A policy's model, loaded in a given number format, and its tokenizer."""

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"


def load(model: str, dtype: str) -> Loaded:
    """Load a policy from safetensors. Raises ValueError naming whatever is missing."""
    from grpo_guard.logprob.scorers.load import load_policy

    return Loaded(*load_policy(model, dtype=dtype))
