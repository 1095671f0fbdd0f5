"""One detection run from start to end: sample, poison, add the controls, verify, write."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from grpo_guard.completion import Completion
from grpo_guard.evals.attacks.code import CodeAttack
from grpo_guard.evals.attacks.math import MathAttack
from grpo_guard.evals.attacks.text import TextAttack
from grpo_guard.evals.detect import controls
from grpo_guard.evals.detect.matrix import CONTROL, HONEST, Rate, Row, detect, examples, rates
from grpo_guard.evals.detect.poison import Case, Poisoner, poisoned
from grpo_guard.evals.results import versions, write_json, write_text
from grpo_guard.evals.sample import BATCHES_PER_BLOCK, Prompt, SampleConfig, sample_honest
from grpo_guard.evals.tasks import gsm8k, word_problems
from grpo_guard.sampling import SamplingSpec
from grpo_guard.verifier import CompletionVerifier

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from grpo_guard.logprob.verifier import LogProbVerifier

ATTACKS: Final[dict[str, Callable[[], Poisoner]]] = {
    "text": TextAttack,
    "math": MathAttack,
    "code": CodeAttack,
}
# Some completions end early; ask this many times more questions than are wanted.
SPARE: Final = 4
CONTROL_COUNT: Final = 32

Say = Callable[[str, int, int], None]
"""Progress: called with (what is being done, done, total)."""


class NotEnoughError(RuntimeError):
    """The model wrote too few completions that are long enough."""


@dataclass(frozen=True, slots=True)
class DetectConfig:
    """Everything that decides a detection run.

    Args:
        model: Local folder or model id.
        task: ``"gsm8k"`` or ``"word_problems"``.
        data: GSM8K's JSONL; None = through ``datasets``.
        attacks: Names out of `ATTACKS`.
        n: Honest completions wanted.
        min_tokens: Shortest completion that counts, EOS included.
        spec: The declared sampler. Its ``max_new_tokens`` binds the sampling only: the verifier is
            not told, since poison would otherwise be rejected for being longer, not for what it is.
        dtype: Weights' type while sampling.
        score_dtype: Weights' type while verifying.
        profiles: Drift profiles of the log-prob check, one verifier each: ``"bfloat16"`` is its
            default and what unlike machines need; ``"float32"`` is tighter and fits where both
            sides compute in float32.
        alpha: The verifier's budget of false positives per completion.
        seed: Decides questions, samples, poison and controls.
        batch_size: Completions sampled at once.
        control_count: Completions per negative control; 0 = no controls.
    """

    model: str
    spec: SamplingSpec
    task: str = "gsm8k"
    data: Path | None = None
    attacks: tuple[str, ...] = ("text", "math", "code")
    n: int = 200
    min_tokens: int = 96
    dtype: str = "float32"
    score_dtype: str = "float32"
    profiles: tuple[str, ...] = ("bfloat16",)
    verifiers: tuple[str, ...] = ("logprob_bound",)
    alpha: float = 1e-3
    seed: int = 0
    batch_size: int = 16
    control_count: int = CONTROL_COUNT

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as JSON; of the data only the file's name."""
        return asdict(self) | {"data": self.data.name if self.data else None}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A policy in one number format."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load(model: str, dtype: str) -> Loaded:
    """Load a policy from safetensors; ``ValueError`` says what is missing."""
    from grpo_guard.logprob.scorers.load import load_policy

    return Loaded(*load_policy(model, dtype=dtype))


def prompts_of(config: DetectConfig) -> list[Prompt]:
    """Return the task's prompts in the order in which they are used up.

    Raises:
        InputError: see `grpo_guard.evals.tasks.gsm8k.load`.
    """
    # Whole blocks, so that asking for more later does not change the batches of before.
    block = config.batch_size * BATCHES_PER_BLOCK
    count = -(-config.n * SPARE // block) * block
    if config.task == "word_problems":
        problems = word_problems.generate(config.seed, count)
        return [Prompt(i, p.prompt, p.answer) for i, p in enumerate(problems)]
    questions = gsm8k.subset(gsm8k.load(config.data), count, config.seed)
    return [Prompt(q.index, gsm8k.messages(q.question), q.answer) for q in questions]


def honest_completions(
    loaded: Loaded, config: DetectConfig, cache: Path | None, say: Say
) -> list[Completion]:
    """Sample ``config.n`` honest completions, or read them from ``cache``.

    Raises:
        NotEnoughError: too few of them have ``config.min_tokens`` tokens.
    """
    kept = _sampled(loaded, config, config.spec, config.n, cache, partial(say, "sample honest"))
    if len(kept) < config.n:
        raise NotEnoughError(
            f"expected {config.n} completions of {config.min_tokens}+ tokens, got {len(kept)}; "
            "lower --min-tokens or give more questions"
        )
    return kept


def _sampled(
    loaded: Loaded,
    config: DetectConfig,
    spec: SamplingSpec,
    count: int,
    cache: Path | None,
    tell: Callable[[int, int], None],
) -> list[Completion]:
    sampling = SampleConfig(
        config.model, spec, config.seed, config.batch_size, config.dtype, config.min_tokens
    )
    return sample_honest(
        loaded.model,
        loaded.tokenizer,
        prompts_of(config),
        sampling,
        wanted=count,
        cache=cache,
        progress=tell,
    )


def control_completions(
    loaded: Loaded,
    honest: Sequence[Completion],
    config: DetectConfig,
    cache: Path | None,
    say: Say,
) -> dict[str, list[Completion]]:
    """Return the standard negative controls by name; see `grpo_guard.evals.detect.controls`."""
    tokenizer, seed, count = loaded.tokenizer, config.seed, config.control_count
    some = honest[:count]
    made = {
        "random_tokens": controls.random_tokens(some, tokenizer, seed=seed),
        "swapped_token": controls.swapped_token(some, tokenizer, seed=seed),
        "shuffled_lines": controls.shuffled_lines(honest, tokenizer, seed=seed)[:count],
        "empty": controls.empty(some, tokenizer),
        "huge": controls.huge(some, tokenizer),
    }
    other = config.data.parent / controls.MODEL_SOLUTIONS if config.data else None
    if config.task == "gsm8k" and other and other.is_file():
        made["other_model"] = controls.other_model(
            other,
            tokenizer,
            ask=gsm8k.messages,
            count=count,
            seed=seed,
            min_tokens=config.min_tokens,
        )
    else:
        made["other_model"] = controls.bundled_text(some, tokenizer, seed=seed)
    for name, top_k in (("temperature_2", config.spec.top_k), ("temperature_2_full_support", 0)):
        spec = replace(config.spec, temperature=controls.HOT_TEMPERATURE, top_k=top_k)
        made[name] = _sampled(loaded, config, spec, count, cache, partial(say, f"sample {name}"))
    return made


def cases_of(
    loaded: Loaded, honest: Sequence[Completion], config: DetectConfig
) -> dict[str, list[Case]]:
    """Return honest completions and one poisoned copy of each per attack."""
    cases = {HONEST: [Case(completion) for completion in honest]}
    for name in config.attacks:
        cases[name] = poisoned(honest, ATTACKS[name](), loaded.tokenizer, seed=config.seed)
    return cases


def verifiers_of(config: DetectConfig, sampler: Loaded) -> list[CompletionVerifier]:
    """Return the verifiers that ``config`` names, in its order.

    Those that read log-probs are made once per profile, the others without options.
    """
    from grpo_guard.logprob.verifier import LogProbVerifier
    from grpo_guard.registry import VERIFIERS
    from grpo_guard.registry import load as load_class

    classes = {name: load_class(VERIFIERS, name) for name in config.verifiers}
    reading = [c for c in classes.values() if issubclass(c, LogProbVerifier)]
    made = logprob_verifiers(config, sampler, reading) if reading else {}
    chosen: list[CompletionVerifier] = []
    for cls in classes.values():
        chosen += made[cls] if cls in made else [cls()]
    return chosen


def logprob_verifiers(
    config: DetectConfig, sampler: Loaded, classes: Sequence[type[LogProbVerifier]]
) -> dict[type[LogProbVerifier], list[LogProbVerifier]]:
    """Return verifiers of each class under each of ``config.profiles``, the default one first.

    They share one set of weights and one pass, and the sampler's weights where the number formats
    agree.
    """
    from grpo_guard.evals.detect.shared_scores import SharedScores
    from grpo_guard.logprob.scorers.transformers import TransformersScorer

    same = config.dtype == config.score_dtype
    loaded = sampler if same else load(config.model, config.score_dtype)
    shared = SharedScores(TransformersScorer(loaded.model))
    return {
        cls: [
            cls(
                None,
                loaded.tokenizer,
                scorer=shared,
                sampling=replace(config.spec, max_new_tokens=None),
                alpha=config.alpha,
                profile=profile,
                name=cls.name if profile == "bfloat16" else f"{cls.name} ({profile})",
            )
            for profile in config.profiles
        ]
        for cls in classes
    }


def run(
    config: DetectConfig,
    *,
    cache: Path | None,
    say: Say,
    verifiers: Sequence[CompletionVerifier] | None = None,
) -> list[Row]:
    """Sample, poison and verify; an interrupted run continues from ``cache``."""
    loaded = load(config.model, config.dtype)
    honest = honest_completions(loaded, config, cache, say)
    cases = cases_of(loaded, honest, config)
    if config.control_count:
        for name, made in control_completions(loaded, honest, config, cache, say).items():
            cases[CONTROL + name] = [Case(completion) for completion in made]
    chosen = verifiers or verifiers_of(config, loaded)
    return detect(cases, chosen, progress=lambda kind, a, b: say(f"verify {kind}", a, b))


def results_of(
    config: DetectConfig, rows: Sequence[Row], *, command: str, seconds: float
) -> dict[str, Any]:
    """Return results.json: configuration, versions, rates with intervals, one example a kind."""
    honest: dict[str, list[Row]] = {}
    for row in rows:
        if row.kind == HONEST:
            honest.setdefault(row.defence, []).append(row)
    # Each verifier saw the same completions; they are counted once.
    once = next(iter(honest.values()), [])
    tokens = [len(row.case.completion.completion_ids or ()) for row in once]
    return {
        "config": config.to_dict() | {"command": command},
        "versions": versions(),
        "runs": [],
        "summary": [rate.summary() for rate in rates(rows)],
        "honest_tokens": {"total": sum(tokens), "least": min(tokens, default=0)},
        "honest_p_values": {
            defence: sorted(_rounded(row.verdict.p_value) for row in group)
            for defence, group in honest.items()
        },
        "p_values": p_values(rows),
        "examples": examples(rows),
        "seconds": round(seconds, 1),
    }


def p_values(rows: Sequence[Row]) -> dict[str, dict[str, list[float]]]:
    """Sorted p-values by verifier and kind, for all but honest work; abstentions are left out.

    A rejection without a p-value, such as one for malformed ids, holds at every threshold: 0.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        verdict = row.verdict
        if row.kind != HONEST and not verdict.abstained:
            bare = verdict.rejected and verdict.p_value is None
            value = 0.0 if bare else _rounded(verdict.p_value)
            found.setdefault(row.defence, {}).setdefault(row.kind, []).append(value)
    return {v: {k: sorted(values) for k, values in kinds.items()} for v, kinds in found.items()}


def write(out: Path, results: dict[str, Any], rows: Sequence[Row]) -> None:
    """Write ``results.json`` and ``rows.jsonl`` (every completion with its verdict) to ``out``."""
    write_json(out / "results.json", results)
    write_rows(out / "rows.jsonl", rows)


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write one JSON line per completion and verifier."""
    lines = [json.dumps(row.to_dict(with_text=not _long(row))) for row in rows]
    write_text(path, "".join(f"{line}\n" for line in lines))


def table(found: Sequence[Rate]) -> list[tuple[str, str, str, str, str, str]]:
    """Return (kind, verifier, rejected/total, rate, interval, abstained) for printing."""
    return [
        (
            rate.kind,
            rate.defence,
            f"{rate.rejected}/{rate.total}",
            _percent(s["mean"]),
            f"{_percent(s['low'])} - {_percent(s['high'])}",
            str(rate.abstained),
        )
        for rate in found
        for s in (rate.summary(),)
    ]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _rounded(value: float | None) -> float:
    return 1.0 if value is None or math.isnan(value) else float(f"{value:.3g}")


def _long(row: Row) -> bool:
    return len(row.case.completion.text) > 100_000
