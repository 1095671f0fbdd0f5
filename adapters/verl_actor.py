"""verl: the collector as a named Ray actor, and what its absence comes to."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from grpo_guard.adapters.verl_log import StepLog
from grpo_guard.adapters.verl_settings import Settings
from grpo_guard.adapters.verl_siblings import SiblingCollector
from grpo_guard.adapters.verl_trajectory import Settled, Trajectory
from grpo_guard.completion import Completion
from grpo_guard.guard import AbstainWindow
from grpo_guard.settlement import refuse_abstentions, ruling_of, settle
from grpo_guard.verdict import Cause, Outcome, abstain, accept

logger = logging.getLogger("grpo_guard")
NAME: Final = "grpo_guard_collector"


class Collector(SiblingCollector):
    """The actor's class."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(
            lambda: settings.guard_config().build().under(settings.policy()),
            most_waiting=500 * settings.num_workers,
            log=StepLog(settings.metrics),
        )


class CollectorHandle:
    """A worker's way to the collector.

    The actor belongs to the worker that asked for it first and ends with the run. Where it died,
    what waited for it is abstained on, and the next trajectory starts it anew.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._actor: Any = None
        # Counts what was heard and what was not, so that a run without a guard does not go on.
        self.policy = settings.policy()
        self._heard = AbstainWindow(self.policy)
        self._lowest = 0.0

    async def settle(self, trajectory: Trajectory) -> Settled:
        """The collector's word; an abstention where it died or does not answer in time.

        Raises:
            AbstainError: it abstained too often, or could not be asked too often.
        """
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
        self._heard.add([Completion("", "")], [verdict])
        if settled is not None:
            return settled
        refuse_abstentions(self.policy, [verdict])
        given, rulings = [[trajectory.score]], [ruling_of(verdict)]
        earned = settle(given, rulings, self.policy, lowest_seen=self._lowest)
        self._lowest = min(self._lowest, *earned.lowest)
        ((score,),) = earned.rewards
        # The siblings' mean is lost with the collector.
        value = min(0.0, trajectory.score or 0.0) if score is None else score
        return Settled(value, score is None, Outcome.ABSTAIN, verdict.cause, 1)

    def absent(self, uid: str, step: int | None, siblings: int) -> None:
        """Tell that a trajectory will not come. Nobody waits for the answer."""
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
