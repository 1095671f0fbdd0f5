"""Names of attacks on swarms: the entry-point group ``grpo_guard.attacks`` and, in a checkout, the
attacks in `studies.adaptive`.

An entry can be an `Adversary`, which acts on a swarm, or an `Attack` on individual texts, which a
swarm runs as `Scripted`. The name "math" has both an adversary and an attack on texts, because the
paper's "2 + 2 = 5" needs problems chosen by the attacker.
"""

from collections.abc import Mapping
from typing import Any, Final

from grpo_guard.core.registry import ATTACKS, UnknownNameError, load, names
from grpo_guard.evals.attacks.adversary import Adversary, Scripted, adversary_of
from grpo_guard.evals.attacks.base import Attack
from grpo_guard.evals.attacks.two_plus_two import TwoPlusTwo
from grpo_guard.evals.checkout import known, study

_MATH: Final = "math"
NONE: Final = "none"


def attack_names() -> list[str]:
    """Return every name that ``adversary`` accepts, sorted, with "none" first."""
    return [NONE, *sorted({*names(ATTACKS), *_of_checkout()})]


def adversary(name: str) -> Adversary | None:
    """Create the adversary with that name, or from your own ``package.module:Class``; None for
    "none".

    Raises UnknownNameError, which lists the known names; also raised if the class is not an attack.
    """
    if name == NONE:
        return None
    if name == _MATH:
        return TwoPlusTwo()
    found = adversary_of(_made(name))
    if ":" in name:
        found.name = name  # for the results
    return found


def on_texts(name: str) -> Attack | Scripted:
    """Create an attack that poisons a single honest completion, without a swarm around it.

    Raises UnknownNameError, which lists the known names, or if the attack needs a swarm.
    """
    found = _made(name)
    if isinstance(found, Adversary) and not isinstance(found, Scripted):
        raise UnknownNameError(
            f"{name} needs a live swarm: grpo-guard eval swarm --attack {name}; expected one of "
            f"{', '.join(text_attack_names())}, or package.module:Class"
        )
    return found


def text_attack_names() -> list[str]:
    """Return the registered attacks that `on_texts` accepts, sorted."""
    kinds = {name: _kind(name) for name in attack_names() if name != NONE}
    return [n for n, k in kinds.items() if issubclass(k, Scripted) or not issubclass(k, Adversary)]


def _of_checkout() -> Mapping[str, str]:
    """Return the attacks available only in a checkout, as ``package.module:Class`` by name."""
    found = study("adaptive")
    return {} if found is None else found.ATTACKS


def _kind(name: str) -> Any:
    more = _of_checkout()
    if ":" not in name:
        known(sorted({*names(ATTACKS), *more}), name)
    return load(ATTACKS, more.get(name, name))


def _made(name: str) -> Attack | Adversary:
    kind = _kind(name)
    _require_attack(name, kind)  # before the class is called, which may do anything
    try:
        found: Attack | Adversary = kind()
    except Exception as error:
        raise UnknownNameError(
            f"{name}: expected a class that takes no arguments, got {type(error).__name__}: "
            f"{error!s:.200}"
        ) from None
    return found


def _require_attack(name: str, kind: Any) -> None:
    parts = ("poison", "success")
    if isinstance(kind, type) and (
        issubclass(kind, Adversary) or all(callable(getattr(kind, p, None)) for p in parts)
    ):
        return
    raise UnknownNameError(
        f"{name}: expected an Adversary, or an Attack with poison() and success(), got "
        f"{kind.__name__ if isinstance(kind, type) else type(kind).__name__}"
    )
