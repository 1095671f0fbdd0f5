"""What the server counts, in Prometheus's text format (version 0.0.4).

Written by hand: it is a few lines, and a dependency of each server otherwise. No label holds what a
client or a completion says, so nobody can add rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Upper ends of the histogram of answering times, in seconds.
SECONDS = (0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0)


class Metrics:
    """Counts since the start. For the tasks of one event loop."""

    def __init__(self) -> None:
        self._in_progress = 0
        self._requests: Counter[tuple[str, int]] = Counter()
        self._completions: Counter[tuple[str, str]] = Counter()
        self._seconds: dict[str, float] = {}
        self._took: Counter[tuple[str, int]] = Counter()

    @contextmanager
    def request(self) -> Iterator[None]:
        """While one is here."""
        self._in_progress += 1
        try:
            yield
        finally:
            self._in_progress -= 1

    def answered(self, path: str, status: int, seconds: float) -> None:
        """A request to one of the server's own paths got its reply, after so long."""
        self._requests[path, status] += 1
        self._seconds[path] = self._seconds.get(path, 0.0) + seconds
        self._took[path, bisect_left(SECONDS, seconds)] += 1

    def told(self, path: str, outcomes: Mapping[str, int]) -> None:
        """How many completions a reply accepts, rejects and abstains on."""
        for outcome, count in outcomes.items():
            self._completions[path, outcome] += count

    def text(self) -> str:
        """All counts, as Prometheus reads them."""
        lines = _kind("requests_in_progress", "gauge", "Requests that are here.")
        lines.append(f"grpo_guard_requests_in_progress {self._in_progress}")
        lines += _kind("requests_total", "counter", "Replies, by path and status.")
        for (path, status), count in self._requests.items():
            lines.append(_row("requests_total", count, path=path, status=str(status)))
        lines += _kind("completions_total", "counter", "Completions, by path and outcome.")
        for (path, outcome), count in self._completions.items():
            lines.append(_row("completions_total", count, path=path, outcome=outcome))
        lines += _kind("request_seconds", "histogram", "From a request's arrival to its reply.")
        for path, total in self._seconds.items():
            count = 0
            for i, most in enumerate((*map(str, SECONDS), "+Inf")):
                count += self._took[path, i]
                lines.append(_row("request_seconds_bucket", count, path=path, le=most))
            lines.append(_row("request_seconds_sum", total, path=path))
            lines.append(_row("request_seconds_count", count, path=path))
        return "\n".join(lines) + "\n"


def _kind(name: str, kind: str, help_text: str) -> list[str]:
    return [f"# HELP grpo_guard_{name} {help_text}", f"# TYPE grpo_guard_{name} {kind}"]


def _row(name: str, value: float, **labels: str) -> str:
    said = ",".join(f'{label}="{text}"' for label, text in labels.items())
    return f"grpo_guard_{name}{{{said}}} {value!r}"
