"""The user's own guard as a defence: a guard file, with the node's own policy, sampler and coin.

The code that runs the guard is imported only when needed, so that a mistake in the file is reported
before torch is loaded.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, cast, get_args

from grpo_guard.config import ConfigError, GuardConfig
from grpo_guard.config.live import Live, reads_policy, replays_seeds
from grpo_guard.config.presets import PRESETS
from grpo_guard.core.naming import near
from grpo_guard.core.options import in_file
from grpo_guard.core.registry import VERIFIERS, UnknownNameError, choose, load
from grpo_guard.evals.roles import PRESET
from grpo_guard.evals.swarm.config import OnReject
from grpo_guard.guard import Guard

if TYPE_CHECKING:
    from grpo_guard.evals.defences.base import Defence, Ground
    from grpo_guard.evals.swarm.members import Peer, VerifierGuard

_SUFFIXES: Final = (".yaml", ".yml")
_MOST_COMPARED: Final = 80


@dataclass(frozen=True, slots=True)
class GuardFile:
    """A guard file's content as it was read: editing the file does not affect runs to come.

    Args:
        on_reject: The rule for rejected completions in the file's policy.
        per_model: Whether the guard reads the policy's weights.
        coin: Whether the guard replays seeds, so that nodes must sample under a public coin.
    """

    name: str
    text: str = field(repr=False)  # it can contain a backend's key
    on_reject: OnReject
    per_model: bool
    coin: bool

    @classmethod
    def named(cls, given: str) -> GuardFile:
        """Read the argument of ``--guard``: a YAML file, or ``preset:NAME``.

        Raises:
            ConfigError: the file cannot be read, a field is invalid, or its policy does not fit.
        """
        path = Path(given)
        if given.startswith(PRESET):
            name, text = given, f"preset: {_preset(given.removeprefix(PRESET))}"
        elif path.suffix in _SUFFIXES:
            GuardConfig.from_yaml(path)  # raises if it cannot be read
            # Names in results double as folder names, and a bracket would begin a suffix.
            name, text = re.sub(r"[^\w.-]", "_", path.name), path.read_text(encoding="utf-8")
        else:
            nearest = near(list(PRESETS), given[:_MOST_COMPARED])
            hint = f"; did you mean {PRESET}{nearest[0]}?" if nearest else ""
            raise ConfigError(
                f"--guard: expected FILE.yaml or preset:NAME, got {given!r:.200}{hint}"
            )
        config = GuardConfig.from_text(text, given)
        try:
            makers = list(_makers(config))
            on_reject = _rule(config)
        except (ConfigError, ImportError) as error:
            raise in_file(given, error) from None
        coin = any(map(replays_seeds, makers))
        return cls(name, text, on_reject, any(map(reads_policy, makers)), coin)

    @property
    def digest(self) -> str:
        """A digest of the file's content."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def guard(self, live: Live | None, folder: Path) -> Guard:
        """Build the guard; abstentions are counted but never end a run.

        Args:
            live: The policy in training. Defaults to the file's own model and sampler.
            folder: Folder to keep the guard's state in, instead of the one that the file names.
        """
        from grpo_guard.evals.defences.base import emptied

        config = GuardConfig.from_text(self.text, self.name)
        update: dict[str, Any] = {
            "policy": config.policy.model_copy(update={"max_abstain_rate": 1.0})
        }
        if config.state is not None or (config.ledger is not None and config.ledger.path):
            update["state"] = str(emptied(folder))
        return config.model_copy(update=update).build(live)

    def defence(self) -> Defence:
        """Return the defence that applies this guard before a swarm node computes its reward."""
        from grpo_guard.evals.defences.base import Defence

        return Defence(self.name, self._before, coin=self.coin)

    def require_buildable(self, peer: Peer, ground: Ground) -> None:
        """Build the guard once, before anything runs, and check that any judge is available."""
        from grpo_guard.evals.defences.base import Ground

        with TemporaryDirectory() as folder:
            self._before(peer, Ground(ground.config, ground.task, Path(folder), ground.coin))

    def _before(self, peer: Peer, ground: Ground) -> VerifierGuard:
        from grpo_guard.evals.swarm.members import VerifierGuard

        config = ground.config
        live = Live(
            peer.model, peer.tokenizer, config.sampling, ground.coin, config.per_node,
            config.node_names,
        )  # fmt: skip
        return VerifierGuard(self.guard(live, ground.folder))


def guard_files(given: Sequence[str] | None) -> tuple[GuardFile, ...]:
    """Read all arguments of ``--guard``, whose guards must have different names."""
    found = {text: GuardFile.named(text) for text in given or ()}
    names = [guard.name for guard in found.values()]
    for text, guard in found.items():
        if names.count(guard.name) > 1:
            raise ConfigError(f"--guard: expected files of different names, got {text} and another")
    return tuple(found.values())


def _preset(name: str) -> str:
    try:
        return choose(list(PRESETS), name)
    except UnknownNameError as error:
        raise ConfigError(f"--guard: preset: {error}") from None


def _makers(config: GuardConfig) -> Iterator[Any]:
    """Yield the preset, if any, and the classes of all verifiers in a guard's configuration."""
    if config.preset is not None:
        yield PRESETS[_preset(config.preset)]
    for leaf in config.leaves():
        try:
            yield load(VERIFIERS, str(leaf["type"]))
        except UnknownNameError as error:
            raise ConfigError(f"verifier.type: {error}") from None


def _rule(config: GuardConfig) -> OnReject:
    policy, known = config.whole_policy(), get_args(OnReject)
    found = next((rule for rule in policy.rules("on_reject") if rule in known), None)
    if found is None:
        raise ConfigError(
            f"policy.on_reject: expected {', '.join(known)} in the suite, got {policy.on_reject!r}"
        )
    if policy.rules("on_abstain")[0] not in ("skip", "raise"):
        raise ConfigError(
            "policy.on_abstain: expected skip in the suite, where abstentions are left out and "
            f"counted, got {policy.on_abstain!r}"
        )
    return cast(OnReject, found)
