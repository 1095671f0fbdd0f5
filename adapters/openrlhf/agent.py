"""OpenRLHF: the ``AgentExecutor`` of an agent file (``--train.agent_func_path FILE.py``).

Unlike a reward function, an executor sees token ids, the rollout's log-probs, the ranges of tokens
that are trained on and, with this mixin, all samples of a prompt together. So it can leave a
completion out of its group, and single tokens out of the loss.

OpenRLHF itself cannot leave a sample out: a reward of None ends the run later with another error,
NaN spoils the whole group, and a sample without trained tokens makes its KL term 0/0. So a left-out
sample gets the mean reward of the remaining ones, which makes its own advantage 0 and does not
change the group's mean; and it keeps a single token, which leaves a KL term almost nothing to train
on.
"""

import asyncio
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar
from uuid import uuid4

from grpo_guard.adapters.flagged_tokens import require_maskable
from grpo_guard.adapters.openrlhf.groups import GroupBarrier, settle_group
from grpo_guard.adapters.openrlhf.rollout import Rollout, Texts, number, sanitize_response
from grpo_guard.adapters.received import parts_of, review
from grpo_guard.adapters.releases import require_release
from grpo_guard.core.verdict import Outcome, Verdict
from grpo_guard.guard import Guard, Review
from grpo_guard.guard.framework import FrameworkError
from grpo_guard.guard.settlement import refuse_abstentions

logger = logging.getLogger("grpo_guard")


class GuardedAgent:
    """Mixin that guards an executor's results; list it before the executor in a class's bases. See
    docs/openrlhf.md for the metrics it logs, and for what happens when the guard or a reward fails.

    Every policy can be carried out. A sample of several turns is one completion; the tokens between
    its ``action_ranges`` are `Completion.given`.

    Attributes:
        guard: The guard, which the class must set.
        mask_spans: Whether a rejected completion whose verdict points to specific tokens keeps its
            reward and loses only those tokens. Any poison that no finding points to is then trained
            on: see `flagged_tokens`.
        special: Ids of special tokens that a response with a ``node`` may contain within its turns.
            Other special tokens are refused, except the one that ends a turn, because they do not
            appear in the judged text.
        nodes: Names of the nodes that get their own figures; all other nodes share ``others``.
            Names are not picked up from samples, because OpenRLHF ends the run if samples log
            different names.
        read_early: Whether to read a text before the prompt's other samples have arrived.

    Raises:
        FrameworkError: when the class is defined, if another ``execute`` would run before the
            guarded one; on instantiation, if there is no guard, if OpenRLHF is too old, or if
            ``mask_spans`` is combined with ``on_long="scale"`` or a guard that only watches.
    """

    guard: ClassVar[Guard]
    mask_spans: ClassVar[bool] = False
    special: ClassVar[Collection[int]] = ()
    nodes: ClassVar[Sequence[str]] = ()
    read_early: ClassVar[bool] = True

    # State kept across groups: the names that were logged, and the number of consecutive groups
    # without any reward.
    _siblings: GroupBarrier[tuple[Rollout, Texts], dict[str, Any]]
    _logged: dict[str, float]
    _unrewarded: int

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        before = cls.__mro__[: cls.__mro__.index(GuardedAgent)]
        for base in before:
            # This base's `execute` would run without calling the guard, and nobody would notice.
            if "execute" in vars(base) and not issubclass(base, GuardedAgent):
                raise FrameworkError(
                    f"{cls.__name__}: {base.__name__}.execute would run without the guard; "
                    f"write class {cls.__name__}(GuardedAgent, {base.__name__})"
                )

    def __new__(cls, *args: Any, **kwargs: Any) -> "GuardedAgent":
        # Not in __init__, because executors may define one that does not call super().__init__.
        require_release("openrlhf")
        if not isinstance(getattr(cls, "guard", None), Guard):
            raise FrameworkError(
                f"{cls.__name__}: expected a Guard as its attribute guard, "
                f"got {getattr(cls, 'guard', None)!r:.80}"
            )
        if isinstance(cls.nodes, str):
            raise FrameworkError(
                f"{cls.__name__}.nodes: expected a list of names, got one text {cls.nodes!r:.80}"
            )
        if cls.mask_spans:
            require_maskable(cls.guard.policy, cls.__name__)
        made = super().__new__(cls)
        made._siblings = GroupBarrier(made._answers)
        made._logged, made._unrewarded = {}, cls.guard.policy.abstain_window
        return made

    async def execute(
        self,
        prompt: Any,
        label: Any,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
        images: Any = None,
        **more: Any,
    ) -> dict[str, Any]:
        """Run the executor and return its guarded answer. All samples of a prompt must share the
        same ``sampling_params`` object. Raises what the executor raises, and AbstainError if the
        policy says so."""
        run = super().execute  # type: ignore[misc]  # the executor's own method
        original: dict[str, Any] = {}

        async def work() -> tuple[Rollout, Texts]:
            given = await run(
                prompt=prompt,
                label=label,
                sampling_params=sampling_params,
                max_length=max_length,
                hf_tokenizer=hf_tokenizer,
                llm_engine=llm_engine,
                images=images,
                **more,
            )
            response, problem = sanitize_response(given, hf_tokenizer, max_length, self.special)
            if problem is None:
                original.update(given)
            rollout = Rollout(response, max_length, problem, prompt)
            rollout = rollout.with_line_before(hf_tokenizer)
            # Not in a thread: the engine's own calls use this tokenizer, which is not thread-safe.
            texts = rollout.texts(hf_tokenizer)
            if self.read_early:
                self.guard.read_early(*parts_of([rollout.row(texts, "", 0)]))
            return rollout, texts

        # Keyed by the identity of the object, which `work` keeps alive, because the same prompt may
        # be sampled twice at once.
        answer = await self._siblings.submit((id(sampling_params), str(prompt)), work)
        if self.guard.policy.watches:
            # A repaired response also keeps the executor's own values.
            return {**answer, **original, "extra_logs": answer["extra_logs"]}
        return answer

    async def _answers(self, group: Sequence[tuple[Rollout, Texts]]) -> list[dict[str, Any]]:
        rollouts, texts = [rollout for rollout, _ in group], [own for _, own in group]
        found = None
        try:
            found = await asyncio.to_thread(self._found, rollouts, texts)
        except Exception as error:
            if self.guard.policy.on_abstain == "raise":
                raise
            logger.error("the guard failed on a group", exc_info=error)
        verdicts: Sequence[Verdict | None] = [None] * len(rollouts)
        factors, waited = [1.0] * len(rollouts), 0.0
        if found is not None:
            waited = found.metrics.get("guard/wait_seconds", 0.0)
            verdicts, factors = found.verdicts, found.length_factors or factors
        if self.guard.policy.watches:
            if found is not None:
                refuse_abstentions(self.guard.policy, found.verdicts)
            answers = [(dict(rollout.response), False) for rollout in rollouts]
        elif self._none_rewarded(rollouts):
            answers = [(dict(rollout.response), True) for rollout in rollouts]
        else:
            answers = settle_group(self.guard, rollouts, found, mask_spans=self.mask_spans)
        if len(answers) == 1 and answers[0][1]:
            logger.warning("left out of a group of one: its reward is 0, without others' mean")
        logged = [_plain_logs(answer) for answer, _ in answers]
        # A failed reward has logged nothing, and OpenRLHF fails if samples log different names.
        # Collect the names of the whole group first: the failed sample could be the first one.
        self._logged |= {name: 0.0 for own in logged for name in own}
        return [
            {
                **answer,
                "extra_logs": {
                    **self._logged,
                    **own,
                    **self._guard_logs(rollout, verdict, out, factor),
                    "guard_wait_seconds": waited,
                },
            }
            for rollout, (answer, out), own, verdict, factor in zip(
                rollouts, answers, logged, verdicts, factors, strict=True
            )
        ]

    def _guard_logs(
        self, rollout: Rollout, verdict: Verdict | None, out: bool, factor: float
    ) -> dict[str, float]:
        outcome = Outcome.ABSTAIN if verdict is None else verdict.outcome
        logs = {f"guard_{o.value}": float(o is outcome) for o in Outcome}
        logs["guard_left_out"] = float(out)
        if self.guard.policy.chosen().on_long == "scale":
            logs |= {"guard_length_factor": factor, "guard_length_dropped": float(factor <= 0)}
        if self.nodes:
            node = rollout.node
            name = node if node is None or node in self.nodes else "others"
            for known in (*self.nodes, "others"):
                for o in Outcome:
                    logs[f"guard_node/{known}/{o.value}"] = float(known == name and o is outcome)
        return logs

    def _found(self, rollouts: Sequence[Rollout], texts: Sequence[Texts]) -> Review:
        name = uuid4().hex
        return review(self.guard, [r.row(texts[i], name, i) for i, r in enumerate(rollouts)])

    def _none_rewarded(self, rollouts: Sequence[Rollout]) -> bool:
        """Whether the run should stop because too many groups in a row had no reward at all."""
        rewards = [number(rollout.response.get("reward")) for rollout in rollouts]
        failed = [reward for reward in rewards if reward is None or not math.isfinite(reward)]
        self._unrewarded = self._unrewarded + 1 if rewards == [None] * len(rewards) else 0
        stop = self._unrewarded > self.guard.policy.abstain_window
        if stop:
            logger.error("too many groups without any reward; OpenRLHF's own log says why")
        elif failed:
            logger.error("rewards %s: these samples are left out of their group", failed)
        return stop


def _plain_logs(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The values that an answer logs, with numbers as plain floats like the zeros that fill gaps;
    values of other types are unchanged."""

    def plain(value: Any) -> Any:
        try:
            return number(value)
        except (TypeError, ValueError):
            return value

    return {name: plain(value) for name, value in (answer.get("extra_logs") or {}).items()}
