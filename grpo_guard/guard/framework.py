"""Find the adapter of the trainer that a reward function was written for.

Adapters are registered as entry points of the group ``grpo_guard.adapters``, by this package and
others alike. The core depends on no adapter, and importing grpo_guard loads none.
"""

import inspect
import logging
from collections import defaultdict
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, cast

from grpo_guard.core.moved import REMOVED
from grpo_guard.core.naming import UnknownNameError, choose

logger = logging.getLogger("grpo_guard")

ADAPTERS = "grpo_guard.adapters"
"""The entry-point group: names are values of ``framework=``, targets `RewardAdapter` classes."""
_warned: set[str] = set()


class FrameworkError(TypeError):
    """The calling convention is not recognised, or the framework cannot do what was asked."""


class RewardAdapter(Protocol):
    """One trainer's way of calling a reward function.

    A class can also declare ``recognised_by``, a frozenset of parameter names. `guard` then picks
    the adapter for any function that has all these parameters. An adapter without ``recognised_by``
    is used only if ``framework=`` names it.
    """

    def wrap(self, reward: Any, guard: Any) -> Any:
        """Wrap a reward function, or a list of them, in a guarded function with the same signature.
        Raises FrameworkError if this trainer cannot do what the guard's policy asks."""


def adapter_names() -> list[str]:
    """The names that ``framework=`` accepts, sorted."""
    return sorted(_entries())


def only_reward(functions: Sequence[Any], given: dict[str, Any]) -> Any:
    """Return the reward function, or list of reward functions, that a guard was called with, either
    positionally or as ``reward=``, which is removed from ``given``. Raises TypeError if the guard
    was called as if it were a reward function, or with several functions."""
    if not functions and "reward" in given:
        functions = [given.pop("reward")]
    if given or not functions or (len(functions) > 1 and not all(map(callable, functions))):
        what = f", and was called with {', '.join(sorted(given)[:8])}" if given else ""
        raise TypeError(
            f"this guard wraps no reward function{what}: write guard(reward), and give the "
            "trainer what that returns"
        )
    if len(functions) > 1:
        names = ", ".join(str(getattr(one, "__name__", "...")) for one in functions)
        raise TypeError(
            f"guard: expected one reward function or one list, got {len(functions)} functions; "
            f"guard all of them as one list: guard([{names}])"
        )
    return functions[0]


def adapter_for(reward: Any, framework: str | None = None) -> RewardAdapter:
    """Return the adapter for a reward function, or for a list of reward functions. Raises
    FrameworkError if the reward is not callable, the name is unknown, the signature matches no
    adapter or several, or the adapter cannot be loaded."""
    entries = _entries()
    if not entries:
        raise FrameworkError(
            "no trainer adapters are registered: the installed grpo-guard is older than the one "
            "that is imported; install it again (in a checkout: pip install --no-deps -e .)"
        )
    if framework is not None:
        try:
            choose(sorted(entries), framework)
        except UnknownNameError as error:
            where = REMOVED.get(f"{ADAPTERS}.{framework}")
            raise FrameworkError(f"framework: {error}{f'; {where}' if where else ''}") from None
    functions = list(reward) if isinstance(reward, list | tuple) else [reward]
    if not functions:
        raise FrameworkError("reward: expected a function or a non-empty list, got an empty list")
    names = {framework or _recognise(function, entries) for function in functions}
    if len(names) > 1:
        raise FrameworkError(f"reward functions of several frameworks in one list: {sorted(names)}")
    (name,) = names
    try:
        adapter = _only(name, entries).load()
    except Exception as error:  # another package's module can raise anything
        raise FrameworkError(
            f"the adapter {name!r} ({_origin(_only(name, entries))}) cannot be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error
    return cast(RewardAdapter, adapter())


def _entries() -> dict[str, list[EntryPoint]]:
    """Map each name to its entry points; more than one if several packages claim the name."""
    found: dict[str, list[EntryPoint]] = defaultdict(list)
    for entry in entry_points(group=ADAPTERS):
        if entry.value not in (other.value for other in found[entry.name]):
            found[entry.name].append(entry)
    return dict(found)


def _only(name: str, entries: dict[str, list[EntryPoint]]) -> EntryPoint:
    first, *others = entries[name]
    if others:
        claims = ", ".join(_origin(entry) for entry in (first, *others))
        raise FrameworkError(
            f"framework: {name!r} names the adapters of several packages: {claims}; uninstall all "
            "but one"
        )
    return first


def _origin(entry: EntryPoint) -> str:
    package = entry.dist.name if entry.dist is not None else "an unnamed package"
    return f"{entry.value} of {package}"


def _recognise(function: Any, entries: dict[str, list[EntryPoint]]) -> str:
    """Return the name of the only adapter whose parameters the function has.

    An adapter that asks for a superset of another's parameters wins, so that neither installation
    order nor table order decides.
    """
    if isinstance(function, list | tuple):
        raise FrameworkError(
            "reward: expected one flat list of functions, got a list within a list"
        )
    if not callable(function):
        raise FrameworkError(
            f"reward: expected a callable, got {function!r:.80}. A reward model given by its name "
            "cannot be wrapped; wrap a function that calls it."
        )
    try:
        parameters = [*inspect.signature(function).parameters]
    except (TypeError, ValueError):
        parameters = []
    known, broken = _recognised_by(entries)
    fitting = {name: asked for name, asked in known.items() if asked.issubset(parameters)}
    best = sorted(
        name
        for name, asked in fitting.items()
        if not any(asked < other for other in fitting.values())
    )
    if len(best) == 1:
        return best[0]
    shown = f"{function!r:.80} with parameters ({', '.join(parameters)})"
    if best:
        raise FrameworkError(
            f"cannot tell which trainer calls {shown}: {' and '.join(best)} recognise it. "
            f"Choose one with framework={' or framework='.join(map(repr, best))}."
        )
    conventions = "; ".join(
        f"{name}: {', '.join(sorted(asked))}" for name, asked in sorted(known.items())
    )
    by_name = sorted(entries.keys() - known.keys() - broken.keys())
    raise FrameworkError(
        f"cannot tell which trainer calls {shown}. Known by their parameters: {conventions}. "
        + (f"Known by name only: {', '.join(by_name)}. " if by_name else "")
        + "".join(f"Not loaded: {name} ({why}). " for name, why in sorted(broken.items()))
        + "Set framework=... to override."
    )


def _recognised_by(
    entries: dict[str, list[EntryPoint]],
) -> tuple[dict[str, frozenset[str]], dict[str, str]]:
    """Map adapter names to the parameters they ask for, and unloadable adapters to the reason.

    An adapter that cannot be loaded recognises nothing, because a broken package must not disable
    other packages' adapters; the failure is logged once.
    """
    known: dict[str, frozenset[str]] = {}
    broken: dict[str, str] = {}
    for name in entries:
        try:
            asked = getattr(_only(name, entries).load(), "recognised_by", ())
            if isinstance(asked, str) or not all(isinstance(one, str) for one in asked):
                raise TypeError("recognised_by: expected a frozenset of parameter names")
        except Exception as error:
            broken[name] = f"{type(error).__name__}: {error}"
            if name not in _warned:
                _warned.add(name)
                logger.warning("grpo-guard: adapter %r is not used: %s", name, broken[name])
            continue
        if asked:
            known[name] = frozenset(asked)
    return known, broken
