"""Names that earlier releases documented, and their present locations.

Python consults this finder after all others, for modules and for names that `from package import
name` does not find. So anyone who upgrades sees the message, and nothing that exists is hidden.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

_ADAPTERS: Final = "grpo_guard.adapters"
_ROW: Final = "; a Row has the Completion as its .completion"
MOVED: Final = {
    "grpo_guard.ledger": "grpo_guard.nodes: ledger.ledger is nodes.ledger",
    "grpo_guard.content.recurrence": "grpo_guard.nodes.recurrence",
    "grpo_guard.sandbox": "grpo_guard.evals.sandbox",
    f"{_ADAPTERS}.trl_batch": f"{_ADAPTERS}.trl.batch: completions_from is rows_from{_ROW}",
    f"{_ADAPTERS}.trl_peers": f"{_ADAPTERS}.trl.peers",
    f"{_ADAPTERS}.trl_trainer": f"{_ADAPTERS}.trl.trainer",
    f"{_ADAPTERS}.trl_ms_swift": f"{_ADAPTERS}.ms_swift",
    f"{_ADAPTERS}.verl_plugin": f"{_ADAPTERS}.verl.plugin",
    f"{_ADAPTERS}.openrlhf_agent": f"{_ADAPTERS}.openrlhf.agent",
    f"{_ADAPTERS}.openrlhf.completions_from": f"{_ADAPTERS}.openrlhf.reward.rows_from{_ROW}",
    f"{_ADAPTERS}.verl.completion_from": f"{_ADAPTERS}.verl.reward.row_from{_ROW}",
}
"""Name in an earlier release -> its name now."""
REMOVED: Final = {
    f"{_ADAPTERS}.nemo_rl": "the adapter for NeMo-RL was removed, since no package index has a "
    "NeMo-RL to test it with; docs/new-adapter.md has a recipe to copy",
}
"""Name in 0.2.0 -> why it was removed, and what to use instead."""


class Moved:
    """A finder for `sys.meta_path` that finds nothing, and says where moved modules are."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in MOVED:
            # Not a ModuleNotFoundError: `from package import name` would replace its message.
            raise ImportError(f"{name} is now {MOVED[name]}", name=name)
        if name in REMOVED:
            raise ImportError(f"{name}: {REMOVED[name]}", name=name)
        return None


def install() -> None:
    """Append the finder to `sys.meta_path`, once per process."""
    if Moved not in sys.meta_path:
        sys.meta_path.append(Moved)
