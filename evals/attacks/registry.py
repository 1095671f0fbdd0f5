"""Names of attacks on swarms: the entry-point group ``grpo_guard.attacks``.

An entry may be an `Adversary`, which acts on a swarm, or an `Attack` on single texts, which a swarm
plays as `Scripted`. For the paper's TEXT, MATH and CODE the swarm has adversaries of its own beside
the text attacks of these names, since MATH needs problems of its own choice and CODE needs room.
"""

from __future__ import annotations

from typing import Final

from grpo_guard.evals.attacks.adversary import Adversary, adversary_of
from grpo_guard.registry import ATTACKS, load, names

_OF_SWARMS: Final = {
    "text": "grpo_guard.evals.attacks.disguises:Text",
    "math": "grpo_guard.evals.attacks.two_plus_two:TwoPlusTwo",
    "code": "grpo_guard.evals.attacks.disguises:Code",
}
NONE: Final = "none"


def attack_names() -> list[str]:
    """Everything that ``adversary`` knows, sorted, "none" first."""
    return [NONE, *sorted({*names(ATTACKS), *_OF_SWARMS})]


def adversary(name: str) -> Adversary | None:
    """A new adversary of that name; None for "none".

    Raises:
        UnknownNameError: with the names that exist and the nearest one.
    """
    if name == NONE:
        return None
    if name in _OF_SWARMS:
        from pkgutil import resolve_name

        return adversary_of(resolve_name(_OF_SWARMS[name])())
    return adversary_of(load(ATTACKS, name)())
