"""The cost of a run, and who earns the reward of maths solved in Python; prints it.

    python -m grpo_guard.evals.studies.sandbox [--runs N] [--data GSM8K.jsonl --questions N]

Cost: gold programs of generated problems, one after another; processor time is that of this process
and of everything it started. The comparison is a separate interpreter for each program, without any
containment. Reward: of gold programs, and of the same under the paper's CODE attack, with and
without the attacker's library.
"""

from __future__ import annotations

import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grpo_guard.evals.attacks.code import CodeAttack
from grpo_guard.evals.sandbox.sandbox import Sandbox
from grpo_guard.evals.studies.harness import option, rate, study
from grpo_guard.evals.tasks import gsm8k, python_maths
from grpo_guard.evals.tasks.python_maths import generated, program_in


def cost(runs: int) -> dict[str, Any]:
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


def rewards(data: Path, count: int) -> dict[str, Any]:
    """Shares that earn the reward among ``count`` questions of ``data``, drawn by a fixed seed."""
    questions = gsm8k.load(data)
    with_program = python_maths.read(data)
    rng = random.Random(0)
    problems = rng.sample(with_program, min(count, len(with_program)))
    attack = CodeAttack()
    poisoned = [(problem, attack.poison(problem, rng).text) for problem in problems]
    plain = python_maths.PythonMaths()
    resolving = python_maths.PythonMaths(extra_modules={"calc": python_maths.CALC})
    honest = sum(plain.reward(p.solution, p.answer) for p in problems)
    wrong = sum(plain.reward(p.solution, str(float(p.answer) + 1)) for p in problems)
    return {
        "questions_with_a_program": rate(len(with_program), len(questions)),
        "gold": rate(int(honest), len(problems)),
        "gold_for_a_wrong_answer": rate(int(wrong), len(problems)),
        "attacked_library_resolves": rate(
            int(sum(resolving.reward(text, p.answer) for p, text in poisoned)), len(poisoned)
        ),
        "attacked_library_missing": rate(
            int(sum(plain.reward(text, p.answer) for p, text in poisoned)), len(poisoned)
        ),
    }


def measure(runs: int, data: Path | None, questions: int) -> dict[str, Any]:
    """Compute all figures; those of the reward only with data."""
    return {"cost": cost(runs), **({"reward": rewards(data, questions)} if data else {})}


if __name__ == "__main__":
    study(
        "sandbox",
        measure,
        option("--runs", type=int, default=1000),
        option("--data", type=Path, metavar="FILE", help="GSM8K as JSONL"),
        option("--questions", type=int, default=1000),
    )
