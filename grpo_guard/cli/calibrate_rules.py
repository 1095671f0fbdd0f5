"""``grpo-guard calibrate --rules``: p-values for verifiers that have none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_guard.cli.inputs import bad_input, reads_log_probs, writing
from grpo_guard.cli.terminal import echo, terminal

if TYPE_CHECKING:
    from grpo_guard.config import GuardConfig
    from grpo_guard.core.calibrated import HonestScores
    from grpo_guard.core.completion import Completion
    from grpo_guard.core.verifier import CompletionVerifier

# Verifiers that compare the completions of a group need the whole group in one call.
MOST_AT_ONCE = 1000


def calibrate_rules(source: Path, config: Path, out: Path, mapped: Sequence[str] = ()) -> None:
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
    from grpo_guard.cli.rows import group_of, whole_groups
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
