"""verl: the collector as a named Ray actor, its log, and the fallback for when it is not available.

verl's trainers log nothing that a reward function returns except the reward, so the collector
writes its own log: one JSON line per step to a file, and the same to the logger ``grpo_guard``.
"""

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from grpo_guard.adapters.verl.groups import Settled, SiblingCollector, Trajectory
from grpo_guard.adapters.verl.settings import Settings
from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Cause, Outcome, Verdict, abstain, accept
from grpo_guard.guard.abstentions import AbstainWindow
from grpo_guard.guard.lowest_rewards import LowestRewards
from grpo_guard.guard.metrics import NodeFigures, length_figures, metrics
from grpo_guard.guard.review import Review
from grpo_guard.guard.settlement import refuse_abstentions, ruling_of, settle

logger = logging.getLogger("grpo_guard")
NAME: Final = "grpo_guard_collector"
_Line: TypeAlias = tuple[str | None, Verdict, float | None, float, float | None]
"""The figures logged for a trajectory: node, verdict, length factor, seconds spent waiting for its
verdict, and the share of its batch that had been read early."""


class Collector(SiblingCollector):
    """The sibling collector that runs in the actor, using the guard from the run's settings."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(
            lambda: settings.guard_config().build().with_policy(settings.policy()),
            most_waiting=500 * settings.num_workers,
            log=StepLog(settings.metrics).add,
            read_early=settings.read_early,
        )


class CollectorHandle:
    """A worker's access to the collector. The collector's actor belongs to the first worker to
    request it, and ends with the run. If the actor dies, the guard abstains on the trajectories
    waiting for it, and the next trajectory starts a new actor."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._actor: Any = None
        # Counts answers and failures, so that a run does not continue without a guard.
        self.policy = settings.policy()
        self._answers = AbstainWindow(self.policy)
        self._lowest = LowestRewards()

    async def settle(self, trajectory: Trajectory) -> Settled:
        """Ask the collector for a trajectory's result: an abstention if the collector died or does
        not answer in time. Raises AbstainError if the guard abstained, or did not answer, too
        often."""
        import ray

        verdict = accept("verl")
        settled: Settled | None = None
        timeout = trajectory.timeout + self._settings.answer_timeout
        try:
            answer = self._get().settle.remote(trajectory)
            settled = await asyncio.wait_for(answer, timeout)
        except ray.exceptions.RayTaskError:
            raise  # the guard's own error, e.g. AbstainError
        except ray.exceptions.RayError as error:
            self._actor = None
            verdict = abstain("verl", Cause.FAULT, "the collector did not answer")
            logger.error("the guard's collector is gone: %s", error)
        except TimeoutError:
            verdict = abstain("verl", Cause.TIMEOUT, "the collector did not answer")
            logger.error("the guard's collector did not answer within %s s", timeout)
        if not self.policy.watches:
            self._answers.add([Completion("", "")], [verdict])
        if settled is not None:
            return settled
        refuse_abstentions(self.policy, [verdict])
        given, rulings = [[trajectory.score]], [ruling_of(verdict)]
        earned = settle(given, rulings, self.policy, lowest_seen=self._lowest.least)
        self._lowest.add(earned.lowest)
        ((score,),) = earned.rewards
        # The siblings' mean is lost with the collector.
        value = min(0.0, trajectory.score or 0.0) if score is None else score
        out = score is None and not self.policy.watches
        return Settled(value, out, Outcome.ABSTAIN, verdict.cause, 1)

    def absent(self, uid: str, step: int | None, siblings: int) -> None:
        """Report that a trajectory will not arrive, without waiting for an answer."""
        import ray

        try:
            timeout = self._settings.sibling_timeout
            self._get().absent.remote(uid, step, siblings, timeout)
        except ray.exceptions.RayError:
            self._actor = None

    def _get(self) -> Any:
        if self._actor is None:
            import ray

            options = {"num_cpus": 0, **self._settings.actor_options}
            self._actor = (
                ray.remote(Collector)
                .options(name=NAME, get_if_exists=True, max_concurrency=100_000, **options)
                .remote(self._settings)
            )
        return self._actor


class StepLog:
    """Collects verdicts and writes their figures, one line per step, to a JSONL file, if there is
    one, and to the logger. A line is written when a later step begins, but no later than ``after``
    seconds after its first verdict, so that little is lost when the run ends. A step can have
    several lines; combine them using ``completions`` as weights."""

    def __init__(self, path: str | None = None, *, after: float = 10.0) -> None:
        self.path, self._after = None if path is None else Path(path), after
        self._steps: OrderedDict[int | None, list[_Line]] = OrderedDict()
        self._nodes = NodeFigures()
        self._timer: asyncio.TimerHandle | None = None

    def add(
        self,
        trajectories: Sequence[Trajectory],
        review: Review,
        waited: Sequence[float],
        read_early: float | None,
    ) -> None:
        """Record a batch of verdicts, see `grpo_guard.adapters.verl.groups.Log`."""
        factors: Sequence[float | None] = review.length_factors or [None] * len(trajectories)
        rows = zip(trajectories, review.verdicts, factors, waited, strict=True)
        for trajectory, verdict, factor, wait in rows:
            node = trajectory.rows[0].completion.node
            line = node, verdict, factor, wait, read_early
            self._steps.setdefault(trajectory.step, []).append(line)
        newest = next(reversed(self._steps), None)
        for step in [s for s in self._steps if s != newest]:
            self._write(step)
        if self._steps and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._after, self.flush)

    def flush(self) -> None:
        """Write all collected steps."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for step in list(self._steps):
            self._write(step)

    def _write(self, step: int | None) -> None:
        nodes, verdicts, factors, waited, early = zip(*self._steps.pop(step), strict=True)
        figures = metrics(verdicts) | self._nodes.of(nodes, verdicts)
        if any(factor is not None for factor in factors):
            scaled = [1.0 if factor is None else factor for factor in factors]
            figures |= length_figures(verdicts, scaled)
        figures["guard/wait_seconds"] = max(waited)
        if known := [rate for rate in early if rate is not None]:
            figures["guard/read_early_rate"] = sum(known) / len(early)
        row = json.dumps({"step": step, "completions": len(verdicts), **figures})
        logger.info("guard: %s", row)
        if self.path is None:
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(row + "\n")
        except OSError as error:  # a full disk must not stop training
            logger.warning("%s: the guard's figures cannot be written: %s", self.path, error)
