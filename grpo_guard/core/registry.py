"""Registered names of verifiers and attacks, whose classes are loaded on first use.

Built-in names and names from other packages come from the same place: the entry-point groups
``grpo_guard.verifiers`` and ``grpo_guard.attacks``, whose targets are ``module:Class``. Your own
class needs neither a package nor a name, because ``package.module:Class`` works as well. A script
that builds its own guard can name the class with `register_verifier`.
"""

import difflib
import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from grpo_guard.core.moved import exported, place_of
from grpo_guard.core.naming import UnknownNameError as UnknownNameError
from grpo_guard.core.naming import choose as choose
from grpo_guard.core.redaction import hidden, secrets_in

T = TypeVar("T", bound=type)

VERIFIERS = "grpo_guard.verifiers"
ATTACKS = "grpo_guard.attacks"


_registered: dict[str, Any] = {}
# Package -> the extra that installs it.
_EXTRAS = {
    "torch": "torch",
    "transformers": "torch",
    "safetensors": "torch",
    "openai": "judge",
    "starlette": "server",
    "uvicorn": "server",
    "httpx2": "remote",
    "scipy": "evals",
    "datasets": "files",
    "pyarrow": "files",
    "vllm": "vllm",
    "cryptography": "identity",
    "ray": "ray",
    "detect_secrets": "secrets",
    "presidio_analyzer": "pii",
    "tldextract": "pii",
    "lingua": "language",
}


def names(group: str) -> list[str]:
    """All names registered in a group, sorted."""
    return sorted({*_entries(group), *(_registered if group == VERIFIERS else ())})


def load(group: str, name: str) -> Any:
    """Load the class registered under a name, or the class at ``package.module:Class``. Raises
    UnknownNameError, with the known names and the closest match, if there is no such class, or
    ImportError, with the install command, if an optional package is missing."""
    if all(part.isidentifier() for part in name.replace(":", ".", 1).split(".")) and ":" in name:
        return _imported(name)
    choose(names(group), name)
    if group == VERIFIERS and name in _registered:
        return _registered[name]
    try:
        return _entries(group)[name].load()
    except ModuleNotFoundError as error:
        raise with_remedy(error) from None


def load_class(group: str, name: str, base: type) -> Any:
    """`load` a class and raise UnknownNameError unless it derives from ``base``.

    ``subprocess:Popen`` is a class too, and would run its arguments as a command. So any class of
    another kind is refused before it is called. By then its module has been imported, and thus
    executed: treat a guard file as code.
    """
    found = load(group, name)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise UnknownNameError(
            f"expected a {base.__name__}, got {hidden(name, secrets_in(name))!r:.200}; derive your "
            f"class from {base.__name__}"
        )
    return found


def register_verifier(name: str) -> Callable[[T], T]:
    """Register your own class under a name, for guards that this process builds from YAML. Raises
    ValueError if another verifier already has this name.

    Examples:
        >>> @register_verifier("shouting")
        ... class Shouting(CompletionVerifier): ...
    """

    def register(kind: T) -> T:
        known = _registered.get(name)
        # Registering the same class again means that a notebook cell was rerun.
        again = known is not None and known.__qualname__ == kind.__qualname__
        if name in names(VERIFIERS) and not again:
            raise ValueError(f"register_verifier: {name!r} is the name of another verifier")
        _registered[name] = kind
        return kind

    return register


def needing_extra(module: str, name: str) -> Any:
    """Import a name from a module; if a package is missing, the error gives the install command."""
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise with_remedy(error) from None


def with_remedy(error: ModuleNotFoundError) -> ImportError:
    """Add the install command to an import error if one of our extras provides the package."""
    package = (error.name or "").partition(".")[0]
    if package not in _EXTRAS:
        return error
    install = f"pip install 'grpo-guard[{_EXTRAS[package]}]'"
    return ModuleNotFoundError(f"needs {package}, which is not installed: {install}", name=package)


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    # An installed command does not search the current folder. It is appended last, so that no file
    # in it shadows a package.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    found: Any = None
    try:
        found = import_module(module)
        return getattr(found, attribute)
    except Exception as error:  # an import can raise anything
        got, why = (hidden(text, secrets_in(name)) for text in (name, str(error)))
        # Only if the module itself is missing; a module that it imports could be anywhere.
        lost = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        remedy = "; run the command in the folder that holds it, or install it" if lost else ""
        for near in difflib.get_close_matches(attribute, dir(found) if found else (), n=1):
            remedy = f"; did you mean {near!r}?"
        if isinstance(error, AttributeError) and (place := place_of(attribute, exported())):
            remedy = f"; did you mean {f'{place}:{attribute}'!r}?"
        raise UnknownNameError(
            f"expected a class that can be imported, as package.module:Class, got {got!r:.200}: "
            f"{type(error).__name__}: {why:.200}{remedy}"
        ) from None


def _entries(group: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=group)}
