"""A guard from a YAML file: the same names and the same objects as from Python.

.. code-block:: yaml

    preset: different_weights                  # or a tree:
    state: guard-state

    alpha: 0.001
    policy: {on_reject: zero, on_abstain: skip}
    verifier:
      all:                                     # also: any, vote, cascade, not
        - type: logprob_bound
          model: PATH_OR_ID
          sampling: {engine: transformers, temperature: 1.0, top_k: 50, top_p: 1.0}
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from grpo_guard.calibrated import Calibrated
from grpo_guard.ensemble import AllOf, AnyOf, Cascade, Vote
from grpo_guard.guard import Guard
from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.nodes.schema import LedgerError
from grpo_guard.nodes.standing_verifier import StandingVerifier
from grpo_guard.options import ConfigError, Options, named, options_of, shown
from grpo_guard.policy import Policy
from grpo_guard.presets import POLICIES, PRESETS
from grpo_guard.redaction import hidden, secrets_in
from grpo_guard.registry import VERIFIERS, UnknownNameError, choose, load, with_remedy
from grpo_guard.verifier import CompletionVerifier, only

__all__ = [
    "WRAPPERS",
    "ConfigError",
    "GuardConfig",
    "build_verifier",
    "preset_options",
    "unwrapped",
    "verifier_options",
]

if TYPE_CHECKING:

    class PolicyConfig(Options): ...

    class LedgerConfig(Options):
        path: str
        exclude: bool

else:
    PolicyConfig = options_of("PolicyConfig", Policy)
    LedgerConfig = options_of("LedgerConfig", EvidenceLedger, fields={"exclude": (bool, True)})
_ONLY = options_of("OnlyConfig", only)
WRAPPERS: dict[str, Any] = {
    "only": (_ONLY | None, None),
    "calibration": (str | None, None),
}
"""What a leaf may say beside its verifier's own options, as (type, default)."""
# What `**options` of a preset are.
_OPTIONS_OF = {"same_weights": "logprob_bound", "shared_seed": "seed_replay", "judged": "judge"}


class GuardConfig(Options):
    """The whole file: a preset with its options beside it, or a tree of verifiers.

    Args:
        alpha: False-positive budget of each verifier per completion, unless it says its own.
        policy: What verdicts do to rewards, see `Policy`; what is not said is as there, or as the
            preset has it. A list is a choice in order of preference.
        preset: One of `grpo_guard.presets`. Its options stand beside it, and ``beside``: a list of
            trees that judge as well.
        state: Folder for what a preset remembers.
        verifier: One node of the tree: ``{type: NAME, ...options}``, or a combinator
            ``all``, ``any``, ``vote``, ``cascade`` over a list, or ``not`` over one node. Beside
            the list stand the combinator's own options: ``alpha`` and ``shares`` of ``all`` and
            ``cascade``, ``rejects`` of ``vote``. NAME is registered, or ``package.module:Class``.
            In a leaf, ``only: {task: TASK}`` is `only`, ``calibration: FILE`` gives it the
            p-values of `Calibrated`, ``severity: {KIND: count}`` says what findings do.
        ledger: Evidence per node over rounds, in a file, see `EvidenceLedger`; with
            ``exclude: false`` it only keeps the books, and what comes from nodes that it has
            convicted is not rejected. None = none is kept.
    """

    model_config = Options.model_config | {"extra": "allow"}

    alpha: float = Field(default=1e-3, gt=0, lt=1)
    policy: PolicyConfig = PolicyConfig()
    preset: str | None = None
    state: str | None = None
    # No `repr`: a backend's key may stand in it.
    verifier: dict[str, Any] | None = Field(default=None, repr=False)
    ledger: LedgerConfig | None = None

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Without a preset's options either."""
        known = type(self).model_fields
        return ((name, value) for name, value in super().__repr_args__() if name in known)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.preset is None:
            for name in self.model_extra or ():
                known = [name for name in type(self).model_fields if name != "state"]
                _choose(known, named(name), "")
            if self.verifier is None:
                raise ValueError("expected verifier: or preset:, got neither")
            if self.state is not None:
                raise ValueError("state: expected beside preset:; of a tree, name each path")
        return self

    @classmethod
    def from_yaml(cls, path: str | Path) -> GuardConfig:
        """Read a file.

        Raises:
            ConfigError: it cannot be read, is not YAML, or a field is wrong.
        """
        import yaml

        try:
            data = yaml.load(Path(path).read_text(encoding="utf-8"), _yaml_loader())
        except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
            problem = _unquoting(error)
            raise ConfigError(f"{path}: (file): expected readable YAML, got {problem}") from None
        if not isinstance(data, dict):
            raise ConfigError(f"{path}: (file): expected a mapping, got {type(data).__name__}")
        with _without_secrets(data):
            try:
                config: GuardConfig = cls.read({str(name): v for name, v in data.items()}, "")
            except ConfigError as error:
                raise ConfigError(f"{path}: {error}") from None
        return config

    def build(self) -> Guard:
        """The guard; models are loaded here.

        Raises:
            ConfigError: a verifier is unknown, its options are wrong, or what it needs from
                outside is not there.
        """
        with _without_secrets(self.said()):
            guard = self._of_tree() if self.preset is None else self._of_preset()
            try:
                guard.verifier.check()
            except Exception as error:
                raise ConfigError(f"verifier: {error}") from error
            return guard

    def whole_policy(self) -> Policy:
        """The policy, with the preset's where the file says nothing.

        Raises:
            ConfigError: a rule or number is out of range, or the preset is unknown.
        """
        base = Policy() if self.preset is None else POLICIES[self._known_preset()]
        try:
            return replace(base, **self.policy.said())
        except ValueError as error:
            raise ConfigError(f"policy: {error}") from None

    def tree(self) -> dict[str, Any]:
        """The verifiers, for commands that look at them one by one.

        Raises:
            ConfigError: the file names a preset.
        """
        if self.verifier is None:
            raise ConfigError("verifier: expected a tree of verifiers, got a preset; write it out")
        return self.verifier

    def _known_preset(self) -> str:
        return _choose(list(PRESETS), str(self.preset), "preset")

    def _of_preset(self) -> Guard:
        name, policy = self._known_preset(), self.whole_policy()
        model = preset_options(name)
        said = {n: v for n, v in self.said().items() if n not in ("preset", "policy")}
        arguments = model.read(said, name).said()
        arguments |= dict.fromkeys(model.from_python & {"tokenizer"})
        if "beside" in arguments:
            nodes = enumerate(arguments["beside"])
            arguments["beside"] = [_build_node(n, self.alpha, f"beside[{i}]") for i, n in nodes]
        try:
            return PRESETS[name](**arguments, policy=policy)
        except ModuleNotFoundError as error:
            raise ConfigError(f"preset ({name}): {with_remedy(error)}") from None
        except (TypeError, ValueError, LedgerError) as error:
            raise ConfigError(f"preset ({name}): {error}") from None

    def _of_tree(self) -> Guard:
        policy = self.whole_policy()
        verifier, ledger = build_verifier(self.verifier, self.alpha), None
        if self.ledger is not None:
            try:
                ledger = EvidenceLedger(**self.ledger.said(without={"exclude"}))
            except (ValueError, LedgerError) as error:
                raise ConfigError(f"ledger: {error}") from None
            if self.ledger.exclude:
                # Not in a cascade: what it cut off would be no evidence, and a convicted node
                # could never be seen to have mended its ways.
                verifier = AllOf(StandingVerifier(ledger), verifier)
        try:
            return Guard(verifier, policy=policy, ledger=ledger)
        except ValueError as error:  # a policy that this verifier cannot serve
            raise ConfigError(f"policy: {error}") from None


def _choose(known: list[str], name: str, where: str) -> str:
    try:
        return choose(known, named(name))
    except UnknownNameError as error:
        raise ConfigError(f"{where}: {error}" if where else str(error)) from None


@cache
def verifier_options(kind: Any) -> type[Options]:
    """What a leaf may say of a verifier's class: its parameters, and what wraps it."""
    if not hasattr(kind, "from_pretrained"):
        return options_of(kind.__name__, kind, fields=WRAPPERS)
    path, *_ = inspect.signature(kind.from_pretrained).parameters
    fields = {"model": (str, ...), **WRAPPERS}
    return options_of(kind.__name__, kind, kind.from_pretrained, without={path}, fields=fields)


@cache
def preset_options(name: str) -> type[Options]:
    """What may stand beside ``preset: NAME``, but for ``policy``.

    Raises:
        ImportError: the preset needs a package that is missing.
    """
    preset, makers = PRESETS[name], []
    if name in _OPTIONS_OF:
        kind = load(VERIFIERS, _OPTIONS_OF[name])
        makers = [kind, *([kind.from_pretrained] if hasattr(kind, "from_pretrained") else [])]
    beside = "beside" in inspect.signature(preset).parameters
    fields: dict[str, Any] = {"beside": (list[dict[str, Any]], [])} if beside else {}
    return options_of(name, preset, *makers, without={"policy", "path_or_id", "run"}, fields=fields)


def unwrapped(leaf: dict[str, Any]) -> dict[str, Any]:
    """A leaf without what wraps its verifier."""
    return {name: value for name, value in leaf.items() if name not in WRAPPERS}


@cache
def _yaml_loader() -> Any:
    """The safe loader, with numbers as people write them: to YAML 1.1, 1e-3 is a text."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    exponent = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+\Z")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+.0123456789"))
    return Loader


def build_verifier(node: Any, alpha: float, where: str = "verifier") -> CompletionVerifier:
    """The verifier that one node of the tree describes.

    Raises:
        ConfigError: with the place in the tree.
    """
    with _without_secrets(node):
        return _build_node(node, alpha, where)


def _build_node(node: Any, alpha: float, where: str) -> CompletionVerifier:
    if not isinstance(node, dict):
        raise ConfigError(f"{where}: expected a mapping, got {shown(node)}")
    if "type" in node:
        return _build_leaf(dict(node), alpha, where)
    kinds = [key for key in node if key in _COMBINATORS]
    if "not" in node and len(node) == 1:
        return ~_build_node(node["not"], alpha, f"{where}.not")
    if len(kinds) == 1:
        return _build_combinator(kinds[0], dict(node), alpha, where)
    raise ConfigError(
        f"{where}: expected type: NAME, or one of {', '.join(_COMBINATORS)}, not; "
        f"got {', '.join(map(named, node)) or 'nothing'}"
    )


_COMBINATORS: dict[str, Callable[..., CompletionVerifier]]
_COMBINATORS = {"all": AllOf, "any": AnyOf, "vote": Vote, "cascade": Cascade}


def _build_combinator(
    key: str, options: dict[str, Any], alpha: float, where: str
) -> CompletionVerifier:
    inner = options.pop(key)
    if not isinstance(inner, list) or not inner:
        raise ConfigError(f"{where}.{key}: expected a non-empty list, got {shown(inner)}")
    members = [_build_node(n, alpha, f"{where}.{key}[{i}]") for i, n in enumerate(inner)]
    said = options_of(key, _COMBINATORS[key]).read(options, f"{where}.{key}").said()
    try:
        return _COMBINATORS[key](*members, **said)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}.{key}: {error}") from None


def _build_leaf(data: dict[str, Any], alpha: float, where: str) -> CompletionVerifier:
    name = data.pop("type")
    if re.fullmatch(r"[A-Za-z_][\w.]{0,80}(:\w{1,80})?", str(name)) is None:
        raise ConfigError(f"{where}.type: expected a name, got {shown(name)}")
    if "frequent" in data:
        raise ConfigError(
            f"{where}.frequent: expected severity: {{KIND: count}} in its place; counts lie in the "
            "guard's state: FOLDER"
        )
    try:
        kind = load(VERIFIERS, str(name))
        model = verifier_options(kind)
    except UnknownNameError as error:
        raise ConfigError(f"{where}.type: {error}") from None
    except ImportError as error:
        raise ConfigError(f"{where} ({name}): {error}") from None
    if "alpha" in model.model_fields:
        data.setdefault("alpha", alpha)
    options: Any = model.read(data, where)
    arguments = options.said(without=WRAPPERS)
    build = kind.from_pretrained if hasattr(kind, "from_pretrained") else kind
    first = [arguments.pop("model")] if build is not kind else []
    try:
        return _wrapped(build(*first, **arguments), options)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{where} ({name}): {with_remedy(error)}") from None
    except (TypeError, ValueError, LedgerError) as error:
        raise ConfigError(f"{where} ({name}): {error}") from None


def _wrapped(verifier: Any, options: Any) -> CompletionVerifier:
    if not isinstance(verifier, CompletionVerifier):
        raise TypeError(f"expected a CompletionVerifier, got a {type(verifier).__name__}")
    if options.calibration is not None:
        verifier = Calibrated(verifier, options.calibration)
    return verifier if options.only is None else only(verifier, **options.only.said())


def _unquoting(error: Exception) -> str:
    """What a YAML reader says, without the lines and words that it quotes: a key may be there."""
    mark = getattr(error, "problem_mark", None)
    said = getattr(error, "problem" if mark is not None else "strerror", None)
    said = re.sub(r"""(["']).{5,}\1""", "'...'", said or type(error).__name__, flags=re.DOTALL)
    place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
    return f"{said:.200}{place}"


@contextlib.contextmanager
def _without_secrets(data: Any) -> Iterator[None]:
    """Errors in whose messages no key of ``data`` stands."""
    try:
        yield
    except ConfigError as error:
        said = hidden(str(error), secrets_in(data))
        if said == str(error):
            raise
    else:
        return
    # Out here, or the error that quotes the key would travel along as this one's context.
    raise ConfigError(said)
