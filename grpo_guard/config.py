"""A guard from a YAML file: the same names and the same objects as from Python.

.. code-block:: yaml

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
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grpo_guard.calibrated import Calibrated
from grpo_guard.ensemble import AllOf, AnyOf, Cascade, Vote
from grpo_guard.guard import Guard
from grpo_guard.ledger.frequent import FrequentFindings
from grpo_guard.ledger.ledger import EvidenceLedger
from grpo_guard.ledger.schema import LedgerError
from grpo_guard.ledger.verifier import StandingVerifier
from grpo_guard.policy import OnAbstain, OnLong, Policy
from grpo_guard.redaction import OPTION, hidden, secrets_in
from grpo_guard.registry import VERIFIERS, UnknownNameError, load
from grpo_guard.sampling import Engine, SamplingSpec
from grpo_guard.verifier import CompletionVerifier


class ConfigError(ValueError):
    """The configuration is malformed; the message names file, field, expectation and, unless a key
    may be in it, the value."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PolicyConfig(_Strict):
    """See `Policy`; what is not given is as there. A list is a choice in order of preference."""

    on_reject: str | float | tuple[str | float, ...] = ()
    on_abstain: OnAbstain | tuple[OnAbstain, ...] = ()
    on_long: OnLong | tuple[OnLong, ...] = "keep"
    max_abstain_rate: float = 0.25
    abstain_window: int = 20

    def build(self) -> Policy:
        return Policy(**self.model_dump(exclude_unset=True))


class _EvidenceConfig(_Strict):
    """What every ledger is made from; see `EvidenceLedger`."""

    path: str
    alpha: float = 1e-3
    ratio: float = 1.25
    offset: float = 0.01
    hostile: float = 1 / 3
    half_life: float = 50.0

    def open(self) -> EvidenceLedger:
        return EvidenceLedger(
            self.path, **self.model_dump(include=set(_EvidenceConfig.model_fields) - {"path"})
        )


class FrequentConfig(_EvidenceConfig):
    """See `FrequentFindings`; the ledger's file is one of its own."""

    kinds: list[str]
    batch_alpha: float = 0.01

    def build(self, member: CompletionVerifier) -> CompletionVerifier:
        return FrequentFindings(member, self.open(), kinds=self.kinds, batch_alpha=self.batch_alpha)


class LedgerConfig(_EvidenceConfig):
    """See `EvidenceLedger`.

    Args:
        exclude: Reject what comes from nodes that the ledger has convicted; without it the ledger
            only keeps the books.
    """

    exclude: bool = True

    def build(self, verifier: CompletionVerifier) -> tuple[CompletionVerifier, EvidenceLedger]:
        """The verifier with the nodes' standing before it, and the ledger to tell of verdicts."""
        ledger = self.open()
        # Not in a cascade: what it cut off would be no evidence, and a convicted node could never
        # be seen to have mended its ways.
        return (AllOf(StandingVerifier(ledger), verifier) if self.exclude else verifier), ledger


class SamplingConfig(_Strict):
    """See `SamplingSpec`."""

    engine: Engine
    temperature: float
    top_k: int
    top_p: float
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def build(self) -> SamplingSpec:
        return SamplingSpec(**self.model_dump())


class GuardConfig(_Strict):
    """The whole file.

    Args:
        alpha: False-positive budget of each verifier per completion, unless it says its own.
        policy: What verdicts do to rewards.
        verifier: One node of the tree: ``{type: NAME, ...options}``, or a combinator
            ``all``, ``any``, ``vote``, ``cascade`` over a list, or ``not`` over one node. Beside
            the list stand the combinator's own options: ``alpha`` and ``shares`` of ``all`` and
            ``cascade``, ``rejects`` of ``vote``. ``calibration: FILE`` in a leaf gives it the
            p-values of `Calibrated`, ``frequent: {path: FILE, kinds: [...]}`` the memory of
            `FrequentFindings`.
        ledger: Evidence per node over rounds, in a file; None = none is kept.
    """

    alpha: float = Field(default=1e-3, gt=0, lt=1)
    policy: PolicyConfig = PolicyConfig()
    verifier: dict[str, Any]
    ledger: LedgerConfig | None = None

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
                return cls.model_validate(data)
            except ValidationError as error:
                raise ConfigError(_first_problem(str(path), error)) from None

    def build(self) -> Guard:
        """The guard; models are loaded here.

        Raises:
            ConfigError: a verifier is unknown, its options are wrong, or what it needs from
                outside is not there.
        """
        with _without_secrets(self.verifier):
            return self._built()

    def _built(self) -> Guard:
        try:
            policy = self.policy.build()
        except ValueError as error:
            raise ConfigError(f"policy: {error}") from None
        self._require_own_files()
        verifier = build_verifier(self.verifier, self.alpha)
        try:
            verifier.check()
        except Exception as error:
            raise ConfigError(f"verifier: {error}") from error
        ledger = None
        if self.ledger is not None:
            try:
                verifier, ledger = self.ledger.build(verifier)
            except (ValueError, LedgerError) as error:
                raise ConfigError(f"ledger: {error}") from None
        try:
            return Guard(verifier, policy=policy, ledger=ledger)
        except ValueError as error:  # a policy that this verifier cannot serve
            raise ConfigError(f"policy: {error}") from None

    def _require_own_files(self) -> None:
        """In a file that two of them shared, evidence of one kind would pass for the other's."""
        paths = list(_evidence_files(self.verifier))
        paths += [self.ledger.path] if self.ledger is not None else []
        for path in paths:
            if paths.count(path) > 1:
                raise ConfigError(f"path: expected a file for each ledger, got {path!r:.80} twice")


@cache
def _yaml_loader() -> Any:
    """The safe loader, with numbers as people write them: to YAML 1.1, 1e-3 is a text."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    exponent = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+\Z")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+.0123456789"))
    return Loader


def _evidence_files(node: Any) -> Iterator[str]:
    """Paths under ``frequent`` anywhere in the tree."""
    if isinstance(node, dict):
        frequent = node.get("frequent")
        if isinstance(frequent, dict) and isinstance(frequent.get("path"), str):
            yield frequent["path"]
        for inner in node.values():
            yield from _evidence_files(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from _evidence_files(inner)


def build_verifier(node: Any, alpha: float, where: str = "verifier") -> CompletionVerifier:
    """The verifier that one node of the tree describes.

    Raises:
        ConfigError: with the place in the tree.
    """
    with _without_secrets(node):
        return _build_node(node, alpha, where)


def _build_node(node: Any, alpha: float, where: str) -> CompletionVerifier:
    if not isinstance(node, dict):
        raise ConfigError(f"{where}: expected a mapping, got {_shown(node)}")
    if "type" in node:
        return _build_leaf(dict(node), alpha, where)
    kinds = [key for key in node if key in _COMBINATORS]
    if "not" in node and len(node) == 1:
        return ~_build_node(node["not"], alpha, f"{where}.not")
    if len(kinds) == 1:
        return _build_combinator(kinds[0], dict(node), alpha, where)
    raise ConfigError(
        f"{where}: expected type: NAME, or one of {', '.join(_COMBINATORS)}, not; "
        f"got {', '.join(map(_named, node)) or 'nothing'}"
    )


_COMBINATORS: dict[str, Callable[..., CompletionVerifier]]
_COMBINATORS = {"all": AllOf, "any": AnyOf, "vote": Vote, "cascade": Cascade}


def _build_combinator(
    key: str, options: dict[str, Any], alpha: float, where: str
) -> CompletionVerifier:
    inner = options.pop(key)
    if not isinstance(inner, list) or not inner:
        raise ConfigError(f"{where}.{key}: expected a non-empty list, got {_shown(inner)}")
    members = [_build_node(n, alpha, f"{where}.{key}[{i}]") for i, n in enumerate(inner)]
    try:
        return _COMBINATORS[key](*members, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}.{key}: {error}") from None


def _build_leaf(options: dict[str, Any], alpha: float, where: str) -> CompletionVerifier:
    name = options.pop("type")
    if re.fullmatch(r"[A-Za-z_][\w.]{0,80}(:\w{1,80})?", str(name)) is None:
        raise ConfigError(f"{where}.type: expected a name, got {_shown(name)}")
    if "sampling" in options:
        options["sampling"] = _sampling(options["sampling"], f"{where}.sampling")
    try:
        kind = load(VERIFIERS, str(name))
    except UnknownNameError as error:
        raise ConfigError(f"{where}.type: {error}") from None
    calibration, frequent = options.pop("calibration", None), options.pop("frequent", None)
    memory = None if frequent is None else _frequent(frequent, where)
    if "alpha" in inspect.signature(kind).parameters:
        options.setdefault("alpha", alpha)
    build = kind
    if "model" in options and hasattr(kind, "from_pretrained"):
        build, options = kind.from_pretrained, {"path_or_id": options.pop("model"), **options}
    try:
        verifier = build(**options)
        assert isinstance(verifier, CompletionVerifier)
        if calibration is not None:
            verifier = Calibrated(verifier, str(calibration))
        return verifier if memory is None else memory.build(verifier)
    except (TypeError, ValueError, LedgerError) as error:
        raise ConfigError(f"{where} ({name}): {error}") from None


def _frequent(data: Any, where: str) -> FrequentConfig:
    try:
        return FrequentConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_first_problem(f"{where}.frequent", error)) from None


def _sampling(data: Any, where: str) -> SamplingSpec:
    try:
        return SamplingConfig.model_validate(data).build()
    except ValidationError as error:
        raise ConfigError(_first_problem(where, error)) from None
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def _first_problem(where: str, error: ValidationError) -> str:
    problem = error.errors()[0]
    field = ".".join(map(_named, problem["loc"])) or "(file)"
    # What stands in the wrong place may be a key.
    extra = problem["type"] == "extra_forbidden"
    got = "" if extra else f", got {_shown(problem['input'])}"
    return f"{where}: {field}: {problem['msg']}{got}"


def _named(field: object) -> str:
    """A field's name, unless a missing space has made a value part of it."""
    known = isinstance(field, int) or OPTION.fullmatch(str(field))
    return str(field) if known else "(no option's name)"


def _shown(value: object) -> str:
    """A value for a message, or its type where it may be a key or hold one."""
    if value is None or isinstance(value, bool | float):
        return repr(value)
    if isinstance(value, int):
        return str(value) if abs(value) < 10**9 else "a large integer"
    if isinstance(value, str):
        plain = re.fullmatch("[a-z_]{0,20}", value)
        return repr(value) if plain else f"{len(value)} characters of text"
    return f"a {type(value).__name__}"


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
        raise ConfigError(said) from None
