"""A complete detection run: sample, poison, add controls, verify and write the results."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

from grpo_guard.config.live import Live
from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Verdict
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.attacks.registry import on_texts
from grpo_guard.evals.detect import controls
from grpo_guard.evals.detect.config import DetectConfig, Loaded, load
from grpo_guard.evals.detect.honest import given_completions, honest_completions, sampled
from grpo_guard.evals.detect.matrix import OwnGuard, Row, detect, examples, rates
from grpo_guard.evals.detect.poison import Case, poisoned
from grpo_guard.evals.progress import Say
from grpo_guard.evals.results import CONTROL, HONEST, today, versions, write_text
from grpo_guard.evals.roles import PRESET

_LONGEST: Final = 100_000
SCORING: Final = "float32"
"""Type of the weights while verifying."""
OtherModel: TypeAlias = Callable[[Loaded], list[Completion]]


def control_completions(
    loaded: Loaded,
    honest: Sequence[Completion],
    config: DetectConfig,
    cache: Path | None,
    say: Say,
    other: OtherModel | None = None,
) -> dict[str, list[Completion]]:
    """Return the standard negative controls by name; see `grpo_guard.evals.detect.controls`.

    If the honest completions are given, only controls that need no sampling are returned. ``other``
    supplies text from another model; without it, generated solutions are used instead.
    """
    tokenizer, seed, count = loaded.tokenizer, config.seed, config.control_count
    some = honest[:count]
    made = {
        "random_tokens": controls.random_tokens(some, tokenizer, seed=seed),
        "swapped_token": controls.swapped_token(some, tokenizer, seed=seed),
        "shuffled_lines": controls.shuffled_lines(honest, tokenizer, seed=seed)[:count],
        "empty": controls.empty(some, tokenizer),
        "huge": controls.huge(some, tokenizer),
        "other_model": other(loaded)
        if other
        else controls.bundled_text(some, tokenizer, seed=seed),
    }
    if config.honest is not None:
        return made
    for name, top_k in (("temperature_2", config.spec.top_k), ("temperature_2_full_support", 0)):
        spec = replace(config.spec, temperature=controls.HOT_TEMPERATURE, top_k=top_k)
        made[name] = sampled(loaded, config, spec, count, cache, partial(say, f"sample {name}"))
    return made


def cases_of(
    loaded: Loaded | None, honest: Sequence[Completion], config: DetectConfig
) -> dict[str, list[Case]]:
    """Return the honest completions and, for each attack, its poisoned copies of them."""
    cases = {HONEST: [Case(completion) for completion in honest]}
    tokenizer = loaded.tokenizer if loaded else None
    for name in config.attacks:
        cases[name] = poisoned(honest, on_texts(name), tokenizer, seed=config.seed)
    return cases


def judges_of(
    config: DetectConfig, sampler: Loaded | None, folder: Path
) -> list[CompletionVerifier | OwnGuard]:
    """Return the judges to measure: the verifiers named in ``config``, then the user's guards."""
    scoring = sampler
    if sampler is not None and config.model and config.dtype != SCORING:
        scoring = load(config.model, SCORING)
    judges: list[CompletionVerifier | OwnGuard] = [*verifiers_of(config, scoring)]
    for number, guard in enumerate(config.guards):
        preset = guard.name.startswith(PRESET)  # a preset has no model
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
    """Return the verifiers named in ``config``, in the same order.

    Verifiers that read log-probs are created once per profile and share one set of weights; all
    other verifiers are created without options.
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


def run(
    config: DetectConfig,
    *,
    cache: Path | None,
    say: Say,
    verifiers: Sequence[CompletionVerifier] | None = None,
    other: OtherModel | None = None,
) -> list[Row]:
    """Sample, poison and verify; an interrupted run resumes from ``cache``.

    ``other`` is as for `control_completions`.
    """
    loaded = load(config.model, config.dtype) if config.model else None
    with TemporaryDirectory() as folder:
        # Judges are built before anything is sampled, so that missing requirements are noticed
        # immediately.
        judges = verifiers or judges_of(config, loaded, Path(folder))
        if config.honest is not None:
            honest = given_completions(config)
        elif loaded is not None:
            honest = honest_completions(loaded, config, cache, say)
        else:
            raise ValueError("model: expected one if no honest completions are given, got None")
        cases = cases_of(loaded, honest, config)
        if config.control_count and loaded is not None:
            controlled = control_completions(loaded, honest, config, cache, say, other)
            for name, made in controlled.items():
                cases[CONTROL + name] = [Case(completion) for completion in made]
        return detect(cases, judges, progress=lambda kind, a, b: say(f"verify {kind}", a, b))


def results_of(
    config: DetectConfig, rows: Sequence[Row], *, command: str, seconds: float
) -> dict[str, Any]:
    """Return the content of results.json, with rates, intervals and examples of each kind."""
    honest: dict[str, list[Row]] = {}
    for row in rows:
        if row.kind == HONEST:
            honest.setdefault(row.defence, []).append(row)
    # All verifiers saw the same completions, so these are counted only once.
    once = next(iter(honest.values()), [])
    tokens = [len(row.case.completion.completion_ids or ()) for row in once]
    return {
        "config": config.to_dict() | {"command": command},
        "versions": versions(),
        "date": today(),
        "runs": [],
        "summary": [rate.model_dump(exclude_unset=True) for rate in rates(rows, config.task)],
        "honest_tokens": {"total": sum(tokens), "least": min(tokens, default=0)},
        "honest_p_values": {
            defence: sorted(graded(row.verdict) for row in group)
            for defence, group in honest.items()
        },
        "p_values": p_values(rows),
        "examples": examples(rows),
        "seconds": round(seconds, 1),
    }


def p_values(rows: Sequence[Row]) -> dict[str, dict[str, list[float]]]:
    """Return sorted p-values by verifier and kind, without honest work."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row.kind != HONEST:
            found.setdefault(row.defence, {}).setdefault(row.kind, []).append(graded(row.verdict))
    return {v: {k: sorted(values) for k, values in kinds.items()} for v, kinds in found.items()}


def graded(verdict: Verdict) -> float:
    """Return the p-value at which a verdict enters a ROC curve, for honest work and poison alike.

    A rejection without a p-value, such as for malformed ids, holds at every threshold and gets 0;
    any other verdict without one gets 1, so that abstentions count as not rejected, as in the
    table.
    """
    p = verdict.p_value
    if p is None or math.isnan(p):
        return 0.0 if verdict.rejected else 1.0
    return float(f"{p:.3g}")


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write one JSON line per completion and verifier; huge texts are left out."""
    lines = [
        json.dumps(row.to_dict(with_text=len(row.case.completion.text) <= _LONGEST)) for row in rows
    ]
    write_text(path, "".join(f"{line}\n" for line in lines))
