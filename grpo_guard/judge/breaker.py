"""A circuit breaker: after enough failures in a row, stop asking for a while."""

from __future__ import annotations

import time
from collections.abc import Callable


class CircuitBreaker:
    """Refuses questions after repeated failures, apart from single probes, until a probe succeeds.

    Used from one event loop only, so it needs no lock. The breaker opens after ``failures``
    failures in a row (>= 1), then allows one probe every ``cooldown`` seconds. Tests replace the
    clock.
    """

    def __init__(
        self,
        failures: int = 8,
        cooldown: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._needed = failures
        self._cooldown = cooldown
        self._clock = clock
        self._in_a_row = 0
        self._open_until: float | None = None

    def allows(self) -> bool:
        """Whether a question may be asked now; an open breaker allows one probe per cooldown."""
        if self._open_until is None:
            return True
        if self._clock() < self._open_until:
            return False
        self._open_until = self._clock() + self._cooldown  # this caller is the probe
        return True

    @property
    def next_opens(self) -> bool:
        """Whether one more failure would open the breaker or keep it open."""
        return self._in_a_row + 1 >= self._needed

    def succeeded(self) -> None:
        """Record that the model answered, whatever the answer."""
        self._in_a_row, self._open_until = 0, None

    def failed(self) -> None:
        """Record that the provider failed to answer."""
        self._in_a_row += 1
        if self._in_a_row >= self._needed:
            self._open_until = self._clock() + self._cooldown
