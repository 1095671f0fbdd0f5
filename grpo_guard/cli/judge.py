"""``grpo-guard judge``: thresholds for a judge. The eval suite adds the command ``probe``."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from grpo_guard.cli.inputs import Mapped, bad_input
from grpo_guard.cli.terminal import echo

app = typer.Typer(help="Measure and calibrate a judge.", no_args_is_help=True)


@app.command()
def calibrate(
    source: Annotated[
        Path, typer.Argument(metavar="HONEST.jsonl", help="Honest completions, good ones.")
    ],
    config: Annotated[Path, typer.Option("--config", "-c", help="The guard, as YAML.")],
    alpha: Annotated[
        float, typer.Option(min=0, max=1, help="Share of honest work that may be rejected.")
    ] = 0.02,
    mapped: Mapped = None,
) -> None:
    """Find the p_yes threshold that rejects at most a share ALPHA of honest work.

    Exit 2 on bad input.
    """
    from grpo_guard.cli.rows import completions_of
    from grpo_guard.config import ConfigError, GuardConfig, build_verifier, unwrapped
    from grpo_guard.judge.errors import JudgeSetupError
    from grpo_guard.judge.verifier import JudgeVerifier

    with bad_input(JudgeSetupError, ValueError):
        completions = completions_of(source, mapped or ())
        guard = GuardConfig.from_yaml(config)
        judges = [leaf for leaf in guard.leaves() if leaf["type"] == "judge"]
        if len(judges) != 1:
            raise ConfigError(f"{config}: expected one verifier of type judge, got {len(judges)}")
        judge = build_verifier(unwrapped(judges[0]), guard.alpha)
        assert isinstance(judge, JudgeVerifier)
        judge.check()
        found = [p for p in judge.p_yes(completions) if p is not None]
        threshold = threshold_for(found, alpha)
    rejected = sum(p < threshold for p in found)
    echo(
        f"{len(found)} of {len(completions)} got a p_yes; below {threshold!r}: {rejected}, "
        f"and {len(completions) - len(found)} without one are rejected or abstained on anyway"
    )
    # Print all digits: a confident judge's values differ in the seventh digit, and a threshold
    # rounded up would reject more honest work than alpha.
    echo(f"threshold: {threshold!r}")


def threshold_for(p_yes: Sequence[float], alpha: float) -> float:
    """Return the largest threshold that rejects new honest work with probability at most ``alpha``;
    raises ValueError if there are too few values for such a small ``alpha``.

    This is conformal: a new honest value is below the k-th smallest of n values with probability at
    most k / (n + 1), because each of the n + 1 values is equally likely to have any rank.
    """
    k = min(math.floor(alpha * (len(p_yes) + 1)), len(p_yes))
    if k < 1:
        raise ValueError(
            f"alpha: expected at least 1 / {len(p_yes) + 1} with {len(p_yes)} honest completions, "
            f"got {alpha:g}"
        )
    least = sorted(p_yes)[k - 1]
    # LogitMode takes thresholds strictly between 0 and 1.
    return min(max(least, 1e-9), 1 - 1e-9)
