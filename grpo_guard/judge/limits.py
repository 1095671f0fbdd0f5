"""What a judge may cost, in time and money."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from grpo_guard.judge.backends.base import Reply, Request


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one judge.

    Args:
        deadline: Seconds for one batch, all retries included; what is open then abstains.
        request_timeout: Seconds for one request.
        attempts: Most requests for one completion, re-asking included.
        concurrency: Requests in flight; None = what the backend recommends.
        max_usd: Most to be spent by this object in one process; None = no limit. Needs the prices.
        max_tokens: Most tokens, in and out together, as above.
        usd_per_1m_in, usd_per_1m_out: Prices. Without them the cost is unknown, not 0.

    Raises:
        ValueError: out of range, or ``max_usd`` without prices.
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
        """What so many tokens cost; None where the prices are unknown."""
        if self.usd_per_1m_in is None or self.usd_per_1m_out is None:
            return None
        return (tokens_in * self.usd_per_1m_in + tokens_out * self.usd_per_1m_out) / 1e6


class Spending:
    """What has been spent so far, in this process. Used from one event loop only."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.tokens_in = 0
        self.tokens_out = 0

    def add(self, request: Request, reply: Reply | None) -> None:
        """Count a request.

        Where the backend does not say what it took, or did not answer in time, that is estimated,
        too high rather than too low: a limit that counts nothing would be none.

        Args:
            request: What was asked.
            reply: None = no answer in time, which may cost what an answer does.
        """
        if reply is not None and reply.tokens_in:
            self.tokens_in += reply.tokens_in
            self.tokens_out += reply.tokens_out
            return
        characters = sum(len(message["content"]) for message in request.messages)
        self.tokens_in += 1 + characters // 3
        self.tokens_out += request.max_tokens

    def exhausted(self) -> str | None:
        """Which limit is reached; None while there is something left.

        Checked before each request. Requests in flight still come in, so that it may be passed by
        what ``concurrency`` of them cost.
        """
        limits = self._limits
        usd = limits.usd(self.tokens_in, self.tokens_out)
        if limits.max_usd is not None and usd is not None and usd >= limits.max_usd:
            return f"max_usd={limits.max_usd} is spent"
        tokens = self.tokens_in + self.tokens_out
        if limits.max_tokens is not None and tokens >= limits.max_tokens:
            return f"max_tokens={limits.max_tokens} are used up"
        return None
