"""Turns the options of ``grpo-guard eval swarm`` into a plan, filling in unspecified values."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import torch

from grpo_guard.evals.attacks.registry import NONE
from grpo_guard.evals.defences.early import shares
from grpo_guard.evals.defences.own import guard_files
from grpo_guard.evals.policies.bundled import BUNDLED
from grpo_guard.evals.policies.named import FULL_SIZE, FULL_SIZE_ROOM, RECIPE_ROOM, RECIPES, Recipe
from grpo_guard.evals.swarm.config import OnReject, SwarmConfig
from grpo_guard.evals.swarm.experiment import Spec
from grpo_guard.evals.swarm.options import SwarmOptions
from grpo_guard.evals.swarm.plan import Matrix, own_setting, plan, require_playable
from grpo_guard.evals.swarm.workload import Workload

HOLD: Final = 0.5
"""Share of a run at the full learning rate, for bundled policies. If the rate is held longer, an
attack-free swarm forgets: with 0.8 of a hundred rounds, its reward fell from 0.69 to 0.56 towards
the end, where a guard's cost is measured; with 0.4, it stayed at 0.65 to 0.70 (one seed each)."""


@dataclass(frozen=True, slots=True)
class Preset:
    """The values of a preset.

    Args:
        settings: Further fields of `SwarmConfig`.
        lr: Learning rate for policies that are not bundled; None for the one in `FULL_SIZE`.
            Bundled policies keep their own.
    """

    attacks: tuple[str, ...]
    defences: tuple[str, ...]
    seeds: int
    iterations: int
    prompts: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    lr: float | None = None


PRESETS: Final = {
    "default": Preset(("text",), (NONE, "homogeneous"), 5, 80, 16),
    "quick": Preset(("text",), (NONE, "homogeneous"), 1, 40, 16),
    "standard": Preset(
        ("text", "math", "code", "dos"),
        (NONE, "paper_logit", "homogeneous", "heterogeneous"), 2, 100, 16,
    ),
    "paper": Preset(
        ("text", "math", "code", "dos"),
        (NONE, "paper_logit", "kl_0.01", "kl_0.1", "homogeneous", "heterogeneous"), 5, 100, 32,
    ),
    "authors": Preset(
        ("text",), (NONE, "authors_logit_100", "authors_logit_60"), 5, 100, 32,
        {"advantage": "centred", "copies": True, "success_on": (16, 8)}, lr=5e-6,
    ),
}  # fmt: skip
"""The values of ``--quick``, ``--standard``, ``--paper`` and ``--recipe authors``.

The last one follows the paper's own code (github.com/NikolayBlagoev/HTTF) where it differs from the
paper's text. `docs/swarm.md` has the table.
"""
_DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,2})?")


def requested(options: SwarmOptions) -> list[Spec]:
    """Build the requested runs, after checking that they are possible.

    Raises:
        ValueError, UnknownNameError, SandboxUnavailableError: options contradict each other, or
            name something that cannot be run, read or contained.
    """
    recipe = RECIPES.get(options.policy or "")
    preset = _preset(options)
    attacks = _names("attack", options.attack, recipe.attacks if recipe else preset.attacks)
    guards = guard_files(options.guard)
    matrix = Matrix(
        attacks,
        _names("defence", options.defence, (NONE,) if guards else preset.defences),
        range(options.seed, options.seed + (options.seeds or preset.seeds)),
        setting=options.setting,
        task=options.task or (recipe.task if recipe else None),
        max_new_tokens=options.max_new_tokens or _room(options, recipe),
        shares=_shares(options),
        on_reject=[cast(OnReject, name) for name in _names("on-reject", options.on_reject, ())],
        guards=guards,
    )
    specs = plan(matrix, _base(options, recipe, preset, matrix), _workload(options))
    require_playable(specs)
    return specs


def _preset(options: SwarmOptions) -> Preset:
    switches = {"quick": options.quick, "standard": options.standard, "paper": options.paper}
    chosen = [name for name, on in switches.items() if on]
    if len(chosen) > 1:
        raise ValueError(f"expected one preset, got --{' and --'.join(chosen)}")
    size = PRESETS[chosen[0] if chosen else "default"]
    if options.recipe is None:
        return size
    recipe = PRESETS[options.recipe]
    if not chosen:
        return recipe
    return replace(recipe, seeds=size.seeds, iterations=size.iterations, prompts=size.prompts)


def _base(
    options: SwarmOptions, recipe: Recipe | None, preset: Preset, matrix: Matrix
) -> SwarmConfig:
    # --quick and --standard set the length; a recipe on its own means the paper's full run.
    shape = preset if recipe is None or options.quick or options.standard else PRESETS["paper"]
    malicious, nodes = matrix.shares[0]
    base = SwarmConfig(
        iterations=options.iterations or shape.iterations,
        prompts=options.prompts or shape.prompts,
        group_size=options.group_size,
        nodes=nodes,
        malicious=malicious,
        temperature=options.temperature,
        top_k=options.top_k,
        models=options.models,
        setting=matrix.setting or own_setting(matrix.attacks[0]),
        leaves=options.leaves,
        guard_from=options.guard_from,
    )
    if _small(options):
        base = replace(base, hold=HOLD, **preset.settings)
    else:
        base = replace(base, **FULL_SIZE, **preset.settings)
        base = replace(base, lr=preset.lr or base.lr)
    return base if options.lr is None else replace(base, lr=options.lr)


def _workload(options: SwarmOptions) -> Workload:
    own = "cuda" if torch.cuda.is_available() and not _small(options) else "cpu"
    device = options.device or own
    if not _DEVICE.fullmatch(device):
        raise ValueError(f"--device: expected cpu, cuda or cuda:NUMBER, got {device!r}")
    if device != "cpu" and not torch.cuda.is_available():
        raise ValueError(f"--device: expected cpu, since torch finds no GPU here, got {device}")
    return Workload(
        policy=options.policy,
        data=options.data,
        calc=options.calc,
        device=device,
        # bfloat16 products are emulated on most CPUs: slower and less exact.
        dtype="float32" if device == "cpu" else "bfloat16",
    )


def _small(options: SwarmOptions) -> bool:
    """Whether the options train only bundled policies."""
    names = (options.policy or "").split(",")
    return options.policy is None or all(name.strip() in BUNDLED for name in names)


def _room(options: SwarmOptions, recipe: Recipe | None) -> int | None:
    if recipe is not None:
        return RECIPE_ROOM
    return None if _small(options) else FULL_SIZE_ROOM


def _shares(options: SwarmOptions) -> list[tuple[int, int]]:
    usual = SwarmConfig()
    if options.share is None:
        malicious = usual.malicious if options.malicious is None else options.malicious
        return [(malicious, options.nodes or usual.nodes)]
    if options.nodes is not None or options.malicious is not None:
        raise ValueError("--share: expected neither --nodes nor --malicious with it")
    _names("share", options.share, ())
    return shares(options.share)


def _names(option: str, value: str | None, default: Collection[str]) -> list[str]:
    if value is None:
        return list(default)
    found = [name.strip() for name in value.split(",") if name.strip()]
    if not found:
        raise ValueError(f"--{option}: expected at least one name, got none")
    return found
