"""What a detection run measures: verifiers by name, and the user's guards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from grpo_guard.config.live import Live
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.detect.config import DetectConfig, Loaded, load
from grpo_guard.evals.detect.matrix import OwnGuard
from grpo_guard.evals.roles import PRESET

SCORING: Final = "float32"
"""The weights' type while verifying."""


def judges_of(
    config: DetectConfig, sampler: Loaded | None, folder: Path
) -> list[CompletionVerifier | OwnGuard]:
    """Return what is measured: the verifiers that ``config`` names, then the user's guards."""
    scoring = sampler
    if sampler is not None and config.model and config.dtype != SCORING:
        scoring = load(config.model, SCORING)
    judges: list[CompletionVerifier | OwnGuard] = [*verifiers_of(config, scoring)]
    for number, guard in enumerate(config.guards):
        preset = guard.name.startswith(PRESET)  # presets name no model of their own
        live = None
        if config.honest is None or (preset and guard.per_model):
            live = _live(config, scoring, guard.name)
        own = folder / str(number)
        own.mkdir()
        judges.append(OwnGuard(guard.name, guard.guard(live, own)))
    return judges


def _live(config: DetectConfig, scoring: Loaded | None, name: str) -> Live:
    if scoring is None:
        raise ValueError(f"{name}: expected --model with --honest, got none")
    return Live(scoring.model, scoring.tokenizer, replace(config.spec, max_new_tokens=None))


def verifiers_of(config: DetectConfig, scoring: Loaded | None) -> list[CompletionVerifier]:
    """Return the verifiers that ``config`` names, in its order.

    Those that read log-probs are created once per profile and share one set of weights;
    the others have no options.
    """
    from grpo_guard.core.registry import VERIFIERS
    from grpo_guard.core.registry import load as load_class
    from grpo_guard.logprob.scorers.transformers import TransformersScorer
    from grpo_guard.logprob.verifier import LogProbVerifier

    shared = TransformersScorer(scoring.model) if scoring else None
    chosen: list[CompletionVerifier] = []
    for cls in (load_class(VERIFIERS, name) for name in config.verifiers):
        if not issubclass(cls, LogProbVerifier):
            chosen.append(cls())
            continue
        if scoring is None:
            raise ValueError(f"{cls.name}: expected --model with --honest, got none")
        chosen += [
            cls(
                None,
                scoring.tokenizer,
                scorer=shared,
                sampling=replace(config.spec, max_new_tokens=None),
                alpha=config.alpha,
                profile=profile,
                name=cls.name if profile == "bfloat16" else f"{cls.name} ({profile})",
            )
            for profile in config.profiles
        ]
    return chosen
