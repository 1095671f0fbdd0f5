"""Names that commands check first: a typo should not cost the seconds that loading torch takes."""

from __future__ import annotations

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
"""Defences of `grpo_guard.evals.defences.registry` that are not a single verifier."""
ELSEWHERE: Final = (
    "judge", "reference_likelihood", "remote", "secrets", "pii", "language", "toxicity",
)  # fmt: skip
"""Verifiers that need what a swarm run does not have: a judge, a reference model, a library."""
ON_REJECT: Final = ("zero", "drop", "no_gain")
"""What ``--on-reject`` knows; the same as `OnReject` of a swarm's settings, without torch."""
_FEW: Final = 20
_NEAREST: Final = 5
"""Names shown if there are more than a few."""
_SHARE: Final = re.compile(r"([0-9]{1,4})/([0-9]{1,4})")


def defences() -> list[str]:
    """Return the names that ``--defence`` accepts, "none" first, without importing torch."""
    alone = [name for name in names(VERIFIERS) if name not in ELSEWHERE]
    more = study("baselines")
    return [NONE, *sorted({*INSTALLED, *alone, *(more.NAMES if more else ())})]


def require_names(option: str, value: str | None, expected: Iterable[str]) -> None:
    """Refuse a list of names, separated by commas, if one is unknown; suggest a known one.

    A name with a colon is a class, which is loaded later. ``option`` is as typed: ``--attack``.
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
    """The error for a name that resembles none of many: it lists the closest of them."""
    if len(expected) <= _FEW or near(expected, name):
        return None
    first = get_close_matches(name.lower(), expected, n=_NEAREST, cutoff=0.0)
    return (
        f"expected one of {len(expected)} names such as {', '.join(first)}, got {name!r:.200}; "
        "--list shows all"
    )


def shares(value: str | None) -> list[tuple[int, int]]:
    """Read ``--share``: (malicious nodes, all nodes) for each name; [] if it was not given."""
    found = []
    for text in (value or "").split(","):
        if text.strip():
            match = _SHARE.fullmatch(text.strip())
            if match is None:
                raise ValueError(f"--share: expected malicious/nodes such as 1/4, got {text!r:.99}")
            found.append((int(match[1]), int(match[2])))
    return found


def require_honest(value: Path | None, mapped: Sequence[str] = ()) -> None:
    """Refuse a file of ``--honest`` that cannot be read; ``mapped`` is as for `cli.rows.opened`."""
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
