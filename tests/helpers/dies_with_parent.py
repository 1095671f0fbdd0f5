"""Runs a command that ends with the process that started it, even after a SIGKILL.

    python -I dies_with_parent.py PARENT_PID COMMAND...

Must lead a process group, of which COMMAND and all that it starts are members: what is left when
the parent has gone is killed with the group. It asks for its parent's id twice a second. That works
from any thread, while PR_SET_PDEATHSIG would kill the command at the end of the *thread* that
started it, and neither that signal nor one sent to the command alone would reach its children.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from types import FrameType

INTERVAL = 0.5
# Seconds between SIGTERM and SIGKILL once the parent is gone.
GRACE = 5.0


def main(parent: int, command: list[str]) -> int:
    """Run the command; return its exit code, or 128 + n if signal n ended it."""
    child = subprocess.Popen(command)

    def forward(number: int, frame: FrameType | None) -> None:
        child.send_signal(number)

    signal.signal(signal.SIGTERM, forward)
    # Also right if the parent ended before this line: then the id already differs.
    while os.getppid() == parent:
        try:
            code = child.wait(INTERVAL)
            return code if code >= 0 else 128 - code
        except subprocess.TimeoutExpired:
            continue
    child.terminate()
    with suppress(subprocess.TimeoutExpired):
        child.wait(GRACE)
    os.killpg(0, signal.SIGKILL)
    raise AssertionError("unreachable: this process is of the group")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
