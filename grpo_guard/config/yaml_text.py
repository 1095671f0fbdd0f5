"""Read a guard file's YAML as one mapping, with errors that say what is wrong."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from grpo_guard.core.options import ConfigError

_SUCH = "`preset: different_weights`"


def _got(data: object) -> str:
    if data is None:
        return "an empty file; grpo-guard init writes one"
    if isinstance(data, str):
        return "one text; a colon is followed by a blank"
    return "a list" if isinstance(data, list) else f"a {type(data).__name__}"


def mapping_from(text: str, name: str) -> dict[Any, Any]:
    """Parse a mapping from YAML.

    Args:
        text: YAML.
        name: Of the file, for messages.

    Raises:
        ConfigError: it is not YAML, or not a mapping.
    """
    import yaml

    try:
        data = yaml.load(text, _yaml_loader())
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise unreadable(name, error) from None
    if not isinstance(data, dict):
        raise ConfigError(f"{name}: (file): expected a mapping such as {_SUCH}, got {_got(data)}")
    return data


@cache
def _yaml_loader() -> Any:
    """The safe loader, which also reads 1e-3 as a number; YAML 1.1 takes it for text."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    exponent = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+\Z")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+.0123456789"))
    return Loader


def unreadable(name: str, error: Exception) -> ConfigError:
    """The error for a file that cannot be read; it quotes nothing from the file."""
    return ConfigError(f"{name}: (file): expected readable YAML, got {_unquoting(error)}")


def _unquoting(error: Exception) -> str:
    """A YAML reader's message without the lines and words that it quotes, which may hold a key."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem" if mark is not None else "strerror", None)
    what = re.sub(r"""(["']).{5,}\1""", "'...'", problem or type(error).__name__, flags=re.DOTALL)
    if mark is None:
        return f"{what:.200}"
    return f"an error in line {mark.line + 1}, column {mark.column + 1} ({what:.200})"
