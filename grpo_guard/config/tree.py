"""Build a verifier from a node of a configuration tree, or from the whole tree."""

import difflib
import inspect
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from grpo_guard.config.live import Live, reads_policy
from grpo_guard.config.option_names import OPTIONS, PYTHON_ONLY
from grpo_guard.core.calibrated import Calibrated
from grpo_guard.core.ensemble import AllOf, AnyOf, Cascade, Vote, only
from grpo_guard.core.naming import choose, near
from grpo_guard.core.options import (
    ConfigError,
    Options,
    named,
    options_of,
    placing,
    shown,
    without_secrets,
)
from grpo_guard.core.redaction import is_name
from grpo_guard.core.registry import (
    VERIFIERS,
    UnknownNameError,
    load,
    load_class,
    names,
    with_remedy,
)
from grpo_guard.core.verdict import SPOT_CHECKS
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.guard.spot_checks import SpotCheck
from grpo_guard.nodes.schema import LedgerError
from grpo_guard.nodes.store import NodeStore

_ONLY = options_of("OnlyConfig", only)
WRAPPERS: dict[str, Any] = {
    "only": (_ONLY | None, None),
    "calibration": (str | None, None),
}
"""Options that a leaf takes in addition to its verifier's own, as (type, default)."""
_COMBINATORS: dict[str, Callable[..., CompletionVerifier]] = {
    "all": AllOf,
    "any": AnyOf,
    "vote": Vote,
    "cascade": Cascade,
    SPOT_CHECKS: SpotCheck,
}
_RAY = "grpo_guard.server.distributed.verifier:RayVerifier"

_IN_LEAF = "severity: {KIND: count} in its leaf, and state: FOLDER at the top of the file"
_FREQUENT = "severity: {KIND: count} in its place, and state: FOLDER at the top of the file"
_BATCH_ALPHA = "count_alpha: ALPHA in its place, over all rounds together"
_WHOLE = "to be left out; length_scaling: of preset: different_weights scales single completions"
_LONG = (
    "to be left out, since length rejects; for factors policy: {on_long: scale} at the top of the "
    "file, and for other factors length_scaling: of preset: different_weights"
)
# Names that a report or `config check` shows, but that no leaf has as its type -> what adds them.
_ADDED_BY = {
    "reader": "reader: PATH next to preset: different_weights",
    "standing": "ledger: at the top of the file, or any preset",
    "false_sums": "preset: same_weights",
    "identity": "identity: at the top of the file",
    "references": "references: at the top of the file",
    "environment": "environment: at the top of the file",
}
# Verifier, or "" for any verifier -> options it had in 0.1.0 and 0.2.0, and what is expected now.
_GONE = {
    "": {"frequent": _FREQUENT, "batch_alpha": _BATCH_ALPHA},
    "length": {"frequent": _FREQUENT, "on_long": _LONG, "scaling": _LONG}
    | dict.fromkeys(("trusted_tolerance", "node_weight"), _WHOLE),
}


@cache
def verifier_options(kind: Any) -> type[Options]:
    """Return the model of a leaf's options: the verifier class's parameters plus the wrapper
    options."""
    if not hasattr(kind, "from_pretrained"):
        return options_of(kind.__name__, kind, fields=WRAPPERS)
    path, *_ = inspect.signature(kind.from_pretrained).parameters
    fields = {"model": (str, ...), **WRAPPERS}
    return options_of(kind.__name__, kind, kind.from_pretrained, without={path}, fields=fields)


def unwrapped(leaf: dict[str, Any]) -> dict[str, Any]:
    """Return a leaf without its wrapper options."""
    return {name: value for name, value in leaf.items() if name not in WRAPPERS}


def not_a_node(node: Any) -> str:
    """Describe what is wrong with a value that is not a node, and what to write instead."""
    if isinstance(node, str):
        name = next(iter(near(names(VERIFIERS), node)), "NAME")
        return f"expected a mapping such as {{type: {name}}}, got {shown(node)}"
    several = "; write several verifiers as {all: [...]}" if isinstance(node, list) else ""
    return f"expected a mapping such as {{type: screens}}, got {shown(node)}{several}"


def build_verifier(
    node: Any,
    alpha: float,
    where: str = "verifier",
    *,
    store: NodeStore | None = None,
    live: Live | None = None,
) -> CompletionVerifier:
    """Build the verifier described by one node of the tree. Raises ConfigError if a node is wrong;
    the message begins with the node's location in the tree.

    Args:
        node: A leaf ``{type: NAME, ...options}``, or a combinator over nodes.
        alpha: Value of ``alpha`` for verifiers that do not set their own.
        where: Location of the node in the file, for messages.
        store: Store for the state of verifiers that remember nodes; if None, they keep it
            themselves.
        live: The policy in training, used instead of the model and sampler named in a leaf.
    """
    with without_secrets(node):
        return _Builder(alpha, store, live).node(node, where)


@dataclass(frozen=True, slots=True)
class _Builder:
    alpha: float
    store: NodeStore | None
    live: Live | None

    def node(self, node: Any, where: str) -> CompletionVerifier:
        if not isinstance(node, dict):
            raise ConfigError(f"{where}: {not_a_node(node)}")
        if "type" in node:
            return self._leaf(dict(node), where)
        kinds = [key for key in node if key in _COMBINATORS]
        if "not" in node and len(node) == 1:
            return ~self.node(node["not"], f"{where}.not")
        if "ray" in node:
            return self._on_ray(dict(node), where)
        if len(kinds) == 1:
            return self._combinator(kinds[0], dict(node), where)
        if "frequent" in node:
            raise ConfigError(f"{where}.frequent: expected its verifier alone, with {_IN_LEAF}")
        raise ConfigError(
            f"{where}: expected type: NAME, or one of {', '.join(_COMBINATORS)}, not, ray; "
            f"got {', '.join(map(named, node)) or 'nothing'}"
        )

    def _combinator(self, key: str, options: dict[str, Any], where: str) -> CompletionVerifier:
        inner = options.pop(key)
        if not isinstance(inner, list) or not inner:
            got = "an empty one" if inner == [] else shown(inner)
            if isinstance(inner, dict):
                got = "a mapping; put it in square brackets"
            raise ConfigError(f"{where}.{key}: expected a non-empty list, got {got}")
        members = [self.node(n, f"{where}.{key}[{i}]") for i, n in enumerate(inner)]
        model = options_of(key, _COMBINATORS[key])
        explicit = model.read(options, f"{where}.{key}").explicit_values()
        if self.store is not None and "store" in model.from_python:
            explicit["store"] = self.store
        with placing(f"{where}.{key}: ", TypeError, ValueError):
            return _COMBINATORS[key](*members, **explicit)

    def _on_ray(self, options: dict[str, Any], where: str) -> CompletionVerifier:
        inner = options.pop("ray")
        if self.live is not None:
            raise ConfigError(
                f"{where}.ray: expected none with a policy in training; workers do not have it"
            )
        kind = load(VERIFIERS, _RAY)
        explicit = options_of("ray", kind).read(options, where).explicit_values()
        make = partial(build_verifier, inner, self.alpha, f"{where}.ray")
        refused = (ModuleNotFoundError, ConnectionError, TypeError, ValueError)
        with placing(f"{where}.ray: ", *refused):
            made: CompletionVerifier = kind(
                make, decide=lambda: self.node(inner, f"{where}.ray"), **explicit
            )
        return made

    def _leaf(self, data: dict[str, Any], where: str) -> CompletionVerifier:
        given = data.pop("type")
        name = str(given)
        plain = re.fullmatch(r"[A-Za-z_][\w.]{0,80}(:\w{1,80})?", name)
        if plain is None and not is_name(name):
            raise ConfigError(f"{where}.type: expected a name, got {shown(given)}")
        for option, instead in _GONE.get(name, _GONE[""]).items():
            if option in data:
                raise ConfigError(f"{where}.{option}: expected {instead}")
        _require_known(name, data, where)
        kind, model = _loaded(name, where)
        for option in data if model.model_config["extra"] == "forbid" else ():
            if option not in model.from_python:
                _require_option(model.model_fields, option, name, where)
        if "alpha" in model.model_fields:
            data.setdefault("alpha", self.alpha)
        live = self.live if self.live and reads_policy(kind) else None
        options: Any = model.read(data if live is None else live.fill_defaults(data, kind), where)
        arguments = options.explicit_values(without=WRAPPERS)
        if self.store is not None and "store" in model.from_python:
            arguments["store"] = self.store
        loads = hasattr(kind, "from_pretrained") and live is None
        build = kind.from_pretrained if loads else kind
        first = [arguments.pop("model")] if loads else []
        try:
            if live is not None:
                arguments = live.override(arguments, kind)
            return _wrapped(build(*first, **arguments), options)
        except ModuleNotFoundError as error:
            raise ConfigError(f"{where} ({name}): {with_remedy(error)}") from None
        except (TypeError, ValueError, LedgerError) as error:
            raise ConfigError(f"{where} ({name}): {error}") from None


def _loaded(name: str, where: str) -> tuple[type[Any], type[Options]]:
    """Load a leaf's class and the model of its options; raises ConfigError if that fails."""
    try:
        kind = load_class(VERIFIERS, name, CompletionVerifier)
        return kind, verifier_options(kind)
    except UnknownNameError as error:
        if name in _ADDED_BY:
            problem = f"{shown(name)} is not written as a type: it comes with {_ADDED_BY[name]}"
            raise ConfigError(f"{where}.type: {problem}") from None
        module, dot, attribute = name.rpartition(".")
        own = f"; write a class of your own as {module}:{attribute}" if dot else ""
        raise ConfigError(f"{where}.type: {error}{'' if ':' in name else own}") from None
    except ImportError as error:
        raise ConfigError(f"{where} ({name}): {error}") from None


def _require_known(name: str, data: dict[str, Any], where: str) -> None:
    """Refuse an unknown option before the packages that the verifier needs are loaded. Raises
    ConfigError if an option is unknown; the message gives the location and the option that was
    probably meant."""
    for option in data if name in OPTIONS else ():
        if option not in PYTHON_ONLY:
            _require_option(OPTIONS[name], option, name, where)


def _require_option(known: Collection[str], option: object, name: str, where: str) -> None:
    """Refuse an option that a verifier does not have. Raises ConfigError if the option is unknown;
    the message names the verifier, the verifier's options and the option that was probably meant.
    """
    try:
        choose(known, named(option))
    except UnknownNameError as error:
        text = str(error).replace("expected one of", f"expected an option of {name}, one of", 1)
        # There are few options to confuse, so a loose match is enough for a hint.
        nearest = difflib.get_close_matches(named(option), known, n=1, cutoff=0.5)
        hint = f"; did you mean {nearest[0]!r}?" if nearest and "did you mean" not in text else ""
        raise ConfigError(f"{where}: {text}{hint}") from None


def _wrapped(verifier: Any, options: Any) -> CompletionVerifier:
    if not isinstance(verifier, CompletionVerifier):
        raise TypeError(f"expected a CompletionVerifier, got a {type(verifier).__name__}")
    if options.calibration is not None:
        verifier = Calibrated(verifier, options.calibration)
    return verifier if options.only is None else only(verifier, **options.only.explicit_values())
