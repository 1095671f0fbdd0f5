"""Options of a verifier in a file: a typed model generated from the verifier's Python signature.

A file can express numbers, text, lists and mappings. If a parameter accepts objects as well as
other types, a file can use the other types; a parameter that accepts only objects is available only
in Python. Error messages name the option, what was expected and what was given, and never show a
value that might be a secret key.
"""

import collections.abc
import contextlib
import inspect
import json
import os
import re
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic.types import Strict
from pydantic_core import PydanticCustomError

from grpo_guard.core.arguments import explained, meaning
from grpo_guard.core.naming import UnknownNameError, choose, near
from grpo_guard.core.redaction import hidden, is_name, secrets_in


class ConfigError(ValueError):
    """The configuration is malformed; the message names the file, the field, what was expected and,
    unless it might contain a key, the value."""


def in_file(name: str, error: Exception) -> ConfigError:
    """Convert an error to a ConfigError whose message begins with the file's name, unless the name
    is "" or already there."""
    text = str(error)
    return ConfigError(text if not name or text.startswith(f"{name}:") else f"{name}: {text}")


@contextlib.contextmanager
def placing(place: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds in the block into ConfigErrors that begin with ``place``."""
    try:
        yield
    except kinds as error:
        raise ConfigError(f"{place}{error}") from None


class Options(BaseModel):
    """Options by name; the error for an unknown name suggests the closest known one."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    made: ClassVar[Callable[..., Any]]
    """The callable that `build` calls."""
    from_python: ClassVar[frozenset[str]] = frozenset()
    """Names of the parameters that can be set only in Python, not in a file."""

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:
        if isinstance(data, dict) and cls.model_config["extra"] == "forbid":
            for name in data:
                if name in cls.from_python:
                    raise _problem(f"{name}: expected only in Python, as an object")
                try:
                    choose(list(cls.model_fields), named(name))
                except UnknownNameError as error:
                    raise _problem(str(error)) from None
        return data

    def explicit_values(self, *, without: Collection[str] = ()) -> dict[str, Any]:
        """Return the explicitly given options, by name, except those in ``without``."""
        return {name: getattr(self, name) for name in self.model_fields_set - {*without}}

    def build(self) -> Any:
        """Build the object; options that were not given keep the constructor's defaults."""
        return type(self).made(**self.explicit_values())

    @classmethod
    def read(cls, data: Any, where: str) -> Any:
        """Read options from ``data``, or raise ConfigError naming the option that is wrong."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise ConfigError(first_problem(cls, data, error, where)) from None


def _problem(message: str) -> PydanticCustomError:
    # The message is passed as a value, because its braces would otherwise be read as fields.
    return PydanticCustomError("option", "{message}", {"message": message})


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_OBJECT: Any = object()
"""Marks a type that a file cannot express."""


def _whole(value: Any) -> Any:
    """Convert a float such as 1e5 to an integer, as a person would read it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Nothing is coerced: `alpha: yes` must not become 1.
_PLAIN: dict[Any, Any] = {
    kind: Annotated[kind, Strict()] for kind in (str, bool, float)
} | {int: Annotated[int, Strict(), BeforeValidator(_whole)], types.NoneType: None}  # fmt: skip


def options_of(
    name: str,
    *makers: Callable[..., Any],
    without: Collection[str] = (),
    fields: Mapping[str, Any] | None = None,
) -> type[Options]:
    """Build the options model of a class or function.

    Args:
        name: Name of the model, for the JSON schema.
        makers: Callables whose parameters, except those in ``without``, become options.
            `Options.build` calls the first, which passes its ``**options`` on to the next.
        fields: Options that extend or replace the parameters, as (type, default).
    """
    fields = dict(fields or {})
    objects = set[str]()
    parameters, anything = _parameters(makers)
    for parameter, kind in parameters:
        written = Any if kind is parameter.empty else in_a_file(kind)
        if parameter.name in fields or parameter.name in {*objects, *without}:
            continue
        if written is _OBJECT:
            objects.add(parameter.name)
        else:
            fields[parameter.name] = (written, _default(parameter))
    model = create_model(name, __base__=_Open if anything else Options, **fields)
    model.made = makers[0]
    model.from_python = frozenset(objects)
    return model


class _Open(Options):
    """Options of a callable that takes arbitrary ``**options``, which cannot be checked here."""

    model_config = Options.model_config | {"extra": "allow"}


def _parameters(
    makers: tuple[Callable[..., Any], ...],
) -> tuple[list[tuple[inspect.Parameter, Any]], bool]:
    """Return the parameters with their types, and whether arbitrary other options are accepted.

    ``**options`` of a class go to its base class, or to the next maker.
    """
    found: list[tuple[inspect.Parameter, Any]] = []
    takes_others = False
    for maker in makers:
        chain: list[Any] = [maker]
        if inspect.isclass(maker):
            chain = [vars(c)["__init__"] for c in maker.__mro__[:-1] if "__init__" in vars(c)]
        for function in chain:
            try:
                hints = get_type_hints(function)
            except (NameError, TypeError):  # a type that is only imported for type checkers
                hints = {}
            own = [p for n, p in inspect.signature(function).parameters.items() if n != "self"]
            found += [(p, hints.get(p.name, p.empty)) for p in own if p.kind not in _VARIADIC]
            takes_others = any(p.kind is p.VAR_KEYWORD for p in own)
            if not takes_others:
                break
    return found, takes_others and len(makers) == 1


def _default(parameter: inspect.Parameter) -> Any:
    if parameter.default is parameter.empty:
        return ...
    default = parameter.default
    if isinstance(default, tuple):
        return list(default) if all(isinstance(v, str | int | float) for v in default) else None
    plain = isinstance(default, str | int | float | None)
    return default if plain else getattr(default, "name", None)


def in_a_file(kind: Any) -> Any:
    """Return the part of a type that a file can express, or `_OBJECT` if there is none."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union_in_a_file(inner)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if origin is Literal:
        return kind
    if kind is Path or origin is os.PathLike:
        return _PLAIN[str]
    if origin in (collections.abc.Mapping, dict):
        return dict[inner[0], inner[1]]  # type: ignore[valid-type]
    if inspect.isclass(origin) and issubclass(origin, collections.abc.Iterable):
        item = in_a_file(inner[0])
        return _OBJECT if item is _OBJECT else types.GenericAlias(list, (item,))
    if is_dataclass(kind) and inspect.isclass(kind):
        model = options_of(kind.__name__, kind)
        required = {p.name for p, _ in _parameters((kind,))[0] if p.default is p.empty}
        if not required & model.from_python:
            return Annotated[model, AfterValidator(_built)]
    return _OBJECT


def _union_in_a_file(kinds: tuple[Any, ...]) -> Any:
    # A name rules out a mapping with known fields, which in turn rules out any other mapping.
    of_class = [k for k in kinds if is_dataclass(k)]
    if str in kinds:
        kinds = tuple(k for k in kinds if k not in of_class)
    elif of_class:
        kinds = tuple(k for k in kinds if get_origin(k) is not collections.abc.Mapping)
    left = [w for w in map(in_a_file, kinds) if w is not _OBJECT]
    return Union[tuple(left)] if any(w is not None for w in left) else _OBJECT  # noqa: UP007


def _built(options: Options) -> Any:
    try:
        return options.build()
    except TypeError as error:
        raise ValueError(str(error)) from None


def describe_type(kind: Any) -> str:
    """Describe a type from `in_a_file` in words."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return describe_type(inner[0])
    if origin in (Union, types.UnionType):
        return " or ".join(describe_type(k) for k in inner)
    if origin is Literal:
        *first, last = map(repr, inner)
        return f"{', '.join(first)} or {last}" if first else last
    if origin is list:
        return f"list of {describe_type(inner[0])}"
    if inspect.isclass(kind) and issubclass(kind, Options):
        return f"mapping of {', '.join(kind.model_fields)}"
    words = {int: "integer", float: "number", str: "text", bool: "true or false", Any: "anything"}
    return "null" if kind in (None, types.NoneType) else words.get(kind, "mapping")


def first_problem(model: type[Options], data: Any, error: ValidationError, where: str) -> str:
    """Describe the first problem in ``data``: where it is, what was expected and what was given."""
    problem = error.errors()[0]
    place, kind, owner = [where], model, model
    for part in problem["loc"]:
        step, owner = _step(kind, part), kind
        if step is None or (problem["type"] != "missing" and not _has(data, part)):
            break  # the remaining parts name the members of a union
        kind = step
        place.append(named(part))
        data = data[part] if _has(data, part) else None
    at = ".".join(filter(None, place))
    if problem["type"] in ("option", "value_error"):
        message = problem["msg"].removeprefix("Value error, ")
        return f"{at}: {message}" if at else message
    if problem["type"] == "missing":
        what = meaning(getattr(owner, "made", None), place[-1])
        return f"{at}: expected {describe_type(kind)}, got nothing{explained(what)}"
    bound = re.match(r"Input should be ((?:greater|less) than .*)", problem["msg"])
    expected = f"{describe_type(kind)} {bound[1]}" if bound else describe_type(kind)
    return f"{at}: expected {expected}, got {shown(data)}{_hint(kind, expected, data)}"


def _hint(kind: Any, expected: str, data: Any) -> str:
    """Suggest what to write instead, as text to append to a message; "" if that is unclear."""
    words = _literals(kind)
    if isinstance(data, str) and (nearest := near(words, data)):
        return f"; did you mean {nearest[0]!r}?"
    if isinstance(data, bool) and words:
        return "; YAML reads yes, no, on and off as true and false; put the word in quotes"
    if isinstance(data, bool | int | float) and "text" in expected:
        return "; in quotes it is text"  # "run: 7" is a number to YAML
    if isinstance(data, str) and expected.startswith("list of text"):
        return "; write a list of one as [NAME]"
    if isinstance(data, str) and expected.startswith("mapping of ") and data.isidentifier():
        first = expected.removeprefix("mapping of ").split(", ")[0]
        return f"; write {{{first}: {data}, ...}}"
    if isinstance(data, str) and "number" in expected and "text" not in expected:
        return "; write numbers without quotes or units, such as 0.001"
    return ""


def _literals(kind: Any) -> list[str]:
    """Return all strings allowed by the literals in a type, including nested types."""
    if get_origin(kind) is Literal:
        return [word for word in get_args(kind) if isinstance(word, str)]
    return [word for inner in get_args(kind) for word in _literals(inner)]


def _has(data: Any, part: Any) -> bool:
    return part in data if isinstance(data, dict) else isinstance(data, list)


def _step(kind: Any, part: Any) -> Any:
    """Return the type of a model's field or of a list's items; None if there is no such part."""
    if inspect.isclass(kind) and issubclass(kind, Options):
        field = kind.model_fields.get(part)
        if field is None:
            return None
        return field.annotation
    origin, inner = get_origin(kind), get_args(kind)
    if origin is list and isinstance(part, int):
        return inner[0]
    steps = (_step(k, part) for k in inner) if origin is not Literal else ()
    return next((step for step in steps if step is not None), None)


def named(field: object) -> str:
    """Return a field's name for a message, or a placeholder if a missing space might have made a
    value part of the name."""
    known = isinstance(field, int) or is_name(str(field))
    return str(field) if known else "(no option's name)"


_FILE: Final = r"(?:[a-z_]+[./]){1,3}[a-z_]+"
"""What looks like a path, such as ``run.sqlite``, and hardly like a key."""


def shown(value: object) -> str:
    """Format a value for a message; only its type or length if it might be or contain a key."""
    if value is None or isinstance(value, bool | float):
        return repr(value)
    if isinstance(value, int):
        return str(value) if abs(value) < 10**9 else "a large integer"
    if isinstance(value, str):
        short = len(value) <= 24 and (is_name(value) or re.fullmatch(_FILE, value))
        plain = re.fullmatch("[a-z_]{0,20}", value) or short
        plain = plain and not re.search("[0-9]", value)
        return repr(value) if plain else f"{len(value)} characters of text"
    return f"a {type(value).__name__}"


def listed(model: type[Options]) -> Mapping[str, tuple[str, str]]:
    """Return the (type, default) of each option as text, by name."""
    return {
        name: (
            describe_type(field.annotation),
            "required" if field.is_required() else f"default {json.dumps(field.default)}",
        )
        for name, field in model.model_fields.items()
    }


@contextlib.contextmanager
def without_secrets(data: Any) -> Iterator[None]:
    """Remove the secrets in ``data`` from the message of a `ConfigError` raised in the block."""
    try:
        yield
    except ConfigError as error:
        message = hidden(str(error), secrets_in(data))
        if message == str(error):
            raise
    else:
        return
    # Raised outside the handler; otherwise the error that quotes the key would be its context.
    raise ConfigError(message)
