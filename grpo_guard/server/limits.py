"""What one request may cost."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a server; a request beyond them is refused, or answered with abstentions.

    Args:
        seconds: From a request's arrival to its answer. OpenRLHF gives up after 180.
        running: Requests worked on at once. Also bounds the threads and the bodies in memory.
        waiting: Requests that wait their turn; more are told to come back (503).
        body_bytes: Of one request.
        body_seconds: For its body to arrive: a sender who takes his time holds a turn.
        completions: In one request: a short body can ask for a great many judgements.

    Raises:
        ValueError: a bound is not positive.
    """

    seconds: float = 120.0
    running: int = 8
    waiting: int = 1024
    body_bytes: int = 16 * 1024 * 1024
    body_seconds: float = 20.0
    completions: int = 1024

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ValueError(f"Limits.{name}: expected a number > 0, got {value!r}")
