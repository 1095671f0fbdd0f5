"""The server's metrics, in Prometheus's text format (version 0.0.4).

Written by hand: the format takes a few lines, while a library would be one more dependency for
every server. No label holds text from a client or a completion, so neither can add rows.
"""

import asyncio
import contextlib
import json
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from grpo_guard.core.files import write_whole

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Upper bounds of the response-time histogram's buckets, in seconds.
SECONDS = (0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0)
WRITTEN_EVERY = 0.5
"""Seconds after which a worker's counts reach the other workers."""

Counts: TypeAlias = "Counter[tuple[str, ...]]"
"""Keyed by what is counted, the path, and the status, outcome or histogram bucket."""


class Metrics:
    """Counts since the start, for the tasks of one event loop. Several workers write their counts
    into a folder, so that any worker can report for all, including those that have ended."""

    def __init__(self, folder: Path | None = None) -> None:
        self._in_progress = 0
        self._counts: Counts = Counter()
        self._folder = folder
        self._writing = False
        self.store_metrics: Callable[[], dict[str, float]] = dict
        """Function that returns the guard's `Guard.store_metrics`; set by the app."""

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request as in progress while the context is open."""
        self._in_progress += 1
        try:
            yield
        finally:
            self._in_progress -= 1

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count the reply to a request for one of the server's own paths, and the time it took."""
        self._counts["requests", path, str(status)] += 1
        self._counts["seconds", path] += seconds  # type: ignore[assignment]  # typed for integers
        self._counts["took", path, str(bisect_left(SECONDS, seconds))] += 1
        if self._folder is not None and not self._writing:
            self._writing = True
            asyncio.get_running_loop().call_later(WRITTEN_EVERY, self.write)

    def count_outcomes(self, path: str, outcomes: Mapping[str, int]) -> None:
        """Count how many completions a reply accepts, rejects and abstains on."""
        for outcome, count in outcomes.items():
            self._counts["completions", path, outcome] += count

    def write(self) -> None:
        """Write the counts for the other workers; a full disk costs only counts."""
        self._writing = False
        if self._folder is not None:
            self._take_store()
            rows = [[*key, count] for key, count in self._counts.items()]
            with contextlib.suppress(OSError):
                text = json.dumps([self._in_progress, rows])
                write_whole(self._folder / f"{os.getpid()}.json", text)

    def _take_store(self) -> None:
        figures = self.store_metrics()
        for name in ("waits", "waiting"):
            self._counts["store", name] = int(figures.get(f"guard/store_{name}", 0))

    def _of_all(self) -> tuple[int, Counts]:
        self._take_store()
        here, counts = self._in_progress, self._counts.copy()
        for file in [] if self._folder is None else self._folder.glob("*.json"):
            if file.stem == str(os.getpid()):
                continue
            with contextlib.suppress(OSError, ValueError):
                here_there, rows = json.loads(file.read_text())
                here += here_there if Path("/proc", file.stem).exists() else 0
                for *key, count in rows:
                    counts[tuple(key)] += count
        return here, counts

    def text(self) -> str:
        """Return all counts in Prometheus's text format."""
        here, counts = self._of_all()
        lines = _kind("requests_in_progress", "gauge", "Requests in progress.")
        lines.append(f"grpo_guard_requests_in_progress {here}")
        for kind, label, help_text in (
            ("requests", "status", "Replies, by path and status."),
            ("completions", "outcome", "Completions, by path and outcome."),
        ):
            lines += _kind(f"{kind}_total", "counter", help_text)
            for (what, path, *more), count in counts.items():
                if what == kind:
                    labels = {"path": path, label: more[0]}
                    lines.append(_row(f"{kind}_total", count, **labels))
        lines += _kind("request_seconds", "histogram", "From a request's arrival to its reply.")
        for path in [key[1] for key in counts if key[0] == "seconds"]:
            total = 0
            for i, most in enumerate((*map(str, SECONDS), "+Inf")):
                total += counts["took", path, str(i)]
                lines.append(_row("request_seconds_bucket", total, path=path, le=most))
            lines.append(_row("request_seconds_sum", counts["seconds", path], path=path))
            lines.append(_row("request_seconds_count", total, path=path))
        lines += _kind("store_waits_total", "counter", "Failed waits for a locked store.")
        lines.append(f"grpo_guard_store_waits_total {counts['store', 'waits']}")
        lines += _kind("store_waiting", "gauge", "Batches not yet written to the store.")
        lines.append(f"grpo_guard_store_waiting {counts['store', 'waiting']}")
        return "\n".join(lines) + "\n"


def _kind(name: str, kind: str, help_text: str) -> list[str]:
    return [f"# HELP grpo_guard_{name} {help_text}", f"# TYPE grpo_guard_{name} {kind}"]


def _row(name: str, value: float, **labels: str) -> str:
    shown = ",".join(f'{label}="{text}"' for label, text in labels.items())
    return f"grpo_guard_{name}{{{shown}}} {value!r}"
