"""Check the arguments of a guard when it is built, rather than on its first batch."""

import os
from pathlib import Path
from typing import Any, Final

from grpo_guard.core.arguments import expected_verifier
from grpo_guard.core.files import obstacle
from grpo_guard.core.model_paths import unexpanded
from grpo_guard.core.naming import UnknownNameError, choose
from grpo_guard.core.quoting import shown
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.guard.policy import Policy, not_a_policy
from grpo_guard.guard.policy_checks import require_names
from grpo_guard.guard.verdict_log import VerdictLog

# Argument -> an attribute its value must have, and what to write instead. Classes are not
# imported for type checks, because importing takes time and most guards do not need them.
_PARTS: Final = {
    "ledger": ("record", "EvidenceLedger(PATH)"),
    "length_scaling": ("past", "LengthScaling(...)"),
    "identity": ("admit", "Identity(KeyRing(...))"),
    "references": ("check", "References({prompt: answer}) or References.from_file(PATH)"),
    "failures": ("ask", "GraderFailures(...)"),
}

_ATTRIBUTES: Final = (
    "verifier", "policy", "log", "ledger", "identity", "references", "workers", "environment",
    "failures", "length_scaling", "detokenizer", "reads_ids", "idle", "rejections",
)  # fmt: skip


def require_parts(verifier: Any, policy: Any, *parts: Any) -> None:
    """Raise TypeError if an argument of a guard has the wrong type, with what to write instead.
    ``parts`` are the values of the arguments in `_PARTS`, in that order."""
    if not isinstance(verifier, CompletionVerifier):
        raise expected_verifier("Guard.verifier", verifier)
    require_names(verifier)
    if not isinstance(policy, Policy | None):
        raise not_a_policy("Guard.policy", policy)
    for name, part in zip(_PARTS, parts, strict=True):
        _require_part(name, part)


def require_attribute(guard: Any, closed: bool, name: str, value: Any) -> None:
    """Check that ``value`` can be assigned to the attribute ``name`` of a guard. Values of
    properties are checked where these are set.

    Args:
        guard: The guard.
        closed: Whether the guard has no attributes but those of `Guard`; a subclass may have more.
        name: Name of the attribute.
        value: Its new value.

    Raises:
        AttributeError: a guard has no such attribute, so that setting it would have no effect.
        TypeError: the value has the wrong type.
    """
    if closed and name not in _ATTRIBUTES and not name.startswith("_"):
        try:
            choose(_ATTRIBUTES, name)
        except UnknownNameError as error:
            raise AttributeError(f"guard: {error}", name=name, obj=guard) from None
    if name == "verifier" and not isinstance(value, CompletionVerifier):
        raise expected_verifier("guard.verifier", value)
    if name == "policy" and not isinstance(value, Policy):
        raise not_a_policy("guard.policy", value, wanted="a Policy")
    if name in _PARTS:
        _require_part(name, value)


def _require_part(name: str, part: Any) -> None:
    needed, written = _PARTS[name]
    if part is not None and (isinstance(part, type) or not hasattr(part, needed)):
        raise TypeError(f"Guard.{name}: expected None or {written}, got {shown(part)}")


def log_of(log: Any) -> VerdictLog | None:
    """Return the verdict log for a ``log`` argument, which can also be a path or None. Raises
    TypeError for anything else, or ValueError if the file cannot be written."""
    if isinstance(log, str | os.PathLike):
        log = VerdictLog(Path(log))
        require_writable(log.path)
    if not isinstance(log, VerdictLog | None):
        raise TypeError(f"log: expected the path of a file or a VerdictLog, got {shown(log)}")
    return log


def require_writable(path: Path, *, make: bool = True) -> None:
    """Raise ValueError unless verdicts can be appended to a file. With ``make``, a missing folder
    is created; some trainers create theirs only after the guard."""
    try:
        problem = _problem(path, make)
    except (OSError, ValueError) as error:
        problem = f"which cannot be written ({getattr(error, 'strerror', None) or error})"
    if problem:
        raise ValueError(f"log: expected a file to append verdicts to, got {path}, {problem}")


def _problem(path: Path, make: bool) -> str | None:
    folder = path.parent
    if path.is_dir():
        return "which is a folder; name a file in it"
    if not folder.is_dir():
        if hint := unexpanded(folder):
            return f"in a folder that does not exist{hint}"
        if why := _not_made(folder, make):
            return f"in a folder that does not exist and cannot be made ({why})"
    there = path if path.exists() else folder
    if there.exists() and not os.access(there, os.W_OK):
        return "which this process may not write; change its permissions, or name another"
    return None


def _not_made(folder: Path, make: bool) -> str | None:
    """Why a missing folder cannot be created, or None if it can. With ``make``, it is created."""
    if not make:
        found = obstacle(folder)
        return None if found is None else f"in {found[0]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return None
