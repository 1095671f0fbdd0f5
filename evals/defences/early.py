"""Names that commands check before loading torch, so that a typo is reported immediately."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from grpo_guard.core.jsonl import InputError
from grpo_guard.core.naming import near
from grpo_guard.core.registry import VERIFIERS, UnknownNameError, names
from grpo_guard.evals.checkout import known, study
from grpo_guard.evals.roles import COIN, NONE

INSTALLED: Final = (
    COIN, "kl_0.01", "kl_0.1", "paper_logit", "seed_replay", "homogeneous", "heterogeneous",
    "different_weights_reader", "different_weights_frozen", "same_weights",
)  # fmt: skip
"""Defences in `grpo_guard.evals.defences.registry` other than single registered verifiers."""
ELSEWHERE: Final = (
    "judge", "reference_likelihood", "remote", "secrets", "pii", "language", "toxicity",
)  # fmt: skip
"""Verifiers that need what a swarm run does not have: a judge, a reference model, a library."""
ON_REJECT: Final = ("zero", "drop", "no_gain")
"""Values of ``--on-reject``, the same as `OnReject` in a swarm's settings, but without torch."""
_FEW: Final = 20
_NEAREST: Final = 5
"""Number of names to show if there are more than `_FEW`."""
_SHARE: Final = re.compile(r"([0-9]{1,4})/([0-9]{1,4})")


def defences() -> list[str]:
    """Return the names that ``--defence`` accepts, "none" first, without importing torch."""
    alone = [name for name in names(VERIFIERS) if name not in ELSEWHERE]
    more = study("baselines")
    return [NONE, *sorted({*INSTALLED, *alone, *(more.NAMES if more else ())})]


def require_names(option: str, value: str | None, expected: Iterable[str]) -> None:
    """Refuse a comma-separated list of names if any name is unknown, and suggest a known name.

    A name with a colon is a class, to be loaded later. ``option`` is as typed: ``--attack``.
    """
    all_names = list(expected)
    for name in (value or "").split(","):
        if name.strip() and ":" not in name:
            try:
                known(all_names, name.strip())
            except UnknownNameError as error:
                problem = _nearest_of(all_names, name.strip()) or str(error)
                raise UnknownNameError(f"{option}: {problem}") from None


def _nearest_of(expected: list[str], name: str) -> str | None:
    """The error message for a name that resembles none of many known names; it lists the closest
    ones. None if there are few names or one is similar."""
    if len(expected) <= _FEW or near(expected, name):
        return None
    first = get_close_matches(name.lower(), expected, n=_NEAREST, cutoff=0.0)
    return (
        f"expected one of {len(expected)} names such as {', '.join(first)}, got {name!r:.200}; "
        "--list shows all"
    )


def shares(value: str | None) -> list[tuple[int, int]]:
    """Parse ``--share`` into pairs (malicious nodes, all nodes); [] if the option is not given."""
    found = []
    for text in (value or "").split(","):
        if text.strip():
            match = _SHARE.fullmatch(text.strip())
            if match is None:
                raise ValueError(f"--share: expected malicious/nodes such as 1/4, got {text!r:.99}")
            found.append((int(match[1]), int(match[2])))
    return found


def require_honest(value: Path | None, mapped: Sequence[str] = ()) -> None:
    """Refuse a file for ``--honest`` that cannot be read; ``mapped`` is as in `cli.rows.opened`."""
    from grpo_guard.cli.rows import Rows, opened

    if value is None:
        return
    try:
        with opened(value, mapped) as lines:
            rows = Rows(lines.file, str(value))
    except InputError as error:
        raise InputError(f"--honest: {error}") from None
    if not len(rows):
        raise ValueError(f"--honest: expected at least one completion, got the empty file {value}")
