"""Turn whatever other nodes sent into completions, and reject anything that cannot be turned into
one.

Every field that a sender can fill goes through `received`, which never raises: an exception would
cost all other completions in the batch their verdicts. So no adapter checks types itself.
"""

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from numbers import Real
from typing import Any, Final

from grpo_guard.core.arguments import number_text, whole_number
from grpo_guard.core.completion import Completion, CompletionError
from grpo_guard.core.detokenizer import Detokenizer, UnreadableError
from grpo_guard.core.verdict import Cause, Verdict, reject
from grpo_guard.guard import Guard, Review

logger = logging.getLogger("grpo_guard")

# The essential fields of a completion: if one of them cannot be read, the row is malformed. All
# other fields are claims.
_ESSENTIAL: Final = ("prompt", "text", "completion_ids")


@dataclass(frozen=True, slots=True)
class Row:
    """A trainer's row as an adapter read it: the completion to judge; its verdict, if the adapter
    already knows it; and whether the text is the trainer's own or has been decoded from the ids. A
    text that the adapter filled in or repaired is not the author's own and might pass: there is
    nothing wrong with empty text."""

    completion: Completion
    given: Verdict | None = None
    decoded: bool = False

    @property
    def was_repaired(self) -> bool:
        """Whether an adapter repaired the row. A repaired row is never trained on, not even with a
        negative advantage."""
        return self.given is not None and self.given.rejected


def received(
    prompt: Any,
    text: Any,
    *,
    malformed: Any = None,
    detokenizer: Detokenizer | None = None,
    decoded: bool = False,
    **claims: Any,
) -> Row:
    """Build a completion from fields that a sender might have chosen; never raises.

    If the prompt, text or ids cannot be read, an empty value is substituted, and the row is
    rejected as malformed. Any other unreadable field counts as not claimed.

    Args:
        prompt, text: Prompt and text of the completion, as `Completion` takes them.
        malformed: A known problem, as text; None if no problem is known.
        detokenizer: The trainer's detokenizer, which decodes the text from the ids and replaces
            ``text``. Without it, the guard decodes the ids if it has a tokenizer.
        decoded: Whether ``text`` is the trainer's own decoding.
        claims: The other fields of `Completion`, of any type; numbers are converted to names or
            text as needed.
    """
    problem = None
    if malformed is not None:
        problem = _or_none(_text, malformed) or "marked as malformed"
    fields: dict[str, Any] = {"prompt": prompt, "text": text, **claims}
    for name, read in _CLAIMS.items():
        if name in fields:
            fields[name] = _or_none(read, fields[name])
    while True:
        try:
            completion = Completion(**fields)
            readable = problem is None and completion.completion_ids is not None
            if detokenizer is not None and readable:
                completion, decoded = detokenizer.read(completion), True
            return Row(completion, None if problem is None else as_malformed(problem), decoded)
        except UnreadableError as error:
            problem = str(error)
        except CompletionError as error:
            if error.field in _ESSENTIAL:
                problem = problem or str(error)
            # Each pass removes one of the sender's values, so the loop ends. A claim is not
            # replaced, because the replacement might be unreadable as well (None is not valid
            # metadata).
            del fields[error.field]
            fields = {"prompt": "", "text": "", **fields}


def as_malformed(problem: str) -> Verdict:
    """The verdict on a row that an adapter had to fill in or repair."""
    return reject("exchange", Cause.MALFORMED, problem)


def read(how: Callable[..., Any], *given: Any) -> Any:
    """Call ``how`` to read part of a sender's data; never raises. If ``how`` raises, the result is
    an `Unread`, which no field accepts: `received` then treats that field as malformed and keeps
    the others, such as the sender's name, which matters all the more in this case."""
    try:
        return how(*given)
    except Exception as error:
        logger.warning("a completion could not be read", exc_info=error)
        return Unread(type(error).__name__)


@dataclass(frozen=True)
class Unread:
    """Stands in for a value that could not be read; ``error`` is the type of the exception."""

    error: str


def claimed(given: Any, *names: str) -> Any:
    """Return the first value that is not None among these keys, or None. Returns () if the mapping
    cannot be read: something was claimed, but no field accepts ()."""
    try:
        values = [given.get(name) for name in names] if isinstance(given, Mapping) else []
    except Exception:
        return ()
    return next((value for value in values if value is not None), None)


def review(guard: Guard, rows: Sequence[Row]) -> Review:
    """Review rows with `Guard.review`, including rows that already have a verdict."""
    return guard.review(*parts_of(rows))


def parts_of(
    rows: Sequence[Row],
) -> tuple[list[Completion], list[Verdict | None], list[bool]]:
    """Split rows into completions, their known verdicts, and flags that say whether each text is
    the trainer's own or already decoded from ids, [n] each."""
    given, decoded = [row.given for row in rows], [row.decoded for row in rows]
    return [row.completion for row in rows], given, decoded


def reference_from(value: Any) -> str | None:
    """Convert a reference answer to text; data sets contain both text and numbers, including
    NumPy's. "", None and NaN mean that there is no answer. Values of other types are ignored as
    well; each such type is logged once, because otherwise verifiers would silently run without a
    reference."""
    value = _scalar(value)
    if isinstance(value, str):
        return str.__str__(value) or None
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, Decimal) and math.isfinite(float(value)):
        return str(value)
    if (number := number_text(value)) is not None:
        return number
    _warn_unused(type(value).__name__)
    return None


@cache
def _warn_unused(kind: str) -> None:
    logger.warning(
        "reference answers of type %s cannot be used, and are ignored; expected text or numbers",
        kind,
    )


def integer_from(value: Any) -> int | None:
    """Convert a 64-bit integer, including NumPy's, to an int, and a float that is one, as in a
    column with gaps; None for anything else."""
    value = _scalar(value)
    number = whole_number(value) if isinstance(value, Real) else None
    return number if number is not None and -(2**63) <= number < 2**63 else None


def _name(value: Any) -> str | None:
    value = _scalar(value)
    if isinstance(value, str):
        return value
    # Containers are refused, because printing one can take forever.
    if value is None or isinstance(value, Collection) or value != value:
        return None
    return number_text(value) or str(value)


def _text(value: Any) -> str | None:
    return str.__str__(value) if isinstance(value, str) else None


def _scalar(value: Any) -> Any:
    """Return the value in a zero-dimensional array or tensor; anything else is returned unchanged,
    NumPy's numbers included, so that they print as they are."""
    if isinstance(value, str | Real) or getattr(value, "ndim", None) != 0:
        return value
    return value.item()


def _or_none(read: Callable[[Any], Any], value: Any) -> Any:
    try:
        return read(value)
    except Exception:  # includes integers that Python does not print, and objects that refuse
        return None


_CLAIMS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "node": _name,
    "rollout": _name,
    "group": lambda value: value if isinstance(value, str) else integer_from(value),
    "round": integer_from,
    "slot": integer_from,
    "reference": reference_from,
    "task": _text,
    "finish_reason": _text,
}
