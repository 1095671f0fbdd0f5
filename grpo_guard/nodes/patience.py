"""Limit how long batches wait for a file that another process has locked: only one of them waits.

A process that hangs while it writes keeps SQLite's lock for as long as it lives. So everything in
this process that writes to one file shares one `Patience`. After one wait has timed out, all other
writers continue immediately with the state they have, and keep their changes until the lock is
free. Reading needs no lock, only a moment in which no other process opens or closes the file.
"""

import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

logger = logging.getLogger("grpo_guard")

WAIT: Final = 3.0
"""Seconds that a write waits for another process."""
MOMENT: Final = 1.0
"""Seconds that a reader waits for other processes that are opening or closing the file."""
AGAIN: Final = 10.0
"""Seconds without any waiting after a wait has timed out; doubled each time, up to `MOST_AGAIN`."""
MOST_AGAIN: Final = 300.0


class Patience:
    """Decides how long this process waits for one file. Threads may share a `Patience`.

    Attributes:
        waits: Number of waits that timed out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.waits = 0
        self._again = AGAIN
        self._waits_from: float | None = None  # None unless the last wait timed out
        self._behind: WeakKeyDictionary[object, int] = WeakKeyDictionary()

    def seconds(self) -> float:
        """Return how long the next write may wait, in seconds; 0 if a wait has timed out recently.

        Even with 0 seconds a write is attempted, which costs nothing.
        """
        if self._waits_from is None:
            return WAIT
        now = time.monotonic()
        if now < self._waits_from:
            return 0.0
        self._waits_from = now + self._again  # only one of several threads waits
        return WAIT

    @property
    def moment(self) -> float:
        """How long a reader may wait to open the file, in seconds; 0 while writers do not wait.

        When ranks start or end together, SQLite refuses a reader for as long as another process
        creates or removes its log.
        """
        return MOMENT if self._waits_from is None else 0.0

    def in_vain(self, waited: float) -> None:
        """Record that a write waited ``waited`` seconds and found the file still locked."""
        if self._waits_from is None:
            logger.warning(
                "%s is locked by another process: batches are judged with this process's state, "
                "and their changes are written later; is a process hanging?", self.path,
            )  # fmt: skip
            self._again = AGAIN
        elif waited:
            self._again = min(2 * self._again, MOST_AGAIN)
        if waited:
            self.waits += 1
            self._waits_from = time.monotonic() + self._again
        elif self._waits_from is None:
            self._waits_from = time.monotonic()

    def served(self) -> None:
        """Record that a write succeeded."""
        if self._waits_from is not None:
            self._waits_from = None
            logger.warning("%s can be written again", self.path)

    def behind(self, who: object, batches: int) -> None:
        """Record how many batches of one ledger or memory are waiting to be written."""
        if batches:
            self._behind[who] = batches
        else:
            self._behind.pop(who, None)

    @property
    def waiting(self) -> int:
        """Number of batches waiting to be written, over all ledgers and memories of the file."""
        return sum(self._behind.values())


_of: dict[Path, Patience] = {}


def patience_with(path: Path) -> Patience:
    """Return this process's `Patience` for a file."""
    return _of.setdefault(path.absolute(), Patience(path))


def store_figures(paths: Iterable[Path] | None = None) -> dict[str, float]:
    """Return metrics of these files or, if None, of all files used by this process:
    ``guard/store_waits``, the number of waits that timed out, and ``guard/store_waiting``, the
    number of batches not written yet. Empty if both are 0."""
    of = list(_of) if paths is None else {path.absolute() for path in paths}
    known = [_of[path] for path in of if path in _of]
    waits = sum(patience.waits for patience in known)
    waiting = sum(patience.waiting for patience in known)
    if not waits and not waiting:
        return {}
    return {"guard/store_waits": waits, "guard/store_waiting": waiting}
