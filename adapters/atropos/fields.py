"""Atropos: pass a group on field by field, in a form that is safe for the trainer.

Atropos's server accepts any number and any object in most fields, and its trainer reads several of
them: a temperature of 1e-40 makes all weights NaN, and a single null override ends the run. So
groups posted by other nodes are reduced to the fields below; any other field is dropped, and logged
once.

* ``tokens``, ``masks``, ``scores``: see `grpo_guard.adapters.atropos.groups`.
* ``inference_logprobs``: one per token, `NO_LOGPROB` or within `LOG_PROBS`.
* ``overrides``, ``generation_params``, ``group_overrides``: a temperature within the declared
  range, and whether a row's advantage is set to 0.
* ``env_id``: an integer.

Among the dropped fields are ``advantages`` and ``ref_logprobs``, which the trainer computes itself;
``distill_*``, which come from another node's teacher; and ``messages`` and ``images``, which
nothing has judged.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

from grpo_guard.adapters.plain_numbers import LOG_PROBS, listed, number_from
from grpo_guard.core.completion import shown

logger = logging.getLogger("grpo_guard")

Group: TypeAlias = Mapping[str, Any]
Range: TypeAlias = tuple[float, float]
MASKED: Final = -100
NO_LOGPROB: Final = 1.0
"""Value in ``inference_logprobs`` for masked tokens and unknown log-probs."""
SETS_TO_ZERO: Final = "set_advantage_to_zero"
"""The override that makes Atropos's bundled trainer set a row's advantage to 0."""
TEMPERATURES: Final = (0.1, 2.0)
"""Default range of temperatures. Servers accept up to 2; below 0.1, a row would carry more than ten
times the weight it has at 1."""
LARGEST_OWN: Final = 1e4
"""Maximum absolute value of advantages and reference log-probs from your own environment."""
_ALWAYS: Final = ("tokens", "masks", "scores", "inference_logprobs", "overrides")
_PARAMETERS: Final = ("generation_params", "group_overrides")
_OF_STRANGERS: Final = frozenset((*_ALWAYS, *_PARAMETERS, "env_id"))


_LONGEST_NAME: Final = 100
_OF_REGISTRATION: Final[Mapping[str, Range]] = {
    "max_token_length": (1, 2**24),
    "group_size": (1, 2**16),
    "weight": (0.01, 10.0),
}


class GroupError(ValueError):
    """The input is not a valid group or request; the message names the field."""


def group_size(group: Any, temperatures: Range = TEMPERATURES) -> int:
    """The number of rows in a group. Raises GroupError if the value is not a group, or if a
    temperature for all of its rows is outside the range."""
    if not isinstance(group, Mapping):
        raise GroupError(f"group: expected an object, got {type(group).__name__}")
    lists = [group.get(name) for name in ("tokens", "masks", "scores")]
    if not all(isinstance(rows, list | tuple) for rows in lists):
        got = ", ".join(type(rows).__name__ for rows in lists)
        raise GroupError(f"tokens, masks, scores: expected lists, got {got}")
    sizes = {len(rows) for rows in lists if rows is not None}
    if len(sizes) != 1 or not all(sizes):
        got = ", ".join(str(len(rows)) for rows in lists if rows is not None)
        raise GroupError(f"tokens, masks, scores: expected equally many rows, got {got}")
    for name in _PARAMETERS:
        if (wrong := _wrong_temperature(group.get(name), temperatures)) is not None:
            raise GroupError(f"{name}: {wrong}")
    if group.get("env_id") is not None:
        _whole("env_id", group["env_id"], (0, 2**31))
    return sizes.pop()


def problem_of_row(group: Group, i: int, temperatures: Range) -> str | None:
    """Describe the problem with the log-probs or overrides of a row whose tokens and masks are
    valid; None if there is no problem."""
    claims = of_row(group.get("inference_logprobs"), i)
    if claims is not None and _log_probs(claims, len(group["tokens"][i])) is None:
        least, most = LOG_PROBS
        return (
            f"inference_logprobs: expected one number per token, {NO_LOGPROB} or from {least} to "
            f"{most}, got {shown(claims)}"
        )
    if (wrong := _wrong_temperature(of_row(group.get("overrides"), i), temperatures)) is not None:
        return f"overrides: {wrong}"
    return None


def handed_on(group: Group, problems: Sequence[str | None], *, theirs: bool) -> dict[str, Any]:
    """Copy a group that `group_size` and `problem_of_row` have checked, with plain numbers and one
    entry per row in every field. Rows with a problem are neutralised in the copy, so nothing is
    trained on them. If other nodes wrote any of the group (``theirs``), only the fields listed in
    this module's docstring are passed on. Raises GroupError if a field from your own environment
    contains invalid numbers."""
    rows = range(len(problems))
    made = {name: value for name, value in group.items() if not theirs or name in _OF_STRANGERS}
    if theirs:
        for name in group.keys() - _OF_STRANGERS:
            if group[name]:
                _log_dropped(name if name in _KNOWN else "a field that Atropos does not have")
        for name in _PARAMETERS:
            if name in made:
                made[name] = _parameters(made[name])
    else:
        for name in ("advantages", "ref_logprobs"):
            _require_numbers(name, group.get(name))
    made["tokens"] = [[0, 0] if problems[i] else group["tokens"][i] for i in rows]
    made["masks"] = [[MASKED] * 2 if problems[i] else group["masks"][i] for i in rows]
    # Always added to groups of other nodes: the bundled trainer raises on a group without it.
    if theirs or group.get("inference_logprobs"):
        given = group.get("inference_logprobs")
        made["inference_logprobs"] = [
            (None if problems[i] else _log_probs(of_row(given, i), length)) or [NO_LOGPROB] * length
            for i, length in enumerate(map(len, made["tokens"]))
        ]
    if theirs or group.get("overrides"):
        own = [None if problems[i] else of_row(group.get("overrides"), i) for i in rows]
        made["overrides"] = [_parameters(one) if theirs else dict(one or {}) for one in own]
    return made


_KNOWN: Final = ("advantages", "ref_logprobs", "messages", "images", "distill_token_ids",
                 "distill_logprobs")  # fmt: skip


@cache
def _log_dropped(name: str) -> None:
    logger.warning("Atropos: %s is not passed on if others posted it", name)


def of_row(rows: Any, i: int) -> Any:
    """A row's entry in one of its group's lists; None if the entry is missing."""
    return rows[i] if isinstance(rows, list | tuple) and i < len(rows) else None


def _parameters(given: Any) -> dict[str, Any]:
    """The parameters that a trainer may accept from other nodes; their range has already been
    checked."""
    if not isinstance(given, Mapping):
        return {}
    made: dict[str, Any] = {SETS_TO_ZERO: True} if given.get(SETS_TO_ZERO) is True else {}
    if (temperature := number_from(given.get("temperature"))) is not None:
        made["temperature"] = temperature
    return made


def _wrong_temperature(given: Any, temperatures: Range) -> str | None:
    """Describe why a trainer cannot use these parameters; None if it can use them, or if there are
    no parameters."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        return f"expected an object, got {shown(given)}"
    if "temperature" not in given or number_from(given["temperature"], *temperatures) is not None:
        return None
    least, most = temperatures
    return f"expected a temperature from {least:g} to {most:g}, got {shown(given['temperature'])}"


def _log_probs(given: Any, length: int) -> list[float] | None:
    """Log-probs as plain numbers; None if any is invalid, or if there isn't exactly one per
    token."""
    values = listed(given, length)
    if values is None:
        return None
    found = [number_from(value, LOG_PROBS[0], NO_LOGPROB) for value in values]
    known = [x for x in found if x is not None and (x <= LOG_PROBS[1] or x == NO_LOGPROB)]
    return known if len(known) == length else None


def _require_numbers(name: str, rows: Any) -> None:
    for row in rows or []:
        if not isinstance(row, list | tuple) or None in [
            number_from(value, -LARGEST_OWN, LARGEST_OWN) for value in row
        ]:
            raise GroupError(f"{name}: expected lists of numbers up to {LARGEST_OWN:g}")


def request_of_environment(path: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Check an environment's request that posts no groups, and return its fields with plain numbers
    in range. Raises GroupError if a field is invalid. Another node's environment cannot set
    ``min_batch_allocation``: Atropos's server divides by it even when the trainer requests a batch,
    and after an infinite one every ``/batch`` fails."""
    if path != "/register-env":
        return {"env_id": _whole("env_id", given.get("env_id"), (0, 2**31))}
    name = given.get("desired_name")
    if not isinstance(name, str) or len(name) > _LONGEST_NAME or not name.isprintable():
        raise GroupError(f"desired_name: expected up to {_LONGEST_NAME} letters, got {shown(name)}")
    if given.get("min_batch_allocation"):
        _log_dropped("min_batch_allocation")
    made: dict[str, Any] = {"desired_name": name}
    for field, between in _OF_REGISTRATION.items():
        value = given.get(field)
        read = _number if field == "weight" else _whole
        made[field] = read(field, value, between)
    return made


def _number(name: str, value: Any, between: Range) -> float:
    if (number := number_from(value, *between)) is None:
        raise GroupError(
            f"{name}: expected a number from {between[0]:g} to {between[1]:g}, got {shown(value)}"
        )
    return number


def _whole(name: str, value: Any, between: Range) -> int:
    if type(value) is not int:
        raise GroupError(f"{name}: expected an integer, got {shown(value)}")
    return int(_number(name, value, between))
