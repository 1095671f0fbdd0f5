"""The keys allowed next to ``preset: NAME`` in a guard file."""

import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from grpo_guard.config.presets import PRESETS
from grpo_guard.config.tree import not_a_node
from grpo_guard.core.naming import NOWHERE, near
from grpo_guard.core.options import ConfigError, Options, named, options_of, placing, shown
from grpo_guard.core.registry import VERIFIERS, UnknownNameError, choose, load

NO_OPTIONS = frozenset(
    {"preset", "policy", "environment", "identity", "references", "tokenizer", "log", "workers"}
)  # keys of the guard itself, not passed to a preset as options
_INSTEAD = {
    "verifier": "a preset is a complete guard; put verifiers of your own into its list beside:",
    "ledger": "a preset keeps one itself, in the folder state:",
    "only": "restrict a verifier in its list beside:",
    "alpha": "its verifiers have no budget to share",
    "frequent": "the preset's own rules count what recurs; for a kind of finding of your own, put "
    "its verifier into beside: with severity: {KIND: count}",
    "trusted_tolerance": "length_scaling: {tolerance: ...} scales single completions",
    "node_weight": "length_scaling: {tolerance: ...} scales single completions",
    "batch_alpha": "put the verifier into beside: with count_alpha: ALPHA",
}
# Preset -> the verifier that takes its `**options`.
OPTIONS_OF = {"same_weights": "logprob_bound", "shared_seed": "seed_replay", "judged": "judge"}


IN_THE_SUITE = {"heterogeneous": "different_weights", "homogeneous": "shared_seed"}
"""Name of a defence in the suite -> the preset that it measures."""


@cache
def preset_options(name: str) -> type[Options]:
    """Return the model of the options allowed next to ``preset: NAME``, except ``policy``. Raises
    ImportError if the preset needs a package that is missing."""
    preset, makers = PRESETS[name], []
    if name in OPTIONS_OF:
        kind = load(VERIFIERS, OPTIONS_OF[name])
        makers = [kind, *([kind.from_pretrained] if hasattr(kind, "from_pretrained") else [])]
    beside = "beside" in inspect.signature(preset).parameters
    nodes = Annotated[list[dict[str, Any]], BeforeValidator(_nodes)]
    fields: dict[str, Any] = {"beside": (nodes, [])} if beside else {}
    if name == "judged":  # the backend is required, as in Python
        fields["backend"] = (dict[str, Any] | Literal["shipped"], ...)
    return options_of(
        name, preset, *makers, without={"policy", "path_or_id", "run", "workers"}, fields=fields
    )


def require_plain(explicit: Mapping[str, Any], name: str) -> None:
    """Refuse options that are clearly wrong before torch is loaded, which takes seconds. Raises
    ConfigError if an option that the preset requires is missing or wrong."""
    if name not in OPTIONS_OF or name == "judged":
        return
    fields: dict[str, Any] = {
        "beside": (Annotated[list[dict[str, Any]], BeforeValidator(_nodes)], [])
    }
    model = options_of(name, PRESETS[name], without={"policy", "workers"}, fields=fields)
    required = [key for key, field in model.model_fields.items() if field.is_required()]
    lacking = [key for key in required if key not in explicit]
    for key in explicit:
        if key not in model.model_fields and near(lacking, key):
            chosen(required, named(key), name)
    model.read(dict(explicit), name)


def require_no_preset_option(key: str) -> None:
    """Refuse an option of presets in a file without one. Raises ConfigError with their names."""
    of = [name for name, make in PRESETS.items() if key in inspect.signature(make).parameters]
    if of and key != "options":
        raise ConfigError(
            f"{key}: expected it next to preset: {' or '.join(of)}, got no preset; a file has "
            "either a preset or verifier:"
        )


def require_options(explicit: Mapping[str, Any], model: type[Options], name: str) -> None:
    """Refuse keys that do not belong next to a preset. Raises ConfigError if a key does not belong
    there; the message says which key was probably meant, or what to write instead."""
    for key, instead in _INSTEAD.items():
        if key in explicit and key not in model.model_fields:
            raise ConfigError(f"{key}: expected none next to preset: {name}, got one; {instead}")
    known = [*model.model_fields, *sorted(NO_OPTIONS - {*model.model_fields})]
    for key in explicit:
        if key not in model.from_python:
            chosen(known, named(key), name)


def leaves_of(node: Any) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a tree that have a type, including those inside combinators."""
    if isinstance(node, dict) and "type" in node:
        yield node
    elif isinstance(node, dict | list):
        for inner in node.values() if isinstance(node, dict) else node:
            yield from leaves_of(inner)


def _nodes(value: Any) -> Any:
    """Check a preset's list of additional verifiers, raising the errors of `not_a_node`."""
    if not isinstance(value, list):
        one = isinstance(value, dict)
        got = "a mapping; put it in square brackets" if one else shown(value)
        raise ValueError(f"expected a list such as [{{type: code}}], got {got}")
    for i, node in enumerate(value):
        if not isinstance(node, dict):
            raise ValueError(f"item {i}: {not_a_node(node)}")
    return value


def chosen(known: list[str], name: str, where: str, elsewhere: Mapping[str, str] = NOWHERE) -> str:
    with placing(f"{where}: " if where else "", UnknownNameError):
        return choose(known, named(name), elsewhere)
