"""verl: figures of the guard, step by step.

verl's trainers do not log what a reward function says beside its reward, so the collector writes
its own: one JSON line a step into a file, and the same to the logger ``grpo_guard``.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from grpo_guard.metrics import metrics
from grpo_guard.verdict import Verdict

logger = logging.getLogger("grpo_guard")


class StepLog:
    """Gathers verdicts and writes them down per step.

    A line is written when a later step begins, and a while after its first verdict in any case, so
    that little is lost when the run ends. A step may have several lines: add them up by their
    ``completions``.

    Args:
        path: JSONL file, appended to; None = only the logger.
        after: Seconds after which a line is written.
    """

    def __init__(self, path: str | None = None, *, after: float = 10.0) -> None:
        self.path, self._after = None if path is None else Path(path), after
        self._steps: OrderedDict[int | None, list[Verdict]] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, steps: Sequence[int | None], verdicts: Sequence[Verdict]) -> None:
        """Take note of one batch; ``steps`` has the training step of each verdict."""
        for step, verdict in zip(steps, verdicts, strict=True):
            self._steps.setdefault(step, []).append(verdict)
        newest = next(reversed(self._steps), None)
        for step in [s for s in self._steps if s != newest]:
            self._write(step)
        if self._steps and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._after, self.flush)

    def flush(self) -> None:
        """Write what there is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for step in list(self._steps):
            self._write(step)

    def _write(self, step: int | None) -> None:
        verdicts = self._steps.pop(step)
        figures = {"step": step, "completions": len(verdicts), **metrics(verdicts)}
        line = json.dumps(figures)
        logger.info("guard: %s", line)
        if self.path is None:
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:  # a full disk is no reason to stop training
            logger.warning("%s: the guard's figures cannot be written: %s", self.path, error)
