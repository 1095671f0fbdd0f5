"""The ``summary`` of a plan of training runs: each figure with its interval and count."""

from statistics import fmean
from typing import Any, TypeAlias

from grpo_guard.evals.report.scenarios import scenarios
from grpo_guard.evals.report.series import POSITIVE, WINDOW, Series
from grpo_guard.evals.results import Counts, Results
from grpo_guard.evals.roles import attack_free
from grpo_guard.evals.stats import OverSeeds, Rate

Figures: TypeAlias = dict[str, Rate | OverSeeds | None]


def summarise(results: Results) -> list[dict[str, Any]]:
    """Return one row per series and metric, shaped like `Summary`; skip metrics without a value.

    Means over two or more seeds have Student's t interval; shares of completions have Wilson's.
    ``n`` counts the unit named by ``over``.
    """
    rows: list[dict[str, Any]] = []
    seen: set[tuple[str, str, int]] = set()
    for scenario in scenarios(results):
        for series in scenario.series:
            key = series.attack, series.defence, id(series.runs[0])
            if key in seen:
                continue  # every attack shares the attack-free series
            seen.add(key)
            where = {"attack": series.attack, "defence": series.defence}
            where |= {name: getattr(scenario.where, name) for name in ("setting", "models", "task")}
            free = scenario.beside(series)
            for metric, figure in (_of_swarm(series, free) | _of_guard(series)).items():
                if figure is not None:
                    rows.append(where | {"metric": metric} | figure.row())
    return rows


def _of_swarm(series: Series, free: Series | None) -> Figures:
    """Compute figures on rewards, accuracy and lengths, plus the attack if there is one."""
    ratios = series.length_ratios(free)
    tokens = [fmean(run.mean_tokens[-WINDOW:]) for run in series.runs if run.mean_tokens]
    figures: Figures = {
        "honest_reward_end": series.reward_end,
        "honest_reward_end_minus_attack_free": _over_seeds(series.reward_gaps(free)),
        "honest_reward_cost": series.reward_cost(free),
        "held_out_accuracy": series.held_out,
        "mean_tokens_end": _over_seeds(tokens),
        "length_ratio_end": series.length_ratio_end(free),
        "length_ratio_highest": _over_seeds([max(values) for values in ratios], POSITIVE),
    }
    if not attack_free(series.attack):
        highest = [max(run.asr) for run in series.runs if run.asr]
        figures |= {
            "asr_end": series.asr_in(),
            "asr_end_of_completions": series.asr_counted(),
            "asr_highest": _over_seeds(highest),
            "first_exclusion_round": _over_seeds(series.excluded_in),
        }
    return figures


def _of_guard(series: Series) -> Figures:
    """Compute figures on a guard's rejections and its share of the time."""
    if not series.guarded:
        return {}
    shares = [(run.guard_seconds or 0.0) / run.seconds for run in series.runs if run.seconds]
    figures: Figures = {f"rejected_{kind}": series.rejected(kind) for kind in Counts.model_fields}
    if not any(run.submitted and run.submitted.cover for run in series.runs):
        del figures["rejected_cover"]  # no cover, or the file predates its counting
    return figures | {
        "abstained": series.abstained,
        "guard_share_of_time": _over_seeds(shares),
    }


def _over_seeds(
    values: list[float] | list[int], within: tuple[float, float] | None = None
) -> OverSeeds | None:
    return OverSeeds.of(values, within) if values else None
