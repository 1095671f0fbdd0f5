"""One run in the matrix: an attack, a defence and a seed, from their names to the record."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, Final

import torch

from grpo_guard.evals.attacks.registry import NONE, adversary
from grpo_guard.evals.defences.base import Build, Defence, Ground
from grpo_guard.evals.defences.own import GuardFile
from grpo_guard.evals.defences.registry import defence
from grpo_guard.evals.roles import COIN
from grpo_guard.evals.swarm.config import EngineName, SwarmConfig
from grpo_guard.evals.swarm.engine import Swarm
from grpo_guard.evals.swarm.generate import sample
from grpo_guard.evals.swarm.members import GuardIn
from grpo_guard.evals.swarm.session import RaySession
from grpo_guard.evals.swarm.training import train
from grpo_guard.evals.swarm.workload import Workload
from grpo_guard.evals.tasks.base import Task
from grpo_guard.evals.tasks.base import held_out as held_out_problem
from grpo_guard.evals.tasks.registry import WORD_PROBLEMS
from grpo_guard.logprob.coin import PublicCoin

HELD_OUT = 256
"""Number of problems for measuring the accuracy of a finished run."""
USUAL_SHARE: Final = "1/4"
_OFF: Final[dict[str, Any]] = {
    "mask_spans": False, "cap_below": 0.0, "filter_kl": 0.0, "local_share": 0.0,
    "reward_by": "reference",
}  # fmt: skip
"""Settings that now belong to a defence, listed here so that older runs keep their identity."""
KINDS: Final = ("honest", "honest_correct", "poisoned", "cover")
"""Kinds of completion, as they are counted."""


@dataclass(frozen=True, slots=True)
class Spec:
    """The definition of one run; everything in it affects the result.

    Args:
        attack: Name of the attack; "none" for a run with the same number of nodes, all of them
            honest.
        guard: The user's own guard, if any; ``defence`` is then the guard's name.
    """

    attack: str
    defence: str
    config: SwarmConfig
    workload: Workload = field(default_factory=Workload)
    guard: GuardFile | None = None

    @property
    def share(self) -> str:
        """Share of malicious nodes, as ``1/4``; 0 for an attack-free run."""
        malicious = 0 if self.attack == NONE else self.config.malicious
        return f"{malicious}/{self.config.nodes}"

    @property
    def shown_attack(self) -> str:
        """The attack's name in results, with the share of malicious nodes unless it is a quarter.

        If the malicious nodes leave, the name also shows after which round.
        """
        if self.attack == NONE:
            return NONE
        leaves = self.config.leaves
        parts = [self.share] * (self.share != USUAL_SHARE)
        parts += [f"leaves after {leaves}"] * (leaves is not None)
        return f"{self.attack} ({', '.join(parts)})" if parts else self.attack

    @property
    def shown_defence(self) -> str:
        """The defence's name in results, with the rule for rejections unless it is the default.

        The name also shows the round when the defence is switched on, unless that is the first.
        """
        rule, guard = self.config.on_reject, self.guard
        name = f"{self.defence} ({COIN})" if guard and guard.coin else self.defence
        own = "drop" if guard is None else guard.on_reject
        parts: list[str] = [rule] * (rule != own)
        if self.defence != NONE and self.config.guard_from:
            parts.append(f"from round {self.config.guard_from + 1}")
        return f"{name} ({', '.join(parts)})" if parts else name

    @property
    def label(self) -> str:
        """A label for people and for folders, unique within a plan."""
        config = self.config
        parts = [self.attack, self.defence, config.setting, config.models]
        if self.attack != NONE and self.share != USUAL_SHARE:
            parts.append(self.share.replace("/", "of"))
        if self.attack != NONE and config.leaves is not None:
            parts.append(f"leaves{config.leaves}")
        parts += [config.on_reject] * (config.on_reject != "drop")
        parts += [f"from{config.guard_from}"] * (config.guard_from > 0)
        parts += [self.workload.task] * (self.workload.task != WORD_PROBLEMS)
        return "-".join([*parts, f"seed{config.seed}"])

    def identity(self) -> dict[str, Any]:
        """Return JSON values that identify a checkpoint's run, guard file content included."""
        own = {} if self.guard is None else {"guard": self.guard.digest}
        return {
            **own,
            "attack": self.attack, "defence": self.defence, **self.workload.identity(),
            # Settings that are off are left out, so that runs that predate a setting still match.
            "config": _OFF | {key: list(v) if isinstance(v, tuple) else v
                              for key, v in asdict(self.config).items() if v is not None},
        }  # fmt: skip


def play(
    spec: Spec,
    folder: Path,
    *,
    every: int = 10,
    on_round: Callable[[dict[str, Any]], None] | None = None,
    stop: threading.Event | None = None,
    engine: EngineName = "local",
) -> dict[str, Any]:
    """Train the swarm of ``spec`` and return its entry for ``runs`` of results.json.

    The engine is not part of the run's identity: both give the same rounds. Raises whatever `build`
    and `training.train` raise.
    """
    with closing(build(spec, folder, engine)) as swarm:
        started = time.perf_counter()
        rows, examples = train(
            swarm, folder, identity=spec.identity(), every=every, on_round=on_round, stop=stop
        )
        seconds = time.perf_counter() - started
        correct, total = held_out(swarm, HELD_OUT)
    return entry(spec, rows, examples) | {
        "wall_seconds": round(seconds, 2),
        "held_out": {"correct": correct, "total": total},
    }


def build(spec: Spec, folder: Path, engine: EngineName = "local") -> Swarm:
    """Build the swarm as it is before its first round; with "ray", its nodes are actors."""
    if engine == "ray" and spec.workload.device != "cpu":
        raise ValueError(f"device: expected cpu with --engine ray, got {spec.workload.device}")
    chosen = defence_of(spec)
    config = replace(spec.config, **chosen.training)
    if spec.attack == NONE:
        config = replace(config, malicious=0)
    peers, task = spec.workload.load(config)
    coin = PublicCoin(f"swarm-{config.seed}") if chosen.coin else None
    return Swarm(
        peers, task, config, attack=adversary(spec.attack), coin=coin, folder=folder,
        guard_in=None if chosen.build is None else _guard_in(chosen.build, config, task, coin),
        session=RaySession() if engine == "ray" else None,
        member=chosen.member, terms=chosen.terms,
    )  # fmt: skip


def _guard_in(make: Build, config: SwarmConfig, task: Task, coin: PublicCoin | None) -> GuardIn:
    return lambda peer, folder: make(peer, Ground(config, task, folder, coin))


def defence_of(spec: Spec) -> Defence:
    """Return the user's own guard as a defence, or else the defence named in the spec."""
    return defence(spec.defence) if spec.guard is None else spec.guard.defence()


def entry(
    spec: Spec, rows: Sequence[dict[str, Any]], examples: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Summarise the rounds as one entry of ``runs``; counts are over the whole run."""
    excluded: dict[str, int] = {}
    for row in rows:
        for node in row["excluded"]:
            excluded.setdefault(node, row["iteration"] + 1)
    return {
        "attack": spec.shown_attack,
        "defence": spec.shown_defence,
        "task": spec.workload.task,
        "policy": ",".join(spec.workload.policies),
        "share": spec.share,
        "setting": spec.config.setting,
        "models": spec.config.models,
        "seed": spec.config.seed,
        "leaves": spec.config.leaves,
        "asr": [row["asr"] for row in rows],
        "asr_of": None if spec.config.success_on is None else prod(spec.config.success_on),
        "honest_reward": [row["honest_reward"] for row in rows],
        "mean_tokens": [row["mean_tokens"] for row in rows],
        "rejected_honest_by_round": [row["rejected_honest"] for row in rows],
        "rejected_poisoned_by_round": [row["rejected_poisoned"] for row in rows],
        "rejected": {kind: sum(row[f"rejected_{kind}"] for row in rows) for kind in KINDS},
        "submitted": {kind: sum(row[kind] for row in rows) for kind in KINDS},
        "honest_rejected_for": dict(
            sum((Counter(row["honest_rejected_for"]) for row in rows), Counter[str]())
        ),
        "abstained": sum(row["abstained"] for row in rows),
        "abstained_poisoned": sum(row["abstained_poisoned"] for row in rows),
        "excluded": excluded,
        "seconds": round(sum(row["seconds"] for row in rows), 2),
        "guard_seconds": round(sum(row["guard_seconds"] for row in rows), 2),
        "config": spec.identity()["config"],
        "examples": list(examples),
    }


def held_out(swarm: Swarm, count: int) -> tuple[int, int]:
    """Return (right, asked), counting node-0's greedy answers to problems that no run trains on."""
    rng = random.Random("held-out accuracy")
    problems = [held_out_problem(swarm.task, rng) for _ in range(count)]
    drawn = sample(
        swarm.model, swarm.tokenizer, [problem.prompt for problem in problems], 1,
        generator=torch.Generator(), temperature=0.0,
        max_new_tokens=swarm.config.max_new_tokens,
    )  # fmt: skip
    pairs = zip(drawn, problems, strict=True)
    return sum(swarm.task.reward(one.text, p.answer) > 0 for one, p in pairs), count
