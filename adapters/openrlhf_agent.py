"""OpenRLHF: the ``AgentExecutor`` of an agent file (``--train.agent_func_path FILE.py``).

An executor sees what a reward function does not: token ids, the rollout's log-probs, the ranges of
tokens that are trained on, and here the samples of a prompt together. So it can leave a completion
out of its group and single tokens out of the loss.

Nothing in OpenRLHF leaves a sample out: a reward of None ends the run later with another error, NaN
spoils the whole group, and a sample without trained tokens makes its KL term 0/0. What is left out
gets the mean reward of those that stay, which is the group's mean without it, so that its own
advantage is 0; and it keeps one token, so that a KL term has next to nothing to train on.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, ClassVar
from uuid import uuid4

from grpo_guard.adapters.flagged_tokens import Span
from grpo_guard.adapters.openrlhf_rollout import Rollout, number
from grpo_guard.adapters.openrlhf_siblings import Siblings
from grpo_guard.adapters.openrlhf_versions import require_openrlhf
from grpo_guard.framework import FrameworkError
from grpo_guard.guard import Guard, Review
from grpo_guard.metrics import metrics
from grpo_guard.verdict import Outcome, Verdict

logger = logging.getLogger("grpo_guard")


class GuardedAgent:
    """Put it before an executor, and what that returns is guarded::

        class AgentExecutor(GuardedAgent, SingleTurnAgentExecutor):
            guard = Guard(verifier, policy=Policy(on_reject="drop"))

            def __init__(self):
                super().__init__("reward.py")

    Every policy can be carried out. Of several turns each is judged behind all that came before it,
    and one that is rejected rejects the whole. ``extra_logs`` always has ``guard_accept``,
    ``guard_reject``, ``guard_abstain`` and ``guard_left_out``, 0 or 1.

    Where the guard itself fails, or abstains more often than the policy allows, the whole group is
    left out with reward 0 and an error is logged; under ``on_abstain="raise"`` it is raised, and
    ends the run. A completion that its reward function failed on is left out as well. Until this
    executor has seen a first reward, None stays None: OpenRLHF then stops, as without a guard.

    Attributes:
        guard: Set it in the class.
        mask_spans: A rejected completion whose verdict rests on tokens keeps its reward and loses
            these tokens. Poison that no finding names is then trained on: see `flagged_tokens`.

    Raises:
        FrameworkError: when the class is made, where another ``execute`` would come before this
            one; when it is created, without a guard or with too old a release.
    """

    guard: ClassVar[Guard]
    mask_spans: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        before = cls.__mro__[: cls.__mro__.index(GuardedAgent)]
        for base in before:
            # It would run without ever calling the guard, and nobody would know.
            if "execute" in vars(base) and not issubclass(base, GuardedAgent):
                raise FrameworkError(
                    f"{cls.__name__}: {base.__name__}.execute would run without the guard; "
                    f"write class {cls.__name__}(GuardedAgent, {base.__name__})"
                )

    def __new__(cls, *args: Any, **kwargs: Any) -> GuardedAgent:
        # Here, since executors are free to write an __init__ that calls nobody's.
        require_openrlhf()
        if not isinstance(getattr(cls, "guard", None), Guard):
            raise FrameworkError(
                f"{cls.__name__}: expected a Guard as its attribute guard, "
                f"got {getattr(cls, 'guard', None)!r:.80}"
            )
        made = super().__new__(cls)
        made._siblings = Siblings(made._judged)
        made._logged, made._rewarded = {}, False
        return made

    _siblings: Siblings[tuple[Rollout, Any], dict[str, Any]]
    _logged: dict[str, float]
    _rewarded: bool

    async def execute(
        self,
        prompt: Any,
        label: Any,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
        images: Any = None,
    ) -> dict[str, Any]:
        """The executor's answer, guarded. All samples of one prompt share ``sampling_params``.

        Raises:
            Exception: of the executor, unchanged.
            AbstainError: the policy says so.
        """
        call = super().execute  # type: ignore[misc]  # of the class behind this one

        async def work() -> tuple[Rollout, Any]:
            response = await call(
                prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine, images
            )
            return Rollout(response, max_length), hf_tokenizer

        # The very object, which `work` keeps alive: the same prompt may be sampled twice at once.
        return await self._siblings.bring((id(sampling_params), str(prompt)), work)

    async def _judged(self, group: Sequence[tuple[Rollout, Any]]) -> list[dict[str, Any]]:
        rollouts = [rollout for rollout, _ in group]
        tokenizer = group[0][1]
        raw = [number(rollout.response.get("reward")) for rollout in rollouts]
        name, prompt = uuid4().hex, _shown_prompt(rollouts[0], tokenizer)
        # Not in a thread: the engine's own calls use this tokenizer, which is not made for two.
        turns = [r.completions(tokenizer, prompt, name, i) for i, r in enumerate(rollouts)]
        found: tuple[Review, list[list[Verdict]]] | None = None
        try:
            review = await self.guard.areview([turn for each in turns for turn in each])
            found = _per_sample(review, [len(each) for each in turns])
        except Exception as error:
            if self.guard.policy.on_abstain == "raise":
                raise
            logger.error("the guard failed; its group is left out", exc_info=error)
        if not self._rewarded and all(reward is None for reward in raw):
            logger.error("no reward came for any sample; OpenRLHF's own log says why")
            return [{**r.response, "extra_logs": self._logs(r, None, True)} for r in rollouts]
        self._rewarded = True
        if failed := [reward for reward in raw if reward is None or not math.isfinite(reward)]:
            logger.error("rewards %s: these samples are left out of their group", failed)
        return self._settled(rollouts, raw, found)

    def _settled(
        self,
        rollouts: Sequence[Rollout],
        raw: Sequence[float | None],
        found: tuple[Review, list[list[Verdict]]] | None,
    ) -> list[dict[str, Any]]:
        masked: list[list[Span] | None] = [None] * len(rollouts)
        if self.mask_spans and found is not None:
            masked = [
                r.without_flagged(of_turns) if verdict.rejected else None
                for r, of_turns, verdict in zip(rollouts, found[1], found[0].verdicts, strict=True)
            ]
        scores = [number(r.response.get("scores")) for r in rollouts]
        scores = [r if s is None else s for r, s in zip(raw, scores, strict=True)]
        rewards, scores = self._kept(raw, found, masked), self._kept(scores, found, masked)
        # One that has no tokens of its own cannot earn: its reward would stand on the prompt's.
        out = [
            reward is None or not rollout.turns
            for reward, rollout in zip(rewards, rollouts, strict=True)
        ]
        mean_reward, mean_score = _mean(rewards, out), _mean(scores, out)
        answers = []
        for i, rollout in enumerate(rollouts):
            reward, score = (mean_reward, mean_score) if out[i] else (rewards[i], scores[i])
            ranges = rollout.least() if out[i] else masked[i] or rollout.ranges()
            # A penalty for being cut off would move what is left out away from the mean.
            truncated = {"truncated": False} if out[i] and "truncated" in rollout.response else {}
            verdict = found[0].verdicts[i] if found else None
            answers.append(
                {
                    **rollout.response,
                    "reward": reward,
                    "scores": mean_score if score is None else score,
                    "action_ranges": ranges,
                    **truncated,
                    "extra_logs": self._logs(rollout, verdict, out[i]),
                }
            )
        return answers

    def _kept(
        self,
        given: Sequence[float | None],
        found: tuple[Review, list[list[Verdict]]] | None,
        masked: Sequence[list[Span] | None],
    ) -> list[float | None]:
        """Finite numbers; None = left out."""
        if found is None:
            return [None] * len(given)
        settled = self.guard.settle(given, found[0])
        kept = [g if m else s for g, s, m in zip(given, settled, masked, strict=True)]
        return [k if k is not None and math.isfinite(k) else None for k in kept]

    def _logs(self, rollout: Rollout, verdict: Verdict | None, out: bool) -> dict[str, Any]:
        own = rollout.response.get("extra_logs") or {}
        # A failed reward has logged nothing, and OpenRLHF fails where samples log different names.
        self._logged |= dict.fromkeys(own, 0.0)
        outcome = verdict.outcome if verdict else Outcome.ABSTAIN
        ours = {f"guard_{o.value}": float(o is outcome) for o in Outcome}
        return {**self._logged, **own, **ours, "guard_left_out": float(out)}


def _shown_prompt(rollout: Rollout, tokenizer: Any) -> str:
    """The prompt as it was given, if its tokens are what was continued: too long a one is cut."""
    prompt = rollout.response.get("prompt")
    if not isinstance(prompt, str) or rollout.response.get("images"):
        return prompt if isinstance(prompt, str) else ""
    start = rollout.turns[0][0] if rollout.turns else len(rollout.ids)
    ids = tokenizer(text=prompt, add_special_tokens=False)["input_ids"]
    return prompt if list(ids) == list(rollout.ids[:start]) else ""


def _per_sample(review: Review, turns: Sequence[int]) -> tuple[Review, list[list[Verdict]]]:
    """A review of samples from one of their turns: one rejection rejects, else one abstention
    abstains; the smallest factor counts."""
    each, verdicts, factors, at = [], [], [], 0
    for count in turns:
        of_turns = review.verdicts[at : at + count]
        each.append(of_turns)
        rank = [Outcome.REJECT, Outcome.ABSTAIN, Outcome.ACCEPT].index
        verdicts.append(min(of_turns, key=lambda verdict: rank(verdict.outcome)))
        factors.append(
            min(review.length_factors[at : at + count]) if review.length_factors else 1.0
        )
        at += count
    kept_factors = factors if review.length_factors else None
    return Review(verdicts, metrics(verdicts), kept_factors), each


def _mean(values: Sequence[float | None], out: Sequence[bool]) -> float:
    """Of those that stay; 0 where nobody does."""
    kept = [v for v, left in zip(values, out, strict=True) if v is not None and not left]
    # Within their range, whatever rounding does: a group of equals must stay one.
    return min(max(math.fsum(kept) / len(kept), min(kept)), max(kept)) if kept else 0.0
