"""A log of rejections: one JSON object per line, in files of bounded size."""

import contextlib
import fcntl
import json
import logging
import logging.handlers
import os
import sys
import time
from collections.abc import Sequence
from hashlib import sha256
from itertools import count
from pathlib import Path

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Verdict
from grpo_guard.server.late import awaited

logger = logging.getLogger("grpo_guard")
FILE_BYTES = 16 * 1024 * 1024
FILES = 8
"""Number of older files kept, so that there are at most `FILES` + 1 files of `FILE_BYTES`."""
SHOWN = 200
"""Number of characters of a completion kept in a line, alongside the digest of the whole text."""


class Audit:
    """Logs rejections. Safe to share between threads; each process has its own file.

    A line has ``time`` (seconds since 1970), ``request`` (the reply's ``X-Request-Id``), ``index``,
    ``node``, ``round``, ``cause``, ``verifier``, ``p_value``, ``findings`` (kind and message), the
    ``sha256`` of the text in UTF-8 (lone surrogates as they are), its length in ``characters``, and
    its ``beginning``. All of it is ASCII, so that nothing a node writes can reach a terminal or
    start a line. If the log cannot be written, verdicts are unaffected, and the server's own log
    reports it once.

    The file ``name`` is this process's own; its folder is created if missing. Raises OSError if the
    file cannot be opened.
    """

    def __init__(self, folder: Path, name: str = "rejections.jsonl") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._handler = logging.handlers.RotatingFileHandler(
            folder / name, maxBytes=FILE_BYTES, backupCount=FILES, encoding="ascii"
        )
        self._handler.setFormatter(logging.Formatter("%(message)s"))
        self._handler.handleError = self._complain  # type: ignore[method-assign]
        self._complained = False

    def note(
        self, request: str, batch: Sequence[Completion], verdicts: Sequence[Verdict], first: int = 0
    ) -> None:
        """Write a line for each rejected completion of a request, if a client is still waiting;
        ``first`` is the index of the first completion within the request."""
        if not awaited():
            return
        for index, (completion, verdict) in enumerate(zip(batch, verdicts, strict=True), first):
            if verdict.rejected:
                line = _line(request, index, completion, verdict)
                self._handler.handle(logging.makeLogRecord({"msg": line}))

    def close(self) -> None:
        """Close the log file."""
        with contextlib.suppress(OSError):
            self._handler.close()

    def _complain(self, record: logging.LogRecord) -> None:
        if not self._complained:
            self._complained = True
            where = self._handler.baseFilename
            logger.error("rejections are missing in %s", where, exc_info=sys.exc_info())


def own_name(folder: Path) -> str:
    """Return the name of a file in ``folder`` that no other process writes to until this process
    ends; raises OSError if nothing can be written there. The name has the lowest free number: with
    names that no later process reuses, such as process ids, each start would leave files behind."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        held = os.open(folder / f".rejections-{number}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
        except OSError:
            os.close(held)
            raise
        else:
            return f"rejections-{number}.jsonl"  # held until the process ends
    raise AssertionError("unreachable: numbers do not end")


def _line(request: str, index: int, completion: Completion, verdict: Verdict) -> str:
    text = completion.text
    return json.dumps(
        {
            "time": round(time.time(), 3),
            "request": request,
            "index": index,
            "node": completion.node,
            "round": completion.round,
            "cause": verdict.cause.value,
            "verifier": verdict.verifier,
            "p_value": verdict.p_value,
            "findings": [[f.kind, f.message[:SHOWN]] for f in verdict.findings[:8]],
            "sha256": sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
            "characters": len(text),
            "beginning": text[:SHOWN],
        }
    )
