"""Name the argument of the wrong type after a call has failed on it."""

import collections.abc
import inspect
import types
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from grpo_guard.core.quoting import shown

_MANY: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_WORDS: Final[Mapping[Any, str]] = {
    type(None): "None",
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "text",
    collections.abc.Mapping: "a dict",
    dict: "a dict",
    collections.abc.Callable: "a function",
}


def wrong_type(
    name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    """Describe the first argument that is not what its annotation says; None if there is none.

    This explains an error that a call with these arguments has raised, so an annotation that cannot
    be read, such as one that is imported for type checkers only, is skipped.
    """
    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception:  # a name that is not there, or anything that an annotation calls
        signature = inspect.signature(function)
    for parameter, value in signature.bind(*args, **kwargs).arguments.items():
        declared = signature.parameters[parameter]
        kind = declared.annotation
        if declared.kind in _MANY or kind is declared.empty or isinstance(kind, str):
            continue
        if not _fits(value, kind):
            return f"{name}.{parameter}: expected {_described(kind)}, got {shown(value)}"
    return None


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type; true if the type is none that can be checked."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _fits(value, inner[0])
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if kind is None:
        return value is None
    if kind in (int, float):
        number: type = Integral if kind is int else Real
        return isinstance(value, number) and not isinstance(value, bool)
    checked = origin or kind
    if not isinstance(checked, type) or checked is object:
        return True
    try:
        return isinstance(value, checked)
    except TypeError:  # a protocol that cannot be checked
        return True


def _described(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _described(inner[0])
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_described, inner)))
    if origin is Literal:
        return " or ".join(map(repr, inner))
    kind = type(None) if kind is None else origin or kind
    if kind in _WORDS:
        return _WORDS[kind]
    general = kind.__module__ in ("builtins", "collections.abc")
    if general and issubclass(kind, collections.abc.Collection):
        return "a list"
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    return f"{article} {kind.__name__}"
