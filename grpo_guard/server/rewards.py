"""Rewards for ``/get_reward``, computed by the adapter that guards OpenRLHF's reward files."""

import importlib
import importlib.util
import logging
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from grpo_guard.content.answers import rightness
from grpo_guard.content.arithmetic.verifier import WITHOUT_GAIN
from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Verdict
from grpo_guard.guard import Guard
from grpo_guard.guard.admission import AdmittedBatch
from grpo_guard.guard.framework import adapter_for
from grpo_guard.guard.lowest_rewards import LowestRewards
from grpo_guard.guard.policy import Policy
from grpo_guard.server.audit import Audit
from grpo_guard.server.batches import Job
from grpo_guard.server.bodies import Queries
from grpo_guard.server.first_rejections import FirstRejections
from grpo_guard.server.late import until_late
from grpo_guard.server.replies import ReplyBody, RequestError, as_json

logger = logging.getLogger("grpo_guard")
LISTS = ("rewards", "scores")
GUARD_LOGS = ("guard_accept", "guard_reject", "guard_abstain")


NOTE_ON_LABELS = (
    'OpenRLHF sends the label "" where the data set has none (is its label key set?), and '
    '"" in answer is true; the reward function must not pay for it'
)
NOTE_ON_NO_REWARD = (
    "without --reward, /get_reward pays 1 for each completion that the guard accepts, whether or "
    "not its answer is right"
)


class Rewards:
    """A reward function behind the guard, answering in the format of OpenRLHF's reward servers.

    Args:
        guard: The guard, whose policy is adapted to what the protocol can express; see
            `protocol_policy`.
        reward: Function ``reward(queries, prompts, labels)``; None for a reward of 1 for each
            accepted completion, except those accepted because their answer earns nothing.

    Attributes:
        audit: Log of rejections, or None for no log.
        first: Warnings about nodes' first rejections.
        notes: Notes for the operator: which parts of the guard's policy the protocol does not
            support, and which labels the reward function may get.

    Raises:
        FrameworkError: ``reward`` is not a function that OpenRLHF could call.
    """

    def __init__(self, guard: Guard, reward: Callable[..., Any] | None = None) -> None:
        policy, self.notes = protocol_policy(guard.policy)
        self.audit: Audit | None = None
        self.first = FirstRejections()
        self._takes_labels, self._warned = reward is not None, False
        if self._takes_labels:
            self.notes.append(NOTE_ON_LABELS)
        else:
            self.notes.append(NOTE_ON_NO_REWARD)
        own = Guard(
            guard.verifier,
            policy=policy,
            ledger=until_late(guard.ledger),
            identity=guard.identity,
            references=guard.references,
            log=guard.log,
        )
        own.idle, own.rejections = guard.idle, guard.rejections  # one warning for all paths
        # Names that are logged; those logged by the operator's function are known once it has
        # answered.
        self._logged: tuple[str, ...] | None = GUARD_LOGS if reward is None else None
        self._lowest = {name: LowestRewards() for name in LISTS}
        # The operator's own function can take its time, and each call to it takes up a thread.
        self._shares_calls = guard.verifier.shares_calls and reward is None
        reward = _accepted if reward is None else reward
        adapter: Any = adapter_for(reward, "openrlhf")
        self._parts = adapter.parts(reward, own)

    def job(self, asked: Queries, request_id: str, size: int) -> Job[ReplyBody]:
        """Build the job for one request; its errors are those of `of`."""

        def settle(known: AdmittedBatch | None, found: list[Verdict]) -> ReplyBody:
            return _reply_body(self.of(asked, known, found, request_id))

        return Job(partial(self.admitted, asked), settle, self._shares_calls, len(asked), size)

    def too_late(self, asked: Queries) -> ReplyBody:
        """Return the answer of `abstained`, or of the reward function if the guard only watches."""
        if self._parts.guard.policy.watches:
            return _reply_body(self.of(asked, None, ()))
        return _reply_body(self.abstained(len(asked)))

    def admitted(self, given: Queries) -> AdmittedBatch | None:
        """Return the completions for the verifier; None if there are none, or the guard failed.
        Raises RequestError 422 if the reward function takes labels and a label is missing."""
        if not given:
            return None
        labels = self._labels(given)
        return self._parts.admitted(given.queries, given.prompts, labels)  # type: ignore[no-any-return]

    def of(
        self,
        given: Queries,
        known: AdmittedBatch | None,
        found: Sequence[Verdict],
        request_id: str = "",
    ) -> dict[str, Any]:
        """Build the answer ``{"rewards": [f], "scores": [f], "extra_logs": {k: [f]}}``, all finite
        and in order, from what `admitted` returned and the verifier's verdicts on its
        ``unsettled``. Raises whatever the reward function raises."""
        if not given:
            return self.abstained(0)
        answer = self._parts.settled(
            known, found, given.queries, given.prompts, self._labels(given)
        )
        rows = {name: _row(answer[name], len(given)) for name in LISTS}
        if known is not None:
            # Not earlier: a client that gets no answer asks again.
            verdicts = known.verdicts(found)
            self.first.note(known.batch, verdicts)
            if self.audit is not None:
                self.audit.note(request_id, known.batch, verdicts)
            if not self._takes_labels and not self._parts.guard.policy.watches:
                unpaid = list(map(_earns_nothing, known.batch, verdicts))
                rows = {
                    name: [0.0 if no else x for no, x in zip(unpaid, row, strict=True)]
                    for name, row in rows.items()
                }
        for name, row in rows.items():
            self._lowest[name].add(row)
        logs = {str(k): _row(v, len(given)) for k, v in answer["extra_logs"].items()}
        self._logged = tuple(logs)
        return {**rows, "extra_logs": logs}

    def _labels(self, given: Queries) -> list[Any]:
        if not self._takes_labels:
            return given.labels or [None] * len(given)
        if given.labels is None:
            # Empty labels instead would reward everyone if the function tests ``label in answer``.
            raise RequestError(
                422, "labels: expected a list, one per query, got nothing", {"field": "labels"}
            )
        for i, label in enumerate(given.labels):
            if label is None:
                problem = f"labels[{i}]: expected a reference answer, got null"
                raise RequestError(422, problem, {"index": i, "field": "labels"})
        if "" in given.labels and not self._warned:
            self._warned = True
            logger.warning("/get_reward got an empty label: %s", NOTE_ON_LABELS)
        return given.labels

    def abstained(self, count: int) -> dict[str, Any]:
        """Build an answer for completions that were not judged: each earns the lowest of the most
        recent rewards, and at most 0. Raises RequestError 503 if the reward function has not yet
        shown which names it logs, because OpenRLHF ends the run if two samples log different names.
        OpenRLHF then asks again."""
        if self._logged is None and count:
            raise RequestError(503, "no answer in time, and no earlier answer", retry=True)
        names = self._logged or GUARD_LOGS
        logs = {name: [float(name == "guard_abstain")] * count for name in names}
        lowest = {name: [self._lowest[name].least] * count for name in LISTS}
        return {**lowest, "extra_logs": logs}


def _reply_body(answer: dict[str, Any]) -> ReplyBody:
    logs = answer["extra_logs"]
    counts = {name.removeprefix("guard_"): int(sum(logs.get(name, ()))) for name in GUARD_LOGS}
    return ReplyBody(as_json(answer), counts)


def protocol_policy(policy: Policy) -> tuple[Policy, list[str]]:
    """Return the closest policy that one reward per query can express, plus notes on what changed.

    The protocol has one number for each query and no groups: it can neither leave a completion out
    of its group's baseline, nor stop the run, nor compare lengths. A completion that would have
    been left out earns nothing, so that no failure turns into a reward.
    """
    if policy.watches:
        asked = policy.rules("on_abstain")[0]
        noted = [f"/get_reward does not support on_abstain: {asked}"] if asked == "raise" else []
        return replace(policy, on_abstain="pass", on_long="keep"), noted
    instead = {"drop": "zero", "no_gain": "zero", "skip": "zero", "raise": "zero", "scale": "keep"}
    rules: dict[str, Any] = {}
    notes = []
    for name in ("on_reject", "on_abstain", "on_long"):
        asked = policy.rules(name)
        possible = [rule for rule in asked if rule not in instead]
        rules[name] = possible[0] if possible else instead[asked[0]]
        if not possible:
            note = f"/get_reward does not support {name}: {asked[0]}; it uses {rules[name]}"
            notes.append(note)
    return replace(policy, **rules), notes


def load_reward(spec: str) -> Any:
    """Load the object named by ``FILE.py:NAME`` or ``pkg.module:NAME``, which runs that file.
    Raises ValueError if the file or module cannot be loaded, or does not define the name."""
    where, _, name = spec.rpartition(":")
    if not where or not name:
        raise ValueError(f"expected FILE.py:NAME or pkg.module:NAME, got {spec!r:.200}")
    try:
        module = _from_file(Path(where)) if where.endswith(".py") else _from_path(where)
    except Exception as error:
        raise ValueError(f"{where}: cannot be loaded: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise ValueError(f"{where}: expected it to define {name}, but it does not")
    return getattr(module, name)


def _from_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"_grpo_guard_reward_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up
    spec.loader.exec_module(module)
    return module


def _from_path(name: str) -> Any:
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # last, so that nothing there shadows an installed package
    return importlib.import_module(name)


def _accepted(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]) -> list[float]:
    return [1.0] * len(queries)


def _earns_nothing(completion: Completion, verdict: Verdict) -> bool:
    """Whether a completion was accepted in spite of a wrong equation because its answer is wrong,
    for which every grader of answers pays nothing."""
    excused = verdict.accepted and any(f.kind == WITHOUT_GAIN for f in verdict.findings)
    return excused and rightness(completion.text, completion.reference) is False


def _row(value: Any, count: int) -> list[float]:
    """Convert a value to one finite number per query; a single number applies to all queries."""
    value = value.tolist() if hasattr(value, "tolist") else value
    row = list(value) if isinstance(value, list | tuple) else [value] * count
    if len(row) != count:
        raise ValueError(f"expected {count} numbers, one per query, got {len(row)}")
    numbers = [float(number) for number in row]
    return [number if math.isfinite(number) else 0.0 for number in numbers]
