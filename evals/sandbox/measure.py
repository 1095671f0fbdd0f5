"""What a run costs: ``python -m grpo_guard.evals.sandbox.measure [RUNS]``, one line of JSON.

Gold programs of generated problems, one after the other; processor time is that of this process and
of all that it started. The comparison is an interpreter of its own for each program, not held by
anything.
"""

from __future__ import annotations

import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from grpo_guard.evals.sandbox.sandbox import Sandbox
from grpo_guard.evals.tasks.python_maths import generated, program_in


def measure(runs: int) -> dict[str, object]:
    """Milliseconds per run, in the sandbox and in a fresh interpreter."""
    rng = random.Random(0)
    programs = [program_in(generated(rng).solution) or "" for _ in range(runs)]
    before = _processor_time()
    with Sandbox() as sandbox:
        layers = sandbox.require()
        contained = _timed(lambda program: sandbox.run(program).status == "ok", programs)
    # The server's children count once it has ended, together with its start.
    contained["cpu_ms"] = 1000 * (_processor_time() - before) / runs
    before = _processor_time()
    fewer = programs[: max(1, runs // 10)]
    fresh = _timed(_fresh, fewer)
    fresh["cpu_ms"] = 1000 * (_processor_time() - before) / len(fewer)
    return {"runs": runs, "layers": layers, "sandbox": contained, "fresh_interpreter": fresh}


def _processor_time() -> float:
    """Seconds of this process and of its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _fresh(program: str) -> bool:
    command = [sys.executable, "-I", "-S", "-c", program]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _timed(run: Callable[[str], bool], programs: Sequence[str]) -> dict[str, float]:
    seconds, good = list[float](), 0
    for program in programs:
        started = time.perf_counter()
        good += run(program)
        seconds.append(1000 * (time.perf_counter() - started))
    seconds.sort()
    return {
        "good": good,
        "median_ms": statistics.median(seconds),
        "p95_ms": seconds[int(0.95 * len(seconds))],
    }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)))
