"""The command ``grpo-guard calibrate``; with ``--rules``, p-values for verifiers that have none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from grpo_guard.cli.inputs import Mapped, bad_input, reads_log_probs, require_folder_of, writing
from grpo_guard.cli.terminal import echo, exit_with, terminal

if TYPE_CHECKING:
    from rich.table import Table

    from grpo_guard.config import GuardConfig
    from grpo_guard.core.calibrated import HonestScores
    from grpo_guard.core.completion import Completion
    from grpo_guard.core.verifier import CompletionVerifier
    from grpo_guard.logprob.profile_file import ProfileFile
    from grpo_guard.logprob.verifier import LogProbVerifier

# Verifiers that compare the completions of a group need the whole group in one call.
MOST_AT_ONCE = 1000


def calibrate(
    source: Annotated[
        Path, typer.Argument(metavar="HONEST.jsonl", help="Honest completions with token ids.")
    ],
    config: Annotated[Path, typer.Option("--config", "-c", help="The guard, as YAML.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The profile, as JSON.")],
    base: Annotated[
        Literal["bfloat16", "float32"],
        typer.Option(help="Built-in profile for rates that the data do not show."),
    ] = "bfloat16",
    rules: Annotated[
        bool,
        typer.Option(help="Calibrate all other verifiers instead of those that read log-probs."),
    ] = False,
    mapped: Mapped = None,
) -> None:
    """Measure a drift profile on honest completions or, with --rules, how often rules reject them.

    Exit 2 on bad input.
    """
    with bad_input():
        require_folder_of(out)
    if rules:
        _calibrate_rules(source, config, out, mapped or ())
        return

    from grpo_guard.cli.rows import completions_of
    from grpo_guard.config import GuardConfig
    from grpo_guard.core.files import require_other, write_whole

    with bad_input():  # before torch is loaded
        require_other(out, source, config)
        guard = GuardConfig.from_yaml(config)
        log_prob_leaves(guard, str(config))
        completions = completions_of(source, mapped or ())
        _require_ids(completions, source)
    from grpo_guard.logprob.calibrate import CalibrationError
    from grpo_guard.logprob.calibrate import calibrate as measure
    from grpo_guard.logprob.profile import PROFILES
    from grpo_guard.logprob.scorers.base import OutOfMemoryError

    try:
        with bad_input():
            verifiers = logprob_verifiers(guard, str(config))
            result = measure(verifiers, completions, base=PROFILES[base], progress=_progress)
    except CalibrationError as error:
        place = (
            source if error.index is None else f"{source}:{_line_of(source, error.index, mapped)}"
        )
        exit_with(f"{place}: {error}")
    except OutOfMemoryError as error:
        exit_with(f"{source}: {error}; a larger memory_budget may help", 1)
    with writing(out):
        write_whole(out, result.model_dump_json(indent=2) + "\n")
    terminal().print(table(result))
    for warning in warnings(result):
        echo(f"warning: {warning}", err=True)
    echo(f"wrote {out}")


def _require_ids(completions: Sequence[Completion], source: Path) -> None:
    """Raise InputError before a model is loaded if no completion has token ids to measure."""
    from grpo_guard.core.jsonl import InputError

    if completions and all(one.completion_ids is None for one in completions):
        raise InputError(
            f"{source}: completion_ids: expected token ids, as the policy sampled them, got none"
        )


def log_prob_leaves(config: GuardConfig, where: str) -> list[dict[str, Any]]:
    """Return the options of each log-prob verifier in a guard; raises ConfigError if there is
    none."""
    from grpo_guard.config import ConfigError

    chosen = [leaf for leaf in config.leaves() if reads_log_probs(leaf)]
    if not chosen:
        raise ConfigError(
            f"{where}: verifier: expected one that reads log-probs, such as logprob_bound; "
            "got none, so there is nothing to calibrate; --rules calibrates the others"
        )
    return chosen


def logprob_verifiers(config: GuardConfig, where: str) -> list[LogProbVerifier]:
    """Build a guard's log-prob verifiers, with a single copy of the weights. Their ``profile`` is
    left out, because it could be the very file about to be written. Raises ConfigError if there is
    none, one is malformed, or they differ in sampler or scorer."""
    from grpo_guard.config import ConfigError, build_verifier, unwrapped
    from grpo_guard.logprob.calibrate import require_same
    from grpo_guard.logprob.verifier import LogProbVerifier

    chosen: list[LogProbVerifier] = []
    for leaf in log_prob_leaves(config, where):
        options = {n: value for n, value in unwrapped(leaf).items() if n != "profile"}
        verifier = build_verifier(options, config.alpha)
        assert isinstance(verifier, LogProbVerifier)
        if chosen:
            try:
                require_same(chosen[0], verifier)
            except ValueError as error:
                raise ConfigError(f"{where}: {error}") from None
            verifier.scorer = chosen[0].scorer  # its own copy of the weights is dropped
        chosen.append(verifier)
    return chosen


def table(result: ProfileFile) -> Table:
    """Tabulate the figures of a measured profile that people want to see first."""
    from rich.table import Table

    shown = Table(title=f"{result.name}: {result.tokens:,} tokens")
    for heading in ("what", "value", "from"):
        shown.add_column(heading, no_wrap=heading == "value")
    for rate in result.profile.rates:
        shown.add_row(
            f">= {rate.gap:g} logits outside",
            f"<= {rate.rate:.1e} ({rate.seen:,} seen)",
            rate.source,
        )
    for rate in result.profile.replay:
        what = f"replay margin >= {rate.gap:g} logits" if rate.gap else "informative, no match"
        shown.add_row(what, f"<= {rate.rate:.1e} ({rate.seen:,} seen)", rate.source)
    for name in ("ulps", "mass_margin", "least_tail", "floor_tail", "tau"):
        setting = getattr(result.profile, name)
        value = "infinite" if setting.value is None else f"{setting.value:.3g}"
        shown.add_row(name, value, setting.source)
    if result.drift is not None:
        d = result.drift
        shown.add_row(
            "|sampler - ours|, nats",
            f"p50 {d.p50:.1g}, p95 {d.p95:.1g}, max {d.max:.2g}",
            f"{d.tokens:,} tokens",
        )
    for fpr in result.false_positives:
        share = fpr.rejected / fpr.completions
        shown.add_row(
            f"{fpr.verifier}: false positives, alpha {fpr.alpha:g}",
            f"{fpr.rejected} / {fpr.completions:,} = {share:.2%} ({fpr.low:.2%}-{fpr.high:.2%})",
            "cross-fit",
        )
    return shown


def warnings(result: ProfileFile) -> Iterator[str]:
    """Yield warnings about signs that the data or the declared sampler are wrong."""
    too_many = [count for count in result.tail_counts if count.exceeds]
    if too_many:
        worst = max(too_many, key=lambda count: count.seen)
        yield (
            f"{worst.seen:,} of {result.tokens:,} tokens have a tail mass of {worst.at_most:g} or "
            "less, more than honest sampling allows: look at the declared temperature, penalties "
            "and weights"
        )
    for fpr in result.false_positives:
        if fpr.low > fpr.alpha:
            yield f"{fpr.verifier}: more false positives than alpha = {fpr.alpha:g} allows"
    if result.drift is not None and not result.drift.used_for_tau:
        yield (
            f"sampler_logprobs typically differ by {result.drift.p50:.2g} nats: they are of "
            "another kind (raw, or renormalised after truncation) and were not used for tau"
        )


def _line_of(source: Path, index: int, mapped: list[str] | None) -> int:
    """Return a completion's line number, from 1, or its row number if the file has no lines."""
    from grpo_guard.cli.formats import is_plain
    from grpo_guard.cli.rows import is_piped
    from grpo_guard.core.jsonl import read_objects

    if mapped or is_piped(source) or not is_plain(source, {}):
        return index + 1
    return next(islice((number for number, _ in read_objects(source)), index, None))


def _progress(done: int, total: int) -> None:
    echo(f"scored {done} / {total}", err=True)


def _calibrate_rules(source: Path, config: Path, out: Path, mapped: Sequence[str]) -> None:
    """Run each verifier that reads no log-probs over honest completions, and write the scores."""
    from rich.table import Table

    from grpo_guard.cli.rows import completions_of
    from grpo_guard.config import GuardConfig
    from grpo_guard.core.calibrated import write_calibration
    from grpo_guard.core.files import require_other
    from grpo_guard.core.jsonl import InputError

    with bad_input():
        require_other(out, source, config)
        completions = completions_of(source, mapped)
        if not completions:
            raise InputError(f"{source}: expected at least one completion, got none")
        scores = rule_scores(GuardConfig.from_yaml(config), completions)
    with writing(out):
        write_calibration(out, scores)
    shown = Table(title=f"{len(completions):,} honest completions")
    for heading in ("verifier", "rejected", "abstained", "smallest p-value"):
        shown.add_column(heading)
    for name, honest in scores.items():
        rejected = f"{honest.rejected:,} / {honest.completions:,}"
        shown.add_row(name, rejected, f"{honest.abstained:,}", f"{honest.p_of(0.0):.2g}")
    terminal().print(shown)
    echo(f"wrote {out}")


def rule_scores(config: GuardConfig, completions: Sequence[Completion]) -> dict[str, HonestScores]:
    """Score honest completions with each of a guard's verifiers that do not read log-probs. Raises
    ConfigError if there is none, two share a name, or one abstains on every completion."""
    from grpo_guard.cli.row_groups import group_of, whole_groups
    from grpo_guard.config import ConfigError
    from grpo_guard.core.calibrated import HonestScores
    from grpo_guard.core.supervise import supervised

    found: dict[str, HonestScores] = {}
    places = whole_groups([group_of(c) for c in completions], MOST_AT_ONCE)
    batches = [[completions[i] for i in batch] for batch in places]
    for verifier in _rules(config):
        if verifier.name in found:
            raise ConfigError(f"verifier: expected one {verifier.name!r}, got two")
        verdicts = [verdict for batch in batches for verdict in supervised(verifier, batch)]
        try:
            found[verifier.name] = HonestScores.of(verdicts)
        except ValueError:
            raise ConfigError(
                f"{verifier.name}: expected completions that it can judge, abstained on all "
                f"{len(verdicts)}: {verdicts[0].reason}"
            ) from None
    if not found:
        raise ConfigError("verifier: expected one that reads no log-probs, got none")
    return found


def _rules(config: GuardConfig) -> Iterator[CompletionVerifier]:
    """Build the verifiers that do not read log-probs, without calibrations or remembered state."""
    from grpo_guard.config import build_verifier
    from grpo_guard.core.ensemble import inner_verifiers
    from grpo_guard.core.verifier import Composed
    from grpo_guard.logprob.verifier import LogProbVerifier
    from grpo_guard.nodes.exclusion_verifier import ExclusionVerifier

    if config.preset is None:
        for leaf in config.leaves():
            if not reads_log_probs(leaf):
                options = {name: value for name, value in leaf.items() if name != "calibration"}
                yield build_verifier(options, config.alpha)
        return
    guard = config.model_copy(update={"state": None}).build()
    for verifier in inner_verifiers(guard.verifier):
        if not isinstance(verifier, Composed | ExclusionVerifier | LogProbVerifier):
            yield verifier
