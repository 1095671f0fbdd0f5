"""What one request may cost."""

from __future__ import annotations

from dataclasses import dataclass, fields

FLIGHT_BODIES = 16
# Largest body that is parsed in the event loop, which blocks everything else for about a
# millisecond. Handing it to a thread would take a tenth of that.
PARSED_AT_ONCE = 16 * 1024
# Most bytes of bodies that are judged together. A rule takes about 12 us a character at worst, so
# texts delay the others in their batch by little more than a second. A larger body waits in a lane
# of its own.
LARGE_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a server; a request beyond them is refused, or answered with abstentions.

    Args:
        seconds: From a request's arrival to its answer. OpenRLHF gives up after 180.
        running: Batches judged at once; also bounds the threads.
        waiting: Requests that may wait for their turn; further ones get 429.
        batch_size: Completions that are judged together, from requests that may share a batch. A
            request with more is a batch of its own.
        batch_wait: Seconds that such a request waits for the batch at work, to be judged with the
            requests that arrive meanwhile; then another batch begins.
        body_bytes: Largest body. All bodies in memory may have `FLIGHT_BODIES` times that.
        body_seconds: Seconds for a body to arrive.
        body_rate: Bytes a second that must arrive, on average after the first `body_patience`.
        body_patience: Seconds during which a body may arrive at any rate.
        completions: Most in one request: a short body can ask for a great many judgements.
        streams: Open at once. Each holds its completions and one part of its answer.
        client_streams: Open at once for one address.

    Raises:
        ValueError: a bound is not positive.
    """

    seconds: float = 120.0
    running: int = 8
    waiting: int = 1024
    batch_size: int = 64
    batch_wait: float = 0.5
    body_bytes: int = 4 * 1024 * 1024
    body_seconds: float = 20.0
    body_rate: int = 16 * 1024
    body_patience: float = 10.0
    completions: int = 1024
    streams: int = 32
    client_streams: int = 8

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ValueError(f"Limits.{name}: expected a number > 0, got {value!r}")

    @property
    def flight_bytes(self) -> int:
        """Limit on the bytes of all bodies in memory: arriving, waiting or being judged."""
        return FLIGHT_BODIES * self.body_bytes
