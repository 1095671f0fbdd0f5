"""Write lines in order, even though they arrive in any order."""

import tempfile
from types import TracebackType
from typing import TextIO


class InOrder:
    """Writes each line once all preceding lines are written, from number ``first`` on, and flushes
    the file.

    Completions of one prompt are verified together wherever they are in a file, so some verdicts
    arrive early. They wait in a temporary file; memory holds only the position and length of each.
    """

    def __init__(self, file: TextIO, first: int = 0) -> None:
        self._file, self._next = file, first
        self._waiting: dict[int, tuple[int, int]] = {}
        self._spool = tempfile.TemporaryFile()  # noqa: SIM115 (closed behind)
        self._end = 0

    def put(self, number: int, line: str) -> None:
        """Write the line now, or hold it until all preceding lines are written."""
        if number != self._next:
            encoded = line.encode()
            self._spool.seek(self._end)
            self._spool.write(encoded)
            self._waiting[number] = (self._end, len(encoded))
            self._end += len(encoded)
            return
        self._file.write(line)
        self._next += 1
        while place := self._waiting.pop(self._next, None):
            self._spool.seek(place[0])
            self._file.write(self._spool.read(place[1]).decode())
            self._next += 1
        if not self._waiting:
            self._end = 0  # reuse the space of the temporary file
        self._file.flush()

    def __enter__(self) -> "InOrder":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._spool.close()
