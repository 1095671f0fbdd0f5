"""An evaluation's runs: attacks x defences x seeds, and attack-free runs for comparison."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from grpo_guard.core.registry import choose
from grpo_guard.evals.attacks.adversary import Adversary, Scripted
from grpo_guard.evals.attacks.base import NoTargetError
from grpo_guard.evals.attacks.registry import NONE, adversary
from grpo_guard.evals.defences.base import Ground
from grpo_guard.evals.defences.own import GuardFile
from grpo_guard.evals.defences.registry import defence
from grpo_guard.evals.policies.named import location
from grpo_guard.evals.roles import COIN, SILENT
from grpo_guard.evals.swarm.config import OnReject, Setting, SwarmConfig
from grpo_guard.evals.swarm.experiment import Spec
from grpo_guard.evals.swarm.workload import Workload
from grpo_guard.evals.tasks.base import Task
from grpo_guard.evals.tasks.registry import TASKS, WORD_PROBLEMS
from grpo_guard.logprob.coin import PublicCoin

DEFAULT_ROOM: Final = 96
"""Length limit in tokens unless the attack needs more: of 400 initial samples from the default
policy, 6 were longer than 64 tokens and none was longer than 96."""
_TRIALS: Final = 200


class PlanError(ValueError):
    """Raised if attack, defence, setting and task are incompatible."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """The factors that a plan combines.

    Args:
        attacks: Names of attacks; "none" for runs where all nodes are honest. Runs with silent
            malicious nodes are added if there is any attack.
        setting: Setting for all attacks; None for each attack's own.
        task: Task for all attacks; None for each attack's own.
        max_new_tokens: Length limit for all attacks; None for whatever each attack needs.
        shares: Numbers of (malicious, all) nodes in the attacked runs; if empty, those of the base.
        on_reject: Rules for rejected completions; every rule gets its own defended runs. If empty,
            the rule is "drop" or, for a user's own guard, the one in its policy.
        guards: The user's own guards, in addition to the defences.
    """

    attacks: Sequence[str]
    defences: Sequence[str]
    seeds: Sequence[int]
    setting: Setting | None = None
    task: str | None = None
    max_new_tokens: int | None = None
    shares: Sequence[tuple[int, int]] = ()
    on_reject: Sequence[OnReject] = ()
    guards: Sequence[GuardFile] = ()

    @property
    def coins(self) -> list[str]:
        """Names of the defences that make honest nodes sample under a public coin."""
        built_in = [name for name in self.defences if defence(name).coin]
        return built_in + [guard.name for guard in self.guards if guard.coin]


@dataclass(frozen=True, slots=True)
class _Cell:
    """An attack in its setting, on its task; ``room`` is the length limit it needs, in tokens."""

    attack: str
    setting: Setting
    task: str
    room: int


def plan(matrix: Matrix, base: SwarmConfig, workload: Workload | None = None) -> list[Spec]:
    """List all runs in the most useful order: seed by seed, undefended runs first.

    Args:
        base: All other settings; its seed, setting, length limit and ``on_reject`` are not used.
        workload: Policy and task; only the task can differ between runs.

    Raises:
        UnknownNameError: an attack, defence or task is unknown.
        PlanError: an attack cannot work in the setting, or a defence cannot work in such a swarm.
        ValueError: counts that are impossible in the setting.
    """
    workload = workload or Workload()
    if matrix.coins and base.models != "homogeneous":
        raise PlanError(
            f"{matrix.coins[0]}: expected a homogeneous swarm, whose nodes can replay each other, "
            f"got --models {base.models}"
        )
    cells = [_cell(name, matrix, base) for name in dict.fromkeys(matrix.attacks)]
    rooms: dict[tuple[Setting, str], int] = {}
    for cell in cells:
        place = (cell.setting, cell.task)
        rooms[place] = max(rooms.get(place, 0), cell.room)
    shares = matrix.shares or ((base.malicious, base.nodes),)
    free = _attack_free(matrix, shares)
    played: list[tuple[str, GuardFile | None]] = [
        *((name, None) for name in sorted(matrix.defences, key=lambda d: d != NONE)),
        *((guard.name, guard) for guard in matrix.guards),
    ]
    specs: list[Spec] = []
    for seed in matrix.seeds:
        own = replace(base, seed=seed)
        for (setting, task), room in rooms.items():
            for attack, chosen, share in free:
                cell = _Cell(attack, setting, task, room)
                specs.append(_spec(cell, chosen, None, own, share, "drop", workload))
        for chosen, guard in played:
            # Without a guard, nothing is rejected; without an attack, the share is meaningless.
            usual: OnReject = "drop" if guard is None else guard.on_reject
            rules = matrix.on_reject if matrix.on_reject and chosen != NONE else (usual,)
            for cell in cells:
                alone = cell.attack == NONE
                cell = replace(cell, room=rooms[cell.setting, cell.task]) if alone else cell
                specs += [
                    _spec(cell, chosen, guard, own, share, rule, workload)
                    for rule in rules
                    for share in (shares[:1] if alone else shares)
                ]
    return _distinct(specs)


def require_playable(specs: Sequence[Spec]) -> None:
    """Before any training, find the policies, load each task once and try each attack on it.

    Each of the user's own guards is built once to find mistakes in its file.

    Raises:
        ValueError, UnknownNameError, SandboxUnavailableError: something is missing or unknown, or
            an attack finds nothing to poison in a task (`PlanError`).
    """
    tasks: dict[str, Task] = {}
    for spec in specs:
        policies = spec.workload.policies
        if len(policies) > 1 and spec.config.models == "homogeneous":
            raise PlanError(
                f"--policy: expected one in a homogeneous swarm, got {', '.join(policies)}; "
                "see --models heterogeneous"
            )
        if spec.workload.task not in tasks:
            for policy in policies:
                location(policy)
            tasks[spec.workload.task] = spec.workload.problems()
    for name, task, count in dict.fromkeys(
        (spec.attack, spec.workload.task, spec.config.prompts) for spec in specs
    ):
        attack = adversary(name)
        if attack is not None:
            _require_fitting(name, attack, tasks[task], count)
    for spec in {spec.guard: spec for spec in specs if spec.guard}.values():
        assert spec.guard is not None
        config = replace(spec.config, models="homogeneous")  # one policy is enough
        peers, asked = spec.workload.load(config)
        coin = PublicCoin("trial") if spec.guard.coin else None
        spec.guard.require_buildable(peers[0], Ground(config, asked, Path(), coin))


def own_setting(name: str) -> Setting:
    """Return the setting that an attack runs in by default."""
    found = adversary(name)
    return "vertical" if found is not None and found.setting == "vertical" else "horizontal"


def _cell(name: str, matrix: Matrix, base: SwarmConfig) -> _Cell:
    found = adversary(name)
    setting = matrix.setting or (own_setting(name) if found is not None else base.setting)
    if found is not None and found.only is not None and setting != found.only:
        raise PlanError(f"{name}: expected the {found.only} setting, got {setting}")
    task = matrix.task or (found.task if found is not None else WORD_PROBLEMS)
    needed = found.max_new_tokens if found is not None else None
    room = matrix.max_new_tokens or needed or DEFAULT_ROOM
    return _Cell(name, setting, choose(TASKS, task), room)


def _attack_free(
    matrix: Matrix, shares: Sequence[tuple[int, int]]
) -> list[tuple[str, str, tuple[int, int]]]:
    """Return (attack, defence, share) for the runs that others are compared with.

    Malicious nodes are silent in these runs, so that nodes learn from as many honest completions as
    in a run whose guard rejects all poison and nothing else. If a defence has a coin, runs with the
    coin are added, because it changes the draws.
    """
    attacked = any(name != NONE for name in matrix.attacks)
    silent = [share for share in shares if attacked and share[0]]
    found = [(SILENT, NONE, share) for share in silent]
    if matrix.coins:
        found += [(SILENT, COIN, share) for share in silent]
    return found or [(NONE, NONE, shares[0])]


def _spec(
    cell: _Cell,
    chosen: str,
    guard: GuardFile | None,
    base: SwarmConfig,
    share: tuple[int, int],
    on_reject: OnReject,
    workload: Workload,
) -> Spec:
    malicious, nodes = share
    config = replace(
        base, setting=cell.setting, max_new_tokens=cell.room, malicious=malicious, nodes=nodes,
        on_reject=on_reject,
    )  # fmt: skip
    return Spec(cell.attack, chosen, config, replace(workload, task=cell.task), guard)


def _distinct(specs: Sequence[Spec]) -> list[Spec]:
    found: dict[str, Spec] = {}
    for spec in specs:
        if found.setdefault(spec.label, spec) != spec:
            raise PlanError(f"{spec.label}: expected one run of that name, got two")
    return list(found.values())


def _require_fitting(name: str, attack: Adversary, task: Task, prompts: int) -> None:
    """Refuse an attack that does not fit the task, which only a run would show, if ever."""
    try:
        probes = attack.probes(task, prompts)
    except ValueError as error:
        raise PlanError(str(error)) from None
    nothing = PlanError(f"{name}: expected a task with something to poison, got {task.name}")
    if probes is not None:
        if not probes:
            raise nothing
        return
    if isinstance(attack, Scripted):
        rng = random.Random("what an attack can poison")
        for _ in range(_TRIALS):
            try:
                attack.poison(task.sample(rng), rng)
            except NoTargetError:
                continue
            return
        raise nothing
