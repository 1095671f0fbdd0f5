"""`cached_property`, which holds no lock while it computes."""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class cached_property(Generic[T]):
    """`functools.cached_property` without its lock, as in Python 3.12.

    Until 3.11 all instances share a lock while one computes: a completion that takes long, in a
    thread that was given up on, would hold up every other completion.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        value = self._function(instance)
        # An instance's own attributes take precedence over this, which has no __set__.
        instance.__dict__[self._name] = value
        return value
