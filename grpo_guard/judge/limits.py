"""Limits on what a judge may cost, in time and money, and a pause after repeated failures."""

import math
import time
from dataclasses import dataclass, fields

from grpo_guard.judge.backends.base import Reply, Request


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the time and money that one judge may use.

    Args:
        deadline: Time limit for one batch, in seconds, including all retries; completions not
            answered by then lead to abstentions.
        request_timeout: Time limit for one request, in seconds.
        attempts: Maximum number of requests for one completion, including repeated questions.
        concurrency: Maximum number of requests in flight; None for the backend's recommendation.
        max_usd: Maximum amount in US dollars that one judge can spend in one process; None for no
            limit. Requires prices.
        max_tokens: Maximum number of tokens, input and output together, that one judge can use in
            one process; None for no limit.
        usd_per_1m_in, usd_per_1m_out: Prices in US dollars per million tokens. Without prices the
            cost is unknown, not 0.

    Raises:
        ValueError: a value is out of range, or ``max_usd`` is given without prices.
    """

    deadline: float = 300.0
    request_timeout: float = 60.0
    attempts: int = 4
    concurrency: int | None = None
    max_usd: float | None = None
    max_tokens: int | None = None
    usd_per_1m_in: float | None = None
    usd_per_1m_out: float | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is None:
                continue
            least = 0.0 if item.name.startswith("usd_") else 1e-9
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and math.isfinite(value) and value >= least):
                raise ValueError(f"Limits.{item.name}: expected a number > 0, got {value!r}")
        if self.max_usd is not None and None in (self.usd_per_1m_in, self.usd_per_1m_out):
            raise ValueError(
                "Limits.max_usd: expected usd_per_1m_in and usd_per_1m_out with it, got none; "
                "prices change and are not built in"
            )

    def usd(self, tokens_in: int, tokens_out: int) -> float | None:
        """The price of these tokens; None if the prices are unknown."""
        if self.usd_per_1m_in is None or self.usd_per_1m_out is None:
            return None
        return (tokens_in * self.usd_per_1m_in + tokens_out * self.usd_per_1m_out) / 1e6


class Spending:
    """Tokens used so far in this process. Used from one event loop only."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.tokens_in = 0
        self.tokens_out = 0

    def add(self, request: Request, reply: Reply | None) -> None:
        """Count a request and its reply, or None if it did not arrive in time: such a request can
        cost as much. Usage that is not reported is estimated, erring on the high side."""
        if reply is not None and reply.tokens_in:
            self.tokens_in += reply.tokens_in
            self.tokens_out += reply.tokens_out
            return
        characters = sum(len(message["content"]) for message in request.messages)
        self.tokens_in += 1 + characters // 3
        self.tokens_out += request.max_tokens

    def exhausted(self) -> str | None:
        """Describe the limit that has been reached, if any. Requests in flight are completed, so it
        can be exceeded by the cost of ``concurrency`` requests."""
        limits = self._limits
        usd = limits.usd(self.tokens_in, self.tokens_out)
        if limits.max_usd is not None and usd is not None and usd >= limits.max_usd:
            return f"max_usd={limits.max_usd} is spent"
        tokens = self.tokens_in + self.tokens_out
        if limits.max_tokens is not None and tokens >= limits.max_tokens:
            return f"max_tokens={limits.max_tokens} are used up"
        return None


class CircuitBreaker:
    """Refuses questions after repeated failures, apart from single probes, until a probe succeeds.

    Used from one event loop only, so it needs no lock. The breaker opens after `FAILURES` failures
    in a row, then allows one probe every `COOLDOWN` seconds.
    """

    FAILURES, COOLDOWN = 8, 30.0

    def __init__(self) -> None:
        self._in_a_row = 0
        self._open_until: float | None = None

    def allows(self) -> bool:
        """Whether a question may be asked now; an open breaker allows one probe per cooldown."""
        if self._open_until is None:
            return True
        if time.monotonic() < self._open_until:
            return False
        self._open_until = time.monotonic() + self.COOLDOWN  # this caller is the probe
        return True

    @property
    def next_opens(self) -> bool:
        """Whether one more failure would open the breaker or keep it open."""
        return self._in_a_row + 1 >= self.FAILURES

    def succeeded(self) -> None:
        """Record that the model answered, whatever the answer."""
        self._in_a_row, self._open_until = 0, None

    def failed(self) -> None:
        """Record that the provider failed to answer."""
        self._in_a_row += 1
        if self._in_a_row >= self.FAILURES:
            self._open_until = time.monotonic() + self.COOLDOWN
