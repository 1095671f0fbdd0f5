"""Let a child process end with the process that started it."""

import multiprocessing
import threading
from collections.abc import Callable


def when_parent_ends(action: Callable[[], object]) -> None:
    """Call a function, in a thread, when the process that started this one ends. A child of
    `multiprocessing` whose parent is killed would wait forever. Does nothing in other processes."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        action()

    threading.Thread(target=wait, name="parent", daemon=True).start()
