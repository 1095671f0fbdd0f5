"""Names that commands check first: a typo should not cost the seconds that loading torch takes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from grpo_guard.config import ConfigError, GuardConfig
from grpo_guard.config.presets import PRESETS
from grpo_guard.core.registry import VERIFIERS, UnknownNameError, choose, names
from grpo_guard.evals.attacks.registry import attack_names
from grpo_guard.evals.checkout import known, study
from grpo_guard.evals.roles import COIN, NONE, PRESET

INSTALLED: Final = (
    COIN, "kl_0.01", "kl_0.1", "paper_logit", "seed_replay", "homogeneous", "heterogeneous",
    "different_weights_reader", "different_weights_frozen", "same_weights",
)  # fmt: skip
"""Defences of `grpo_guard.evals.defences.registry` that are not a single verifier."""
ELSEWHERE: Final = (
    "judge", "reference_likelihood", "remote", "secrets", "pii", "language", "toxicity",
)  # fmt: skip
"""Verifiers that need what a swarm run does not have: a judge, a reference model, a library."""
ON_REJECT: Final = ("zero", "drop", "no_gain")
"""What ``--on-reject`` knows; the same as `OnReject` of a swarm's settings, without torch."""
_SHARE: Final = re.compile(r"([0-9]{1,4})/([0-9]{1,4})")


def defences() -> list[str]:
    """What ``--defence`` knows, "none" first; the same as `defence_names`, without torch."""
    alone = [name for name in names(VERIFIERS) if name not in ELSEWHERE]
    more = study("baselines")
    return [NONE, *sorted({*INSTALLED, *alone, *(more.NAMES if more else ())})]


def require_names(option: str, value: str | None, expected: Iterable[str]) -> None:
    """Refuse a name that is not known.

    Args:
        option: As it was typed, such as ``--attack``.
        value: Names with commas; None = the option was not given.
        expected: What is known. A name with a colon is a class and is looked at later.

    Raises:
        UnknownNameError: with the option and the name that was probably meant.
    """
    all_names = list(expected)
    for name in (value or "").split(","):
        if name.strip() and ":" not in name:
            try:
                known(all_names, name.strip())
            except UnknownNameError as error:
                raise UnknownNameError(f"{option}: {error}") from None


def require_attacks(option: str, value: str | None) -> None:
    """`require_names` of attacks."""
    require_names(option, value, attack_names())


def shares(value: str | None) -> list[tuple[int, int]]:
    """Read ``--share``: (malicious nodes, all nodes) for each name; [] if it was not given.

    Raises:
        ValueError: one of them is not such a pair.
    """
    found = []
    for text in (value or "").split(","):
        if text.strip():
            match = _SHARE.fullmatch(text.strip())
            if match is None:
                raise ValueError(f"--share: expected malicious/nodes such as 1/4, got {text!r:.99}")
            found.append((int(match[1]), int(match[2])))
    return found


def require_honest(value: Path | None) -> None:
    """Refuse ``--honest`` if there is nothing to read.

    Raises:
        ValueError: with the path.
    """
    if value is not None and not value.exists():
        raise ValueError(f"--honest: expected a file of completions, found none at {value}")
    if value is not None and value.is_file() and not value.stat().st_size:
        raise ValueError(f"--honest: expected at least one completion, got the empty file {value}")


def require_guards(value: Iterable[str] | None) -> None:
    """Refuse what ``--guard`` names unless it is a preset's name or a readable guard file.

    Raises:
        ConfigError: with the file and the field, or the nearest name; or two files have one name.
    """
    files = dict[str, str]()
    for name in value or ():
        if files.setdefault(Path(name).name, name) != name:
            raise ConfigError(f"--guard: expected files of different names, got {name} and another")
        if name.startswith(PRESET):
            try:
                choose(list(PRESETS), name.removeprefix(PRESET))
            except UnknownNameError as error:
                raise ConfigError(f"--guard {PRESET}: {error}") from None
        elif Path(name).suffix in (".yaml", ".yml"):
            GuardConfig.from_yaml(name)
        else:
            raise ConfigError(f"--guard: expected FILE.yaml or preset:NAME, got {name!r:.200}")
