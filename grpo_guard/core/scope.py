"""What a verdict depends on: its completion, the batch, or everything before it.

A verifier's `Scope` determines how its calls may be split and joined:

| scope | a verdict depends on | consequence |
|---|---|---|
| ``"completion"`` | its own completion | any split of a batch gives the same verdicts |
| ``"batch"`` | also the other completions in the call | a batch must stay whole |
| ``"history"`` | also earlier calls (counts, a ledger) | batches must keep their order |
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, ClassVar, Final, Literal, TypeAlias, get_args

from grpo_guard.core.arguments import worded_class
from grpo_guard.core.completion import Completion
from grpo_guard.core.pages import page
from grpo_guard.core.verdict import Verdict

Scope: TypeAlias = Literal["completion", "batch", "history"]
"""What a verdict depends on, from narrowest to widest."""
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)

_NEW_NAMES: Final = {
    "judges_alone": "scope",
    "looks_alone": "scope",
    "compares": "scope",
    "joins": "shares_calls",
}
"""Name of a verifier's attribute in 0.3.0 -> the attribute that replaces it."""
_VALUES: Final = {
    "scope": 'scope = "completion", "batch" or "history"',
    "shares_calls": "shares_calls = True or False",
}


def widest(scopes: Iterable[Scope]) -> Scope:
    """Return the widest of several scopes; ``"completion"`` if there are none."""
    return max(scopes, key=SCOPES.index, default="completion")


class _Renamed:
    """A renamed attribute. Reading or setting it raises an error that names the new attribute."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        raise AttributeError(_message(owner, self._name), name=self._name)

    def __set__(self, instance: object, value: object) -> None:
        raise AttributeError(_message(type(instance), self._name), name=self._name)


def _message(owner: type, old: str) -> str:
    now = _VALUES[_NEW_NAMES[old]]
    return f"{owner.__name__}.{old} was replaced: say {now}; see {page('migration')}"


# A rule takes about 12 us per character at worst (`arithmetic` on endless equations), so this many
# characters take a tenth of the default time-out. Without a limit, one author's 240 texts of
# 250,000 characters would make the guard abstain on everybody's batch.
MOST_CHARACTERS: Final = 4_000_000


class Runnable(ABC):
    """An object that `supervised` can run: a verifier, or the part of a verifier that reads texts.

    Attributes:
        most_characters: Maximum number of characters of text in one call. A longer batch is split
            if the scope is ``"completion"``. None sets no limit, for a verifier that splits batches
            itself.
    """

    most_characters: ClassVar[int | None] = MOST_CHARACTERS

    @property
    @abstractmethod
    def name(self) -> str:
        """The verifier's name in verdicts."""

    @property
    @abstractmethod
    def timeout(self) -> float | None:
        """Time limit for one call, in seconds; None for no limit."""

    @property
    @abstractmethod
    def scope(self) -> Scope:
        """What a verdict depends on."""

    @abstractmethod
    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        """Return one verdict per completion, in the same order."""

    @property
    def shares_calls(self) -> bool:
        """Whether one call of `verify_each` may cover the batches of several senders.

        A server then judges requests together. Otherwise each request is a separate call, which
        suits a verifier that waits for another server or gains nothing from joint calls.
        """
        return self.scope == "completion"

    def verify_each(self, batches: Sequence[Sequence[Completion]]) -> list[list[Verdict]]:
        """Return, for each batch, the verdicts that `verify` gives on that batch alone.

        By default, `verify` is called once for all batches if ``scope`` is ``"completion"``, and
        otherwise once for each batch. Batches may share the work on single completions, but nothing
        that affects a decision.
        """
        if self.scope != "completion":
            return [self.verify(batch) for batch in batches]
        everything = [completion for batch in batches for completion in batch]
        found = self.verify(everything)
        if len(found) != len(everything):
            raise ValueError(
                f"{self.name}.verify: expected {len(everything)} verdicts, got {len(found)}"
            )
        left = iter(found)
        return [list(islice(left, len(batch))) for batch in batches]

    judges_alone = _Renamed()
    looks_alone = _Renamed()
    compares = _Renamed()
    joins = _Renamed()


def check_class(kind: type[Runnable]) -> None:
    """Check a new verifier class, and translate old attributes with a DeprecationWarning. Raises
    TypeError if the class's scope is not in `SCOPES`, an old attribute cannot be translated, or the
    class overrides `verify` but keeps the `verify_each` that its base class overrides."""
    _adopt_new_names(kind)
    if "__init__" in vars(kind):
        worded_class(kind)
    declared = vars(kind).get("scope", SCOPES[0])
    if declared not in SCOPES and not hasattr(declared, "__get__"):
        raise TypeError(f"{kind.__name__}: expected {_VALUES['scope']}, got {declared!r:.80}")
    _require_each(kind)


def _adopt_new_names(kind: type[Runnable]) -> None:
    for old, now in _NEW_NAMES.items():
        # Declared by the class itself or by a mixin.
        declared = next(vars(base)[old] for base in kind.__mro__ if old in vars(base))
        if isinstance(declared, _Renamed):
            continue
        if now not in vars(kind):  # else the class supports both releases
            if not isinstance(declared, bool):
                raise TypeError(_message(kind, old))
            value = declared if now == "shares_calls" else "completion" if declared else "batch"
            message = f"{kind.__name__}: {old} = {declared} is now {now} = {value!r}"
            # The frames in between are `check_class`, `__init_subclass__` and `ABCMeta.__new__`.
            warnings.warn(f"{message}; see {page('migration')}", DeprecationWarning, stacklevel=5)
            setattr(kind, now, value)
        setattr(kind, old, vars(Runnable)[old])


def _require_each(kind: type[Runnable]) -> None:
    """Refuse a class that overrides only `verify`, where joint calls would go to the `verify_each`
    of its base class and bypass that `verify`."""
    names = {"verify", "verify_each"}
    first = next(base for base in kind.__mro__ if names & vars(base).keys())
    if "verify_each" in vars(first) or kind.verify_each is Runnable.verify_each:
        return
    raise TypeError(
        f"{kind.__name__}: expected it to override verify_each(batches), which the verify of its "
        f"base calls, got {first.__name__}.verify alone; see {page('migration')}"
    )
