"""``@guard``: a decorator that applies a `Guard` to reward functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_guard.core.arguments import worded
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.guard.guard import Guard, Ledger
from grpo_guard.guard.policy import Policy
from grpo_guard.guard.verdict_log import VerdictLog

if TYPE_CHECKING:
    from grpo_guard.content.length.scaling import LengthScaling
    from grpo_guard.guard.environment import Environment
    from grpo_guard.guard.graders import GraderFailures
    from grpo_guard.guard.references import References
    from grpo_guard.nodes.identity.gate import Identity


@worded
def guard(
    verifier: CompletionVerifier,
    *,
    policy: Policy | None = None,
    framework: str | None = None,
    ledger: Ledger | None = None,
    length_scaling: LengthScaling | None = None,
    identity: Identity | None = None,
    references: References | None = None,
    failures: GraderFailures | None = None,
    environment: Environment | None = None,
    tokenizer: Any = None,
    log: VerdictLog | str | Path | None = None,
    workers: int | None = None,
) -> Callable[[Any], Any]:
    """Decorate a reward function so that only verified completions earn their reward.

    Takes the same arguments as `Guard`. The trainer's calling convention is recognised from the
    signature; ``framework=`` ("trl", "verl", "openrlhf") overrides it. Sync functions stay sync,
    async functions stay async, and names are kept. If the trainer sums several reward functions,
    decorate them as a list: a veto on just one of them would leave the others' rewards in place.
    Raises FrameworkError if the calling convention is not recognised, or the framework cannot do
    what the policy asks.

    Examples:
        >>> @guard(ScreensVerifier())
        ... def reward(completions, **kwargs): ...
    """
    the_guard = Guard(
        verifier, policy=policy, ledger=ledger, length_scaling=length_scaling, identity=identity,
        references=references, failures=failures, environment=environment, tokenizer=tokenizer,
        log=log, workers=workers,
    )  # fmt: skip

    def decorate(*reward: Any, **given: Any) -> Any:
        return the_guard(*reward, framework=framework, **given)

    return decorate
