"""Check the arguments of a guard when it is built, before a batch meets them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from grpo_guard.core.arguments import expected_verifier
from grpo_guard.core.model_paths import unexpanded
from grpo_guard.core.quoting import shown
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.guard.policy import Policy, not_a_policy
from grpo_guard.guard.policy_checks import require_names
from grpo_guard.guard.verdict_log import VerdictLog

# Argument -> what a value must have, and how one is written. Classes themselves would be imports
# that most guards do not need.
_PARTS: Final = (
    ("ledger", "record", "EvidenceLedger(PATH)"),
    ("length_scaling", "past", "LengthScaling(...)"),
    ("identity", "admit", "Identity(KeyRing(...))"),
    ("references", "check", "References({prompt: answer}) or References.from_file(PATH)"),
    ("failures", "ask", "GraderFailures(...)"),
)


def require_parts(verifier: Any, policy: Any, *parts: Any) -> None:
    """Refuse what a guard cannot work with.

    Args:
        verifier, policy: As for `Guard`.
        parts: Those of `_PARTS`, in that order.

    Raises:
        TypeError: a value is of the wrong type; the message says what to write.
    """
    if not isinstance(verifier, CompletionVerifier):
        raise expected_verifier("Guard.verifier", verifier)
    require_names(verifier)
    if not isinstance(policy, Policy | None):
        raise not_a_policy("Guard.policy", policy)
    for (name, needed, written), part in zip(_PARTS, parts, strict=True):
        if part is not None and (isinstance(part, type) or not hasattr(part, needed)):
            raise TypeError(f"Guard.{name}: expected None or {written}, got {shown(part)}")


def log_of(log: Any) -> VerdictLog | None:
    """The log that an argument describes.

    Raises:
        TypeError: it is neither a log nor a path.
        ValueError: no file can be written there.
    """
    if isinstance(log, str | os.PathLike):
        log = VerdictLog(Path(log))
        _require_writable(log.path)
    if not isinstance(log, VerdictLog | None):
        raise TypeError(f"log: expected the path of a file or a VerdictLog, got {shown(log)}")
    return log


def _require_writable(path: Path) -> None:
    """Check that verdicts can be appended there; a trainer makes some folders after the guard."""
    folder, problem = path.parent, _not_made(path.parent)
    if path.is_dir():
        problem = "which is a folder; name a file in it"
    elif problem is None and not os.access(path if path.exists() else folder, os.W_OK):
        problem = "which this process may not write; change its rights, or name another"
    if problem:
        raise ValueError(f"log: expected a file to append verdicts to, got {path}, {problem}")


def _not_made(folder: Path) -> str | None:
    """Make a folder; what is in the way if it cannot be made."""
    if folder.is_dir():
        return None
    if hint := unexpanded(folder):
        return f"in a folder that does not exist{hint}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        return f"in a folder that does not exist and cannot be made ({why})"
    return None
