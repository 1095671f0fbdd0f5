"""``grpo-guard verifiers`` and ``grpo-guard config schema``: what a guard file can contain."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, get_args

import typer

from grpo_guard.cli.terminal import echo

if TYPE_CHECKING:
    from grpo_guard.core.options import Options

app = typer.Typer(help="Check a guard file, or print what it may contain.", no_args_is_help=True)


def verifiers() -> None:
    """List the keys of a guard file: verifiers, presets and parts, with types, defaults and what
    each verifier needs."""
    from grpo_guard.config import WRAPPERS, GuardConfig, verifier_options
    from grpo_guard.config.preset_options import preset_options
    from grpo_guard.config.presets import PRESETS
    from grpo_guard.core.options import listed, options_of
    from grpo_guard.core.registry import VERIFIERS, load, names

    for name in names(VERIFIERS):
        try:
            kind = load(VERIFIERS, name)
        except ImportError as error:
            echo(f"type: {name}\n  {error}\n")
            continue
        needs = getattr(kind, "needs", None) or "nothing else"
        options = listed(verifier_options(kind))
        own = {option: setting for option, setting in options.items() if option not in WRAPPERS}
        _print(f"type: {name}", kind.__doc__, own, f"  needs {needs}")
    _print(
        "next to any type",
        "Options that wrap a verifier.",
        listed(options_of("", dict, fields=WRAPPERS)),
    )
    for name, preset in PRESETS.items():
        try:
            _print(f"preset: {name}", preset.__doc__, listed(preset_options(name)))
        except ImportError as error:
            echo(f"preset: {name}\n  {error}\n")
    for name in ("policy", "ledger", "identity"):
        _print(name, _PARTS[name], listed(part_options(GuardConfig, name)))


def part_options(model: type[Options], name: str) -> type[Options]:
    """Return the model of a field that is a mapping, whether or not it may be None."""
    from grpo_guard.core.options import Options

    kind = model.model_fields[name].annotation
    return next(
        k for k in (kind, *get_args(kind)) if isinstance(k, type) and issubclass(k, Options)
    )


_PARTS = {
    "policy": "What verdicts do to rewards.",
    "ledger": "Evidence per node over rounds, next to a verifier.",
    "identity": "Who may sign completions.",
}


def _print(
    title: str, docstring: str | None, options: Mapping[str, tuple[str, str]], *notes: str
) -> None:
    lines = [f"    {name}: {kind}; {default}" for name, (kind, default) in options.items()]
    about = (docstring or "").strip().partition("\n")[0]
    echo("\n".join([title, f"  {about}", *notes, *lines, ""]))


@app.command()
def schema() -> None:
    """Print the JSON schema of guard.yaml, for editors."""
    echo(json.dumps(guard_schema(), indent=2))


def guard_schema() -> dict[str, Any]:
    """Build the JSON schema of a guard file, with the verifiers whose packages are installed."""
    from pydantic.json_schema import models_json_schema

    from grpo_guard.config import GuardConfig, verifier_options
    from grpo_guard.config.preset_options import preset_options
    from grpo_guard.config.presets import PRESETS
    from grpo_guard.core.registry import VERIFIERS, load, names

    leaves = _installed(names(VERIFIERS), lambda name: verifier_options(load(VERIFIERS, name)))
    presets = _installed(PRESETS, preset_options)
    models: list[type[Options]] = [GuardConfig, *leaves.values(), *presets.values()]
    found, whole = models_json_schema([(m, "validation") for m in models])
    definitions = whole["$defs"]

    def reference(model: type[Options]) -> dict[str, Any]:
        return found[model, "validation"]

    def definition(model: type[Options]) -> dict[str, Any]:
        place: dict[str, Any] = definitions[reference(model)["$ref"].rpartition("/")[2]]
        return place

    verifier, guard = {"$ref": "#/$defs/verifier"}, definition(GuardConfig)
    for name, model in leaves.items():
        _say(definition(model), "type", {"const": name})
    for name, model in presets.items():
        own = definition(model)
        _say(own, "preset", {"const": name})
        own["properties"]["policy"] = guard["properties"]["policy"]
        if "beside" in own["properties"]:
            own["properties"]["beside"] = {"type": "array", "items": verifier}
    definitions["verifier"] = {
        "anyOf": [*map(reference, leaves.values()), *_combinations(verifier)]
    }
    guard["properties"]["verifier"] = verifier
    guard["properties"] = {n: v for n, v in guard["properties"].items() if n not in _OF_PRESETS}
    guard |= {"required": ["verifier"], "additionalProperties": False}
    whole["anyOf"] = [reference(GuardConfig), *map(reference, presets.values())]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "guard.yaml",
        **whole,
    }


_OF_PRESETS = ("preset", "state")


def _installed(
    wanted: Iterable[str], options: Callable[[str], type[Options]]
) -> dict[str, type[Options]]:
    """Return the options of each wanted name whose packages are installed."""
    found: dict[str, type[Options]] = {}
    for name in wanted:
        with suppress(ImportError):
            found[name] = options(name)
    return found


def _combinations(verifier: dict[str, Any]) -> list[dict[str, Any]]:
    """Build the schemas for nodes that combine verifiers, and for a user's own class."""
    several = {"type": "array", "items": verifier, "minItems": 1}
    held = dict.fromkeys(("all", "any", "vote", "cascade"), several)
    held |= dict.fromkeys(("not", "ray"), verifier)
    nodes: list[dict[str, Any]] = [
        {"type": "object", "required": [key], "properties": {key: value}}
        for key, value in held.items()
    ]
    own_type = {"type": "object", "required": ["type"], "properties": {"type": {"pattern": ":"}}}
    return [*nodes, own_type]


def _say(definition: dict[str, Any], name: str, value: dict[str, Any]) -> None:
    definition.setdefault("properties", {})[name] = value
    definition["required"] = [name, *definition.get("required", [])]
