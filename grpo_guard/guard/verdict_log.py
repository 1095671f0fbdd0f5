"""A log of verdicts written during training, to be summarised by `grpo-guard verify --table`.

A ledger keeps counts and discards texts. Operators deciding whether a guard should act need to see
what it would have rejected, so the log keeps an excerpt of each such completion.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from grpo_guard.core.completion import Completion
from grpo_guard.core.forks import Lock
from grpo_guard.core.verdict import Finding, Verdict

logger = logging.getLogger("grpo_guard")
MOST_BYTES: Final = 1024**3
"""Maximum size of a log, in bytes; writing stops there."""
SHOWN: Final = 240
"""Maximum length of a text, prompt or message within a line, in characters."""
AROUND: Final = 80
"""Number of characters of context shown in an excerpt before the finding."""
MOST_FINDINGS: Final = 8


class VerdictLog:
    """Appends verdicts to a file, one JSON object per line.

    Each batch has one line that counts acceptances by node:
    ``{"time", "accepted": [[node, count], ...]}``. Every other verdict has its own line: ``time``
    (seconds since 1970), ``outcome``, ``cause``, ``verifier``, ``deciding`` (the members that
    decided), ``p_value``, ``findings`` (``kind`` and ``message``), ``node``, ``round``, ``task``,
    the end of the ``prompt``, and an ``excerpt`` of the text around the first finding. The file is
    pure ASCII, so that nothing a node writes can control a terminal or start a new line.

    Several processes can append to one file, with one write per batch. A failed write does not stop
    the run; it is reported once.

    Args:
        path: The file, which is created with the first batch and grows to at most `MOST_BYTES`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = Lock()
        self._complained = False

    def record(self, batch: Sequence[Completion], verdicts: Sequence[Verdict]) -> None:
        """Append one batch, [n], with its verdicts, [n]; never raises if writing fails."""
        now = round(time.time(), 3)
        accepted: Counter[str | None] = Counter()
        lines: list[dict[str, Any]] = []
        for completion, verdict in zip(batch, verdicts, strict=True):
            if verdict.accepted:
                accepted[completion.node] += 1
            else:
                lines.append({"time": now, **line_of(completion, verdict)})
        if accepted:
            lines.append({"time": now, "accepted": list(map(list, accepted.items()))})
        text = "".join(json.dumps(line) + "\n" for line in lines)
        with self._lock:
            try:
                self._append(text)
            except OSError as error:
                self._complain(f"cannot be written: {error}")

    def _append(self, text: str) -> None:
        with self.path.open("a", encoding="ascii") as file:
            if file.tell() + len(text) > MOST_BYTES:
                self._complain(f"has reached {MOST_BYTES} bytes")
                return
            file.write(text)

    def _complain(self, problem: str) -> None:
        if not self._complained:
            self._complained = True
            logger.warning("%s: the log of verdicts %s; verdicts are missing", self.path, problem)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_complained": False}


def line_of(completion: Completion, verdict: Verdict) -> dict[str, Any]:
    """The log's line for one completion that was not accepted."""
    findings = verdict.findings[:MOST_FINDINGS]
    prompt = completion.prompt
    return {
        "outcome": verdict.outcome.value,
        "cause": verdict.cause.value,
        "verifier": verdict.verifier,
        "deciding": list(verdict.deciding[:MOST_FINDINGS]),
        "p_value": verdict.p_value,
        "findings": [{"kind": f.kind[:64], "message": f.message[:SHOWN]} for f in findings],
        "node": None if completion.node is None else completion.node[:SHOWN],
        "round": completion.round,
        "task": None if completion.task is None else completion.task[:SHOWN],
        "prompt": prompt[-SHOWN:] if isinstance(prompt, str) else None,
        "excerpt": excerpt_of(completion.text, findings),
    }


def excerpt_of(text: str, findings: Sequence[Finding]) -> str:
    """At most `SHOWN` characters around the first finding with a location in the text."""
    spans = [finding.char_span for finding in findings if finding.char_span is not None]
    start = max(0, spans[0][0] - AROUND) if spans else 0
    shown = text[start : start + SHOWN]
    before, after = "..." if start else "", "..." if start + SHOWN < len(text) else ""
    return f"{before}{shown}{after}"
