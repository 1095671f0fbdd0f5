"""The sections of a guard file, each of which configures one part of the guard."""

from typing import TYPE_CHECKING

from grpo_guard.core.options import ConfigError, Options, options_of, placing
from grpo_guard.guard.policy import Policy
from grpo_guard.nodes.identity.gate import Identity
from grpo_guard.nodes.identity.keys import IdentityError
from grpo_guard.nodes.identity.ring import MOST_PINNED, KeyRing
from grpo_guard.nodes.ledger import EvidenceLedger
from grpo_guard.nodes.schema import LedgerError
from grpo_guard.nodes.store import NodeStore

if TYPE_CHECKING:

    class PolicyConfig(Options): ...

    class LedgerConfig(Options):
        path: str | None
        exclude: bool

    class IdentityConfig(Options):
        keys: str | None
        pin: bool
        most_pinned: int

else:
    _LEDGER = {"path": (str | None, None), "exclude": (bool, True)}
    PolicyConfig = options_of("PolicyConfig", Policy)
    LedgerConfig = options_of("LedgerConfig", EvidenceLedger, fields=_LEDGER)
    _KEYS = {"keys": (str | None, None), "pin": (bool, False), "most_pinned": (int, MOST_PINNED)}
    IdentityConfig = options_of("IdentityConfig", Identity, without={"ring", "store"}, fields=_KEYS)


def ledger_of(section: LedgerConfig, store: NodeStore | None) -> EvidenceLedger:
    """Build the ledger configured by ``ledger:``, stored in the file of ``state:`` if that is set.
    Raises ConfigError if an option is wrong, or the file is not a ledger."""
    path = section.path if store is None else store.path
    assert path is not None  # see GuardConfig._one_kind
    with placing("ledger: ", ValueError, LedgerError):
        return EvidenceLedger(path, **section.explicit_values(without={"exclude", "path"}))


def identity_of(section: IdentityConfig, store: NodeStore | None) -> Identity:
    """Build the identity check configured by ``identity:``, which keeps its records in the file of
    ``state:`` if that is set. Raises ConfigError if an option is wrong, the keys cannot be read, or
    a package is missing."""
    options = section.explicit_values()
    file, of_ring = options.pop("keys", None), ("pin", "most_pinned")
    ring = {name: options.pop(name) for name in of_ring if name in options}
    if file is None and not ring.get("pin"):
        raise ConfigError("identity.keys: expected a file of public keys, or pin: true")
    with placing("identity: ", IdentityError, ModuleNotFoundError):
        keys = KeyRing(**ring) if file is None else KeyRing.from_file(file, **ring)
        return Identity(keys, store=store, **options)
