"""Argument errors that name the argument, what was expected and what was passed.

Python's own errors ("missing 2 required positional arguments", "object is not iterable") say
neither what an argument is for nor what to write instead.
"""

import functools
import inspect
import math
import operator
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Integral, Real
from types import FunctionType
from typing import Any, TypeGuard, TypeVar

from grpo_guard.core.naming import NOWHERE, UnknownNameError, choose
from grpo_guard.core.pages import page
from grpo_guard.core.quoting import shown
from grpo_guard.core.wrong_types import wrong_type

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def worded(function: F, about: Any = None, elsewhere: Mapping[str, str] = NOWHERE) -> F:
    """Wrap a function so that missing, unknown or extra arguments, and errors that an argument of
    the wrong type causes, raise a readable TypeError.

    The error quotes the name and docstring of ``about``, which defaults to the function itself. For
    a name in ``elsewhere``, it suggests the argument found there.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (TypeError, AttributeError) as error:
            owner = type(args[0]) if inspect.isclass(about) and args else about or function
            # An error raised inside the function has at least one more frame in its traceback.
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                # One that a check raised already says what was expected.
                if "expected" in str(error):
                    raise
                problem = wrong_type(owner.__name__, function, args, kwargs)
                if problem is None:
                    raise
                raise TypeError(problem) from error
            problem = _complaint(owner, function, args, kwargs, elsewhere)
            raise TypeError(problem or str(error)) from None

    return call  # type: ignore[return-value]


def worded_class(kind: C, elsewhere: Mapping[str, str] = NOWHERE) -> C:
    """Give a class's constructor the readable errors of `worded`."""
    kind.__init__ = worded(kind.__init__, kind, elsewhere)  # type: ignore[misc]
    return kind


def _complaint(
    about: Any,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    elsewhere: Mapping[str, str],
) -> str | None:
    """Describe what is wrong with a call's arguments, or return None if they are fine."""
    name, parameters = about.__name__, inspect.signature(function).parameters
    ordered = [p for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    by_name = [*ordered, *(p for p in parameters.values() if p.kind is p.KEYWORD_ONLY)]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    known = [p.name for p in by_name if p.name != "self"]
    if not open_ended:
        for given in kwargs:
            try:
                choose(known, given, elsewhere)
            except UnknownNameError as error:
                return f"{name}: {error}"
    if len(args) > len(ordered):
        own = [p.name for p in ordered if p.name != "self"]
        got = len(args) - (len(ordered) - len(own))
        order = f"in order ({', '.join(own)})" if own else "without a name"
        return f"{name}: expected at most {len(own)} arguments {order}, got {got}"
    taken = {p.name for p in ordered[: len(args)]} | kwargs.keys()
    for p in by_name:
        if p.default is p.empty and p.name not in taken:
            what = meaning(about, p.name)
            return f"{name}.{p.name}: expected a value, got nothing{explained(what)}"
    return None


def meaning(maker: Any, parameter: str) -> str:
    """Return the first sentence of a parameter's ``Args`` entry, without markup, or "" if the
    parameter has no entry.

    If ``maker`` is a class, its bases are searched too. Entries such as "As for ..." are skipped.
    """
    entry = rf"^( +)(?:\w+, )*{re.escape(parameter)}(?:, \w+)*: (.+(?:\n\1 +.+)*)"
    for place in maker.__mro__ if inspect.isclass(maker) else (maker,):
        text = inspect.cleandoc(getattr(place, "__doc__", None) or "")
        found = re.search(entry, text, re.MULTILINE)
        if found and not found[2].startswith("As for "):
            first = re.split(r"\. (?=[A-Z`\"])", " ".join(found[2].split()), maxsplit=1)[0]
            return first.replace("`", "").rstrip(".")
    return ""


def explained(what: str) -> str:
    """Return what a parameter is, as `meaning` describes it, in brackets; "" for an empty text."""
    if not what:
        return ""
    name = len(what) > 1 and what[1].isupper()  # an abbreviation
    return f" ({what if name else what[0].lower() + what[1:]})"


def expected_verifier(where: str, got: object) -> TypeError:
    """Build the error for a value that is not a verifier, with a hint on what to write instead."""
    if isinstance(got, type):
        hint = f"the class {got.__name__}; write {got.__name__}(...)"
    elif isinstance(got, FunctionType):
        remedy = "give the verifier to the decorator, in brackets"
        if where != "Guard.verifier":  # a list member was never meant as a decorator
            remedy = (
                "write a subclass of CompletionVerifier whose verify(batch) returns a verdict for "
                f"each completion, see {page('own-verifier')}"
            )
        hint = f"the function {got.__name__!r}; {remedy}"
    elif isinstance(got, str):
        hint = f"{shown(got)}; names work only in guard files, in Python use the class"
    elif hasattr(got, "verifier") and hasattr(got, "with_policy"):
        hint = "a guard, which cannot be part of another; use it alone, or take its guard.verifier"
    elif isinstance(got, Iterable):
        hint = f"a {type(got).__name__}; write AllOf(*verifiers)"
    else:
        hint = shown(got)
    return TypeError(f"{where}: expected a CompletionVerifier, got {hint}")


def is_finite(value: object) -> TypeGuard[float]:
    """Whether a value is a finite number that fits in a float; booleans do not count."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max


def number_text(value: object) -> str | None:
    """Return the text of a finite Python or NumPy number, or None for anything else.

    A column with missing values is converted to floats, so 942.0 was originally 942.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    if isinstance(value, Integral):
        return str(int(value))
    number = float(value)
    if not math.isfinite(number):
        return None
    if number.is_integer() and abs(number) < 2**53:
        return str(int(number))
    given: Any = value  # a subclass's own text is not trusted
    return float.__repr__(given) if isinstance(given, float) else str.__str__(str(given))


def is_count(value: object, least: int = 0) -> bool:
    """Whether a value is an integer >= ``least``; booleans do not count."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def require_count(where: str, value: object, least: int = 1) -> None:
    """Raise ValueError unless a value is a Python or NumPy integer >= ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise ValueError(f"{where}: expected an integer >= {least}, got {value!r:.80}")


def require_choice(where: str, value: object, known: Collection[str]) -> None:
    """Raise ValueError unless a value is one of those known."""
    if value not in known:
        raise ValueError(f"{where}: expected one of {', '.join(known)}, got {value!r:.80}")


def require_level(where: str, value: object, below: float = 1.0) -> None:
    """Raise ValueError unless a value is a Python or NumPy number in (0, ``below``)."""
    if not isinstance(value, Real) or not 0 < float(value) < below:
        raise ValueError(f"{where}: expected a number in (0, {below:g}), got {value!r:.80}")


def require_share(where: str, value: object) -> None:
    """Raise ValueError unless a value is a Python or NumPy number in (0, 1]."""
    if not isinstance(value, Real) or not 0 < float(value) <= 1:
        raise ValueError(f"{where}: expected a number in (0, 1], got {value!r:.80}")


def whole(value: Any) -> int | None:
    """Convert a Python, NumPy or torch integer to ``int``; return None for anything else."""
    try:
        return operator.index(value)
    except TypeError:
        return None


def whole_number(value: Any) -> int | None:
    """Convert an integer, or a float that is one, to ``int``; return None for anything else.

    A column with missing values is converted to floats, so 3.0 was originally 3.
    """
    # NumPy's boolean, of either name, was an index before NumPy 2.
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return None
    if isinstance(value, int):
        return int.__int__(value)  # drops a subclass's own methods
    if isinstance(value, Real) and not isinstance(value, Integral):
        number = float(value)
        return int(number) if number.is_integer() and abs(number) < 2**53 else None
    return whole(value)


def is_gap(value: Any) -> bool:
    """Whether a value marks a gap in a column: NaN, or the NA of pandas."""
    if isinstance(value, Real):
        return math.isnan(float(value)) if not isinstance(value, Integral) else False
    return type(value).__name__ in ("NAType", "NaTType")


def real(where: str, value: object) -> float:
    """Convert a Python or NumPy number to ``float``; raise TypeError for anything else."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{where}: expected a number, got {shown(value)}")
    return float(value)


def require_type(where: str, value: object, kind: type, wanted: str) -> None:
    """Raise TypeError unless a value is a ``kind``, described as ``wanted``."""
    if not isinstance(value, kind):
        raise TypeError(f"{where}: expected {wanted}, got {shown(value)}")


def span(where: str, value: Any) -> tuple[int, int]:
    """Return a half-open span as a tuple of two Python integers. Raises TypeError if the value is
    not a pair of integers in a tuple or list, or ValueError if it begins before 0 or ends before
    its start."""
    pair = isinstance(value, tuple | list) and len(value) == 2
    if pair and type(value[0]) is type(value[1]) is int and 0 <= value[0] <= value[1]:
        return value if type(value) is tuple else (value[0], value[1])
    ends = [None if isinstance(end, bool) else whole(end) for end in value] if pair else [None]
    start, end = ends[0], ends[-1]
    if start is not None and end is not None and 0 <= start <= end:
        return start, end
    got = f"({shown(value[0])}, {shown(value[1])})" if pair else shown(value)
    raise (TypeError if None in ends else ValueError)(
        f"{where}: expected (start, end) with 0 <= start <= end, got {got}"
    )


def several_verifiers(where: str, got: Any) -> tuple[Any, ...]:
    """Return a list of verifiers as a tuple; raise TypeError if it is not a list or tuple."""
    if isinstance(got, list | tuple):
        return tuple(got)
    one = f"; write a list of one as [{type(got).__name__}(...)]"
    hint = "" if isinstance(got, str | bytes | type(None)) else one
    raise TypeError(f"{where}: expected a list of verifiers, got {shown(got)}{hint}")


def require_once(where: str, members: Sequence[Any]) -> None:
    """Raise ValueError if a verifier with scope ``"history"`` appears twice among the members,
    because it would count every completion twice."""
    for i, member in enumerate(members):
        if member.scope == "history" and any(member is other for other in members[:i]):
            raise ValueError(
                f"{where}: expected each verifier once, got the same {member.name!r} twice; leave "
                "one out"
            )
