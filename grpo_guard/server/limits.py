"""Limits on what one request may cost."""

from dataclasses import dataclass, fields

# All bodies in memory, arriving, waiting or being judged, are together at most this many times the
# largest.
FLIGHT_BODIES = 16
# Maximum size, in bytes, of a body that is parsed in the event loop, which blocks everything else
# for about a millisecond. Handing the body to a thread would take a tenth of that.
PARSED_AT_ONCE = 16 * 1024
# Maximum total size, in bytes, of bodies that are judged together. A rule takes about 12 us per
# character at worst, so texts delay the others in their batch by little more than a second. A
# larger body waits in its own lane.
LARGE_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a server; a request that exceeds them is refused, or answered with abstentions.

    Args:
        seconds: Maximum time from a request's arrival to its answer, in seconds. OpenRLHF gives up
            after 180.
        running: Maximum number of batches judged at once; also limits the number of threads.
        waiting: Maximum number of requests waiting for their turn; any more get a 429.
        batch_size: Maximum number of completions judged together, from requests that can share a
            batch. A request with more completions is a batch of its own.
        batch_wait: Maximum time, in seconds, that a request which can share a batch waits for the
            running batch, to be judged together with requests that arrive in the meantime; after
            that, another batch begins.
        body_bytes: Maximum size of a body in bytes. All bodies in memory together can have
            `FLIGHT_BODIES` times that.
        body_seconds: Maximum time for a body to arrive, in seconds.
        body_rate: Minimum number of bytes per second that must arrive, on average after the first
            `body_patience` seconds.
        body_patience: Seconds during which a body may arrive at any rate.
        completions: Maximum number of completions in one request: a short body can ask for a great
            many judgements.
        streams: Maximum number of streams open at once. Each holds its completions and one part of
            its answer.
        client_streams: Maximum number of streams open at once per address.

    Raises:
        ValueError: a limit is not a positive number.
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
