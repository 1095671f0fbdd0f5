"""Which runs an evaluation consists of: attacks x defences x seeds, and attack-free runs beside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from grpo_guard.evals.attacks.adversary import Adversary
from grpo_guard.evals.attacks.registry import NONE, adversary
from grpo_guard.evals.defences.registry import defence
from grpo_guard.evals.swarm.config import Setting, SwarmConfig
from grpo_guard.evals.swarm.experiment import Spec

DEFAULT_ROOM: Final = 64
"""Tokens of the longest completion, where the attack needs no more."""


@dataclass(frozen=True, slots=True)
class Preset:
    """What a preset's name stands for."""

    attacks: tuple[str, ...]
    defences: tuple[str, ...]
    seeds: int
    iterations: int
    prompts: int


PRESETS: Final = {
    "default": Preset(("text",), (NONE, "homogeneous"), 5, 80, 16),
    "quick": Preset(("text",), (NONE, "homogeneous"), 1, 50, 16),
    "standard": Preset(
        ("text", "math", "code", "dos"),
        (NONE, "paper_logit", "homogeneous", "heterogeneous"), 2, 80, 16,
    ),
    "paper": Preset(
        ("text", "math", "code", "dos"),
        (NONE, "paper_logit", "kl_0.01", "kl_0.1", "homogeneous", "heterogeneous"), 5, 100, 32,
    ),
}  # fmt: skip


class PlanError(ValueError):
    """Attack, defence and setting do not go together."""


def plan(
    attacks: Sequence[str],
    defences: Sequence[str],
    seeds: Sequence[int],
    base: SwarmConfig,
    *,
    setting: str | None = None,
    max_new_tokens: int | None = None,
    model: str | None = None,
) -> list[Spec]:
    """All runs in the order in which they are best done: seed by seed, undefended ones first.

    Args:
        attacks: Names; "none" for attack-free runs, which are added where an attack is played.
        defences: Names.
        seeds: Of all of them.
        base: Everything that is the same for all; its seed, setting and length limit are not used.
        setting: For all attacks; None = each in its own.
        max_new_tokens: For all attacks; None = what each needs.
        model: As in `Spec`.

    Raises:
        UnknownNameError: of an attack or defence.
        PlanError: an attack cannot act in the setting, or a defence not in such a swarm.
        ValueError: counts that are impossible in the setting.
    """
    known = {name: adversary(name) for name in attacks}
    for name in defences:
        if defence(name).coin and base.models != "homogeneous":
            raise PlanError(
                f"{name}: expected a homogeneous swarm, whose nodes can replay each other, got "
                f"--models {base.models}"
            )
    rooms: dict[str, int] = {}
    cells: list[tuple[str, str]] = []
    for name, found in known.items():
        own = _setting(name, found, setting, base)
        room = max_new_tokens or (found and found.max_new_tokens) or DEFAULT_ROOM
        rooms[own] = max(rooms.get(own, 0), room)
        cells.append((name, own))
    specs: list[Spec] = []
    for seed in seeds:
        for own, room in rooms.items():
            specs.append(Spec(NONE, NONE, _config(base, seed, own, room), model))
        for chosen in sorted(defences, key=lambda d: d != NONE):
            for name, own in cells:
                attacking = known[name]
                needed = max_new_tokens or (attacking and attacking.max_new_tokens)
                room = rooms[own] if name == NONE else needed or DEFAULT_ROOM
                specs.append(Spec(name, chosen, _config(base, seed, own, room), model))
    return list(dict.fromkeys(specs))


def own_setting(name: str) -> Setting:
    """The setting in which an attack is played unless another is asked for.

    Raises:
        UnknownNameError: there is no attack of that name.
    """
    found = adversary(name)
    return "vertical" if found is not None and found.setting == "vertical" else "horizontal"


def _setting(name: str, found: Adversary | None, asked: str | None, base: SwarmConfig) -> str:
    own = asked or (found.setting if found is not None else base.setting)
    if found is not None and found.only is not None and own != found.only:
        raise PlanError(f"{name}: expected the {found.only} setting, got {own}")
    return own


def _config(base: SwarmConfig, seed: int, setting: str, room: int) -> SwarmConfig:
    changes = {"seed": seed, "setting": setting, "max_new_tokens": room}
    return replace(base, **changes)  # type: ignore[arg-type]
