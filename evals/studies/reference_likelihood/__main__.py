"""What the reference-likelihood verifier detects and what it costs honest work.

``python -m grpo_guard.evals.studies.reference_likelihood --model MODEL --data FOLDER -o FILE``:
false positives, detection at the same level, spans, and what the group changes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Verdict
from grpo_guard.evals.stats import auroc
from grpo_guard.evals.studies.harness import option, rate, rejected, study
from grpo_guard.evals.studies.reference_likelihood.contenders import contenders
from grpo_guard.evals.studies.reference_likelihood.sets import HUMAN, Item, all_items
from grpo_guard.evals.studies.shared_scores import SharedScores
from grpo_guard.logprob.reference.calibrate import calibrated
from grpo_guard.logprob.reference.null import conformal
from grpo_guard.logprob.reference.profile import ReferenceProfile
from grpo_guard.logprob.reference.reading import Reader
from grpo_guard.logprob.reference.verifier import ReferenceLikelihoodVerifier
from grpo_guard.logprob.scorers.load import load_policy
from grpo_guard.logprob.scorers.transformers import TransformersScorer
from grpo_guard.logprob.stats import TokenStats

NAME: Final = "smollm2-gsm8k"
METHOD: Final = (
    "GSM8K test questions answered by a fine-tuned 175B model of the GPT-3 family, calculator "
    "notes taken out, one answer per question, asked as a chat"
)
# Two calibration completions above are allowed at 0.01, twelve at 0.05.
LEVELS: Final = (0.01, 0.05)
DEFAULT_ALPHA: Final = 1e-3


def profile_of(reader: Reader, found: Sequence[Item]) -> ReferenceProfile:
    """The profile of the calibration part."""
    honest = [item.completion for item in found if item.part == "calibration"]
    return calibrated(reader, honest, name=NAME, method=METHOD)


def figures(reader: Reader, found: Sequence[Item]) -> tuple[ReferenceProfile, dict[str, Any]]:
    """The profile of the calibration part and all figures of the others."""
    profile = profile_of(reader, found)
    stats = dict(zip(map(id, found), _stats(reader, found), strict=True))
    by_kind = defaultdict[tuple[str, str], list[Item]](list)
    for item in found:
        by_kind[item.part, item.kind].append(item)
    return profile, {
        "calibration": {"completions": len(profile.scores), "least_p": profile.least_p},
        "honest": _honest(reader, profile, found),
        "attacks": _attacks(reader, profile, by_kind),
        "statistics": _statistics(stats, by_kind),
        "groups": _grouped(reader, profile, found),
        "prompt_effect": _prompt_effect(reader, profile, found),
    }


def _stats(reader: Reader, found: Sequence[Item]) -> list[TokenStats]:
    read = reader.stats([reader.encode(item.completion) for item in found])
    return [stats for stats in read if isinstance(stats, TokenStats)]


def _verdicts(
    reader: Reader, profile: ReferenceProfile, batch: Sequence[Completion], alpha: float, **how: Any
) -> list[Verdict]:
    verifier = ReferenceLikelihoodVerifier(
        tokenizer=reader.tokenizer, scorer=reader.scorer, alpha=alpha, profile=profile, **how
    )
    return verifier.verify(batch)


def _alone(items: Iterable[Item]) -> list[Completion]:
    """Give each a prompt of its own, so that no group can excuse it."""
    return [replace(item.completion, node="same") for item in items]


def _honest(
    reader: Reader, profile: ReferenceProfile, found: Sequence[Item]
) -> dict[str, dict[str, Any]]:
    """Rejected and abstained, each part by who wrote it, without groups."""
    sets = defaultdict[str, list[Item]](list)
    for item in found:
        if item.kind == "honest" and item.part != "calibration":
            sets[f"{item.part}, {item.node}"].append(item)
            sets[f"{item.part}, all"].append(item)
    return {name: _outcomes(reader, profile, _alone(items)) for name, items in sets.items()}


def _outcomes(
    reader: Reader, profile: ReferenceProfile, batch: Sequence[Completion]
) -> dict[str, Any]:
    result = dict[str, Any]()
    for level in LEVELS:
        verdicts = _verdicts(reader, profile, batch, level)
        result[f"rejected at {level:g}"] = rejected(verdicts)
    fitted = _verdicts(reader, profile, batch, DEFAULT_ALPHA, tail="exponential")
    result["rejected at 0.001, exponential tail"] = rejected(fitted)
    return result


def _attacks(
    reader: Reader, profile: ReferenceProfile, by_kind: Mapping[tuple[str, str], Sequence[Item]]
) -> dict[str, dict[str, Any]]:
    """Per attack the outcomes, and where the spans of alarms at the first level lie."""
    result = dict[str, dict[str, Any]]()
    for (part, kind), items in by_kind.items():
        if kind == "honest":
            continue
        batch = _alone(items)
        alarms = [
            (item, verdict)
            for item, verdict in zip(
                items, _verdicts(reader, profile, batch, LEVELS[0]), strict=True
            )
            if verdict.rejected
        ]
        shares = [_length(v.findings[0].char_span) / len(i.completion.text) for i, v in alarms]
        result[f"{part}: {kind}"] = {
            **_outcomes(reader, profile, batch),
            "span overlaps poison": rate(sum(_overlaps(i, v) for i, v in alarms), len(alarms)),
            "span's share of the text, median": float(np.median(shares)) if shares else None,
        }
    return result


def _length(span: tuple[int, int] | None) -> int:
    return 0 if span is None else span[1] - span[0]


def _overlaps(item: Item, verdict: Verdict) -> bool:
    span = verdict.findings[0].char_span
    return span is not None and any(a < span[1] and span[0] < b for a, b in item.spans)


def _statistics(
    stats: Mapping[int, TokenStats], by_kind: Mapping[tuple[str, str], Sequence[Item]]
) -> dict[str, dict[str, Any]]:
    """Every statistic at the same level: calibrated on the calibration part, nothing excused."""
    calibration = [stats[id(item)] for item in by_kind["calibration", "honest"]]
    honest = [stats[id(item)] for item in by_kind["test", "honest"]]
    # The attacks are planted in these, so that only the phrase differs.
    hosts = [stats[id(item)] for item in by_kind["test", "honest"] if item.node == HUMAN]
    result = dict[str, dict[str, Any]]()
    for name, statistic in contenders(calibration).items():
        null = sorted(map(statistic, calibration))
        usual, unplanted = list(map(statistic, honest)), list(map(statistic, hosts))
        rejected = sum(conformal(value, null) <= LEVELS[0] for value in usual)
        result[name] = {"false positives": rate(rejected, len(usual)), "attacks": {}}
        for (part, kind), items in by_kind.items():
            if part == "test" and kind != "honest":
                values = [statistic(stats[id(item)]) for item in items]
                hits = sum(conformal(value, null) <= LEVELS[0] for value in values)
                result[name]["attacks"][kind] = {
                    "auroc against the data set's own": auroc(unplanted, values),
                    "detected": rate(hits, len(values)),
                }
    return result


def _grouped(
    reader: Reader, profile: ReferenceProfile, found: Sequence[Item]
) -> dict[str, dict[str, Any]]:
    """With groups: three nodes answer each question; a poisoned one has two honest peers."""
    honest = defaultdict[tuple[str, int], list[Item]](list)
    for item in found:
        if item.kind == "honest" and item.part in ("test", "shift"):
            honest[item.part, item.question].append(item)
    result = dict[str, dict[str, Any]]()
    for part in ("test", "shift"):
        batch = [i.completion for (p, _), items in honest.items() if p == part for i in items]
        verdicts = _verdicts(reader, profile, batch, LEVELS[0])
        result[f"{part}: honest"] = rejected(verdicts)
    counts = defaultdict[str, list[bool]](list)
    for item in found:
        if item.part == "test" and item.kind != "honest":
            peers = [i.completion for i in honest["test", item.question] if i.node != "human"]
            verdict = _verdicts(reader, profile, [item.completion, *peers], LEVELS[0])[0]
            counts[item.kind].append(verdict.rejected)
    result |= {f"test: {kind}": rate(sum(hits), len(hits)) for kind, hits in counts.items()}
    return result


def _prompt_effect(
    reader: Reader, profile: ReferenceProfile, found: Sequence[Item]
) -> dict[str, float | int]:
    """Correlation between the two models' scores on one question: what a group could explain."""
    by_question = defaultdict[int, list[float]](list)
    for item in found:
        if item.part == "test" and item.kind == "honest" and item.node != "human":
            (stats,) = _stats(reader, [item])
            encoded = reader.encode(item.completion)
            reading = reader.read(item.completion, encoded, stats, profile.token_scores(stats))
            by_question[item.question].append(reading.score(profile.rate))
    pairs = np.array([scores for scores in by_question.values() if len(scores) == 2])
    return {"questions": len(pairs), "correlation": float(np.corrcoef(pairs.T)[0, 1])}


def measure(model: str, data: Path, profile: Path | None) -> dict[str, Any]:
    """Compute all figures; also write the profile if requested."""
    found = all_items(data)
    weights, tokenizer = load_policy(model)
    reader = Reader(tokenizer, SharedScores(TransformersScorer(weights)))
    made, rates = figures(reader, found)
    if profile:
        made.write(profile)
    return {
        "reference": {"name": Path(model).name, **made.identity},
        "completions": dict(Counter(f"{item.part}: {item.kind}" for item in found)),
        "tokens": sum(len(reader.encode(item.completion).completion_ids) for item in found),
        **rates,
    }


if __name__ == "__main__":
    study(
        "reference-likelihood",
        measure,
        option("--model", required=True, metavar="MODEL", help="the reference: a folder or an id"),
        option("--data", type=Path, required=True, metavar="FOLDER"),
        option("--profile", type=Path, metavar="FILE", help="also write the profile there"),
    )
