"""The command ``grpo-guard calibrate``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from grpo_guard.cli.calibrate_rules import calibrate_rules
from grpo_guard.cli.inputs import Mapped, bad_input, reads_log_probs, require_folder_of, writing
from grpo_guard.cli.terminal import echo, terminal

if TYPE_CHECKING:
    from rich.table import Table

    from grpo_guard.config import GuardConfig
    from grpo_guard.core.completion import Completion
    from grpo_guard.logprob.profile_file import ProfileFile
    from grpo_guard.logprob.verifier import LogProbVerifier


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
        calibrate_rules(source, config, out, mapped or ())
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
        echo(f"{place}: {error}", err=True)
        raise typer.Exit(2) from None
    except OutOfMemoryError as error:
        echo(f"{source}: {error}; a larger memory_budget may help", err=True)
        raise typer.Exit(1) from None
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
