"""The demo: one swarm unharmed, one poisoned, one poisoned and guarded, on bundled parts alone."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from grpo_guard.evals.demo.console import print_results, reporter
from grpo_guard.evals.demo.worker import Job, Progress, sampling_spec, work
from grpo_guard.evals.report.html import write_report
from grpo_guard.evals.report.scenarios import summarise
from grpo_guard.evals.results import Results, parse_results, versions, write_json
from grpo_guard.evals.swarm.config import QUICK, SwarmConfig
from grpo_guard.evals.swarm.one_thread import one_thread
from grpo_guard.policy import Policy

MAX_WORKERS = 2
ALPHA = 1e-3


class DemoError(RuntimeError):
    """A run of the demo ended without a result."""


def run_demo(
    out: Path,
    *,
    config: SwarmConfig | None = None,
    console: Console | None = None,
    command: str = "grpo-guard demo",
) -> Results:
    """Train the three swarms, print what happened, write ``results.json`` and ``report.html``.

    Args:
        out: Folder for the two files; made if missing.
        config: The attacked swarm; the attack-free one is the same without its malicious node.
        console: Where to print; standard output by default.
        command: How to get the same run again, for the record.

    Raises:
        DemoError: a run failed or its process died; nothing is written then.
    """
    config = config or default_config()
    console = console or Console()
    out.mkdir(parents=True, exist_ok=True)  # fail now rather than after minutes of training
    jobs = [Job(name, config, ALPHA) for name in ("undefended", "guarded", "attack-free")]
    with reporter(console, config.iterations) as tell:
        runs = train_all(jobs, tell, workers=min(MAX_WORKERS, _cores()))
    data: dict[str, Any] = {
        "config": _config(config, command),
        "versions": versions(),
        "runs": [runs["attack-free"], runs["undefended"], runs["guarded"]],
    }
    data["summary"] = summarise(parse_results(data))
    write_json(out / "results.json", data)
    report = write_report(out)
    results = parse_results(data)
    print_results(console, results, [out / "results.json", report])
    return results


def default_config(
    seed: int = 0,
    iterations: int | None = None,
    on_reject: Literal["zero", "drop"] = "drop",
    *,
    quick: bool = False,
) -> SwarmConfig:
    """The engine's own settings; the quick ones are too short for the attack to take hold.

    They drop a rejected completion unless told otherwise, where the guard's default policy gives
    it the reward 0: without clipping, a negative advantage on tokens as improbable as poison's
    ruins a policy this small.
    """
    config = replace(QUICK if quick else SwarmConfig(), seed=seed, on_reject=on_reject)
    return config if iterations is None else replace(config, iterations=iterations)


def train_all(
    jobs: Sequence[Job], tell: Callable[[Job, Progress], None], *, workers: int
) -> dict[str, dict[str, Any]]:
    """Train every job in a process of its own, at most ``workers`` at once; results by name.

    Raises:
        DemoError: with the failing run's name and its traceback or exit code.
    """
    waiting, results = deque(jobs), dict[str, dict[str, Any]]()
    active: dict[Connection, tuple[Job, SpawnProcess]] = {}
    try:
        while waiting or active:
            while waiting and len(active) < workers:
                job = waiting.popleft()
                pipe, process = _start(job)
                active[pipe] = job, process
            for ready in wait(list(active)):
                assert isinstance(ready, Connection)
                job, process = active[ready]
                kind, payload = _receive(ready, job, process)
                if kind == "round":
                    tell(job, payload)
                elif kind == "done":
                    results[job.name] = payload
                    del active[ready]
                    process.join()
                else:
                    raise DemoError(f"the {job.name} run failed:\n{payload}")
    finally:
        _stop([process for _, process in active.values()])
    return results


def _start(job: Job) -> tuple[Connection, SpawnProcess]:
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(job, theirs), daemon=True, name=job.name)
    with one_thread(), _interrupts_held():
        process.start()
    theirs.close()  # so that the end of the process is the end of the pipe
    return ours, process


def _receive(pipe: Connection, job: Job, process: SpawnProcess) -> tuple[str, Any]:
    try:
        message: tuple[str, Any] = pipe.recv()
    except EOFError:
        process.join()
        hint = " (killed, perhaps for want of memory)" if process.exitcode == -9 else ""
        raise DemoError(
            f"the {job.name} run ended without a result, exit code {process.exitcode}{hint}"
        ) from None
    return message


def _stop(processes: Sequence[SpawnProcess]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Children inherit the mask: Ctrl-C reaches this process alone, which then ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _config(config: SwarmConfig, command: str) -> dict[str, Any]:
    return {
        "command": command,
        "task": "word_problems",
        "swarm": asdict(config),
        "alpha": ALPHA,
        "policy": asdict(Policy(on_reject=config.on_reject)),
        "sampling": asdict(sampling_spec(config)),
    }
