"""Read a guard from a YAML file that uses the names and objects of the Python API.

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

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from grpo_guard.config.live import Live, reads_policy
from grpo_guard.config.preset_options import (
    IN_THE_SUITE,
    NO_OPTIONS,
    OPTIONS_OF,
    chosen,
    leaves_of,
    preset_options,
    require_no_preset_option,
    require_options,
    require_plain,
)
from grpo_guard.config.presets import POLICIES, PRESETS
from grpo_guard.config.sections import (
    IdentityConfig,
    LedgerConfig,
    PolicyConfig,
    identity_of,
    ledger_of,
)
from grpo_guard.config.tree import build_verifier, not_a_node
from grpo_guard.config.yaml_text import mapping_from, unreadable
from grpo_guard.core.detokenizer import Detokenizer
from grpo_guard.core.ensemble import AllOf
from grpo_guard.core.files import nowhere
from grpo_guard.core.jsonl import InputError
from grpo_guard.core.model_paths import missing_models
from grpo_guard.core.options import (
    ConfigError,
    Options,
    in_file,
    named,
    placing,
    shown,
    without_secrets,
)
from grpo_guard.core.registry import VERIFIERS, UnknownNameError, load, with_remedy
from grpo_guard.guard import Guard
from grpo_guard.guard.graders import GraderFailures
from grpo_guard.guard.policy import Policy
from grpo_guard.guard.references import References
from grpo_guard.guard.state_owner import claim_state, claims_held
from grpo_guard.guard.workers.texts import MOST_WORKERS, Workers
from grpo_guard.nodes.exclusion_verifier import ExclusionVerifier
from grpo_guard.nodes.rounds import MAX_NODES
from grpo_guard.nodes.schema import LedgerError
from grpo_guard.nodes.store import NodeStore


class GuardConfig(Options):
    """The contents of a guard file: a preset with its options, or a tree of verifiers.

    Args:
        alpha: False-positive budget of each verifier per completion, unless the verifier sets its
            own.
        policy: How verdicts change rewards, see `Policy`. The preset, or else `Policy` itself, sets
            the defaults. A list gives alternatives in order of preference.
        preset: Name of a preset in `grpo_guard.config.presets`. The preset's options go next to it
            at the top level, along with ``beside``, a list of additional trees that also judge.
        state: Folder for everything remembered about nodes, see `NodeStore`.
        environment: A function ``package.module:function`` that reproduces the tool and user turns
            of a multi-turn completion, see `Environment`.
        verifier: Root node of the tree: ``{type: NAME, ...options}``, or a combinator
            ``all``, ``any``, ``vote``, ``cascade`` over a list, or ``not`` or ``ray`` over one
            node. The combinator's own options go next to the list: ``alpha`` and ``shares`` of
            ``all`` and ``cascade``, ``rejects`` of ``vote``, and the options of `RayVerifier` for
            ``ray``. NAME is a registered name or ``package.module:Class``.
            In a leaf, ``only: {task: TASK}`` restricts the verifier as `only` does,
            ``calibration: FILE`` adds the p-values of `Calibrated`, and ``severity: {KIND: count}``
            sets the effect of findings.
        ledger: Evidence per node across rounds, kept in a file, see `EvidenceLedger`. With
            ``exclude: false`` the ledger only records evidence, and completions from convicted
            nodes are not rejected. None for no ledger.
        identity: Proof of who sent each completion: a file of ``keys``, see `KeyRing.from_file`,
            ``pin`` and ``most_pinned`` of `KeyRing`, and the options of `Identity`. If None, names
            are trusted as sent.
        references: File of the task's own reference answers, see `References.from_file`. If None,
            references are used as sent.
        tokenizer: Folder or id of the policy's tokenizer. Verifiers then read the decoded token ids
            instead of the text sent with them, see `Guard`. Not allowed with presets that load the
            policy.
        log: File to which every verdict other than an acceptance is appended, see `VerdictLog`; for
            ``grpo-guard verify --table``. None for no log.
        workers: Number of processes that read texts, see `Guard`. 0 for none; None for half of the
            cores if a batch is large.
    """

    model_config = Options.model_config | {"extra": "allow"}
    _file: str = PrivateAttr(default="")  # for messages

    alpha: float = Field(default=1e-3, gt=0, lt=1)
    policy: PolicyConfig = PolicyConfig()
    preset: str | None = None
    state: str | None = None
    environment: str | None = None
    # Not in `repr`: it could contain a backend's API key.
    verifier: dict[str, Any] | None = Field(default=None, repr=False)
    ledger: LedgerConfig | None = None
    identity: IdentityConfig | None = None
    references: str | None = None
    tokenizer: str | None = None
    log: str | None = None
    workers: int | None = Field(default=None, ge=0, le=MOST_WORKERS)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Leave out a preset's options too."""
        known = type(self).model_fields
        return ((name, value) for name, value in super().__repr_args__() if name in known)

    @field_validator("verifier", mode="before")
    @classmethod
    def _node(cls, value: Any) -> Any:
        if not isinstance(value, dict | None):
            raise ValueError(not_a_node(value))
        return value

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.preset is None:
            for name in self.model_extra or ():
                require_no_preset_option(name)
                chosen(list(type(self).model_fields), named(name), "")
            if self.verifier is None:
                raise ValueError("expected verifier: or preset:, got neither")
            if self.ledger is not None and (self.ledger.path is None) is (self.state is None):
                got = "neither" if self.state is None else "both"
                raise ValueError(f"state, ledger.path: expected one of them, got {got}")
        return self

    @classmethod
    def from_yaml(cls, path: str | Path) -> "GuardConfig":
        """Read a guard file. Raises ConfigError if the file cannot be read or is not YAML, or a
        field is wrong."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            name = str(path).removeprefix("preset:").strip()
            missing = f"expected a guard file, got none there; write `preset: {name}` into one"
            if name not in PRESETS:
                missing = nowhere(Path(path), "a guard file")
            raise ConfigError(f"{path}: {missing}") from None
        except (OSError, ValueError) as error:
            raise unreadable(str(path), error) from None
        return cls.from_text(text, str(path))

    @classmethod
    def from_text(cls, text: str, name: str) -> "GuardConfig":
        """Read the contents of a guard file, as YAML; messages name the file ``name``. Raises
        ConfigError if the text is not YAML, or a field is wrong."""
        data = mapping_from(text, name)
        with without_secrets(data):
            try:
                config: GuardConfig = cls.read({str(key): v for key, v in data.items()}, "")
            except ConfigError as error:
                raise in_file(name, error) from None
        config._file = name
        return config

    @contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Prefix the messages of errors in the block with the file's name."""
        try:
            yield
        except ConfigError as error:
            raise in_file(self._file, error) from error.__cause__

    def build(self, live: Live | None = None) -> Guard:
        """Build the guard, and load its models. Raises ConfigError if a name or an option is wrong,
        or an external resource is missing.

        Args:
            live: The policy in training, used instead of the model and sampler named in the file.
        """
        with self.naming_errors(), without_secrets(self.explicit_values()), claims_held():
            if live is None:  # before torch is loaded, and before the hub is asked for a folder
                for place, problem in missing_models(self.explicit_values(), ""):
                    raise ConfigError(f"{place}: {problem}")
            guard = self._of_tree(live) if self.preset is None else self._of_preset(live)
            if self.identity is not None:
                guard.identity = identity_of(self.identity, self._store())
            if self.references is not None:
                with placing("references: ", InputError):
                    guard.references = References.from_file(self.references)
            guard = self._asking(guard)
            with placing("", ValueError):  # its message names the option
                guard.log, guard.workers = self.log, Workers(self.workers)
            try:
                guard.verifier.check()
            except Exception as error:
                raise ConfigError(f"verifier: {error}") from error
            return guard

    def whole_policy(self) -> Policy:
        """Return the policy, with the preset's values for everything the file does not set. Raises
        ConfigError if a rule or number is out of range, or the preset is unknown."""
        base = Policy() if self.preset is None else POLICIES[self._known_preset()]
        try:
            return replace(base, **self.policy.explicit_values())
        except ValueError as error:
            raise in_file(self._file, ConfigError(f"policy: {error}")) from None

    def failures(self) -> GraderFailures | None:
        """Return how the guard treats failing graders, for adapters that grade outside the guard.
        Raises ConfigError as `build` does."""
        return self.build().failures if self.preset == "failures_only" else None

    def leaves(self) -> Iterator[dict[str, Any]]:
        """Yield the leaves of the tree, for commands that handle verifiers individually.

        A preset's leaves are the verifier configured by its options and the verifiers in
        ``beside``. Raises ConfigError if the preset is unknown.
        """
        if self.preset is None:
            yield from leaves_of(self.verifier)
            return
        name, options = self._known_preset(), dict(self.model_extra or {})
        beside = options.pop("beside", None)
        if "coin" in options:
            options["run"] = options.pop("coin")
        if name in OPTIONS_OF:
            yield {"type": OPTIONS_OF[name], **options}
        yield from leaves_of(beside)

    def _known_preset(self) -> str:
        with self.naming_errors():
            return chosen(list(PRESETS), str(self.preset), "preset", IN_THE_SUITE)

    def _of_preset(self, live: Live | None) -> Guard:
        name, policy = self._known_preset(), self.whole_policy()
        explicit = self.explicit_values(without=NO_OPTIONS)
        if live is None:
            require_plain(explicit, name)
        with placing(f"preset ({name}): ", ImportError):
            model, preset = preset_options(name), PRESETS[name]
        require_options(explicit, model, name)
        of_policy = reads_policy(preset)
        if of_policy and self.tokenizer is not None:
            raise ConfigError("tokenizer: expected none with a preset that loads the policy's own")
        on = live if of_policy else None
        arguments = model.read(
            explicit if on is None else on.fill_defaults(explicit, preset), name
        ).explicit_values()
        arguments |= dict.fromkeys(model.from_python & {"tokenizer"})
        if not of_policy:
            arguments["tokenizer"] = self._tokenizer(live)
        store = self._store()
        if store is not None and "state" in arguments:
            arguments["state"] = store
        if "beside" in arguments:
            nodes = enumerate(arguments["beside"])
            arguments["beside"] = [
                build_verifier(n, self.alpha, f"beside[{i}]", store=store, live=live)
                for i, n in nodes
            ]
        try:
            if on is not None:
                arguments = on.override(arguments, preset)
            return preset(**arguments, policy=policy)
        except ModuleNotFoundError as error:
            raise ConfigError(f"preset ({name}): {with_remedy(error)}") from None
        except (TypeError, ValueError, LedgerError) as error:
            raise ConfigError(f"preset ({name}): {error}") from None

    def _of_tree(self, live: Live | None) -> Guard:
        policy = self.whole_policy()
        store, ledger = self._store(), None
        verifier = build_verifier(self.verifier, self.alpha, store=store, live=live)
        if self.ledger is not None:
            ledger = ledger_of(self.ledger, store)
            if self.ledger.exclude:
                # Not in a cascade: completions already rejected would yield no evidence, so a
                # convicted node could never show that it has improved.
                verifier = AllOf(ExclusionVerifier(ledger), verifier)
        if store is not None:
            claim_state(store, verifier)
        with placing("policy: ", ValueError):  # a policy that does not suit this verifier
            tokenizer = self._tokenizer(None if verifier.compares_ids else live)
            return Guard(verifier, policy=policy, ledger=ledger, tokenizer=tokenizer)

    def _asking(self, guard: Guard) -> Guard:
        if self.environment is None:
            return guard
        if ":" not in self.environment:
            got = shown(self.environment)
            raise ConfigError(f"environment: expected package.module:function, got {got}")
        with placing("environment: ", TypeError, ValueError, UnknownNameError):
            return guard.with_environment(load(VERIFIERS, self.environment))

    def _tokenizer(self, live: Live | None) -> Any:
        """Load the tokenizer named in the file, or return the tokenizer of the policy in training;
        None if there is neither."""
        if self.tokenizer is None:
            return live and live.tokenizer
        with placing("tokenizer: ", ModuleNotFoundError, ValueError):
            return Detokenizer.from_pretrained(self.tokenizer)

    def _store(self) -> NodeStore | None:
        if self.state is None:
            return None
        explicit = {} if self.ledger is None else self.ledger.explicit_values()
        with placing("", ValueError):
            return NodeStore(self.state, max_nodes=explicit.get("max_nodes", MAX_NODES))
