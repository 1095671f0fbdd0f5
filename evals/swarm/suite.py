"""Carries out a plan run by run, so that it can be stopped and resumed; writes results.json."""

import json
import multiprocessing as mp
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from grpo_guard.core.parent_process import when_parent_ends
from grpo_guard.evals.attacks.registry import NONE
from grpo_guard.evals.progress import Say
from grpo_guard.evals.report.summary import summarise
from grpo_guard.evals.results import parse_results, today, versions, write_json
from grpo_guard.evals.stats import percent
from grpo_guard.evals.swarm.config import EngineName
from grpo_guard.evals.swarm.experiment import Spec, play
from grpo_guard.evals.swarm.training import (
    CHECKPOINT,
    CheckpointError,
    Interrupted,
    differences,
    stop_on_interrupt,
)
from grpo_guard.server.distributed.cluster import require_ray

OnRow = Callable[[Spec, dict[str, Any]], None]
"""Called after each round with the run and the round's row."""


LINE_EVERY: Final = 10
"""Number of rounds between two progress lines of a run."""


def rounds(specs: Sequence[Spec]) -> int:
    """Count the rounds of all runs."""
    return sum(spec.config.iterations for spec in specs)


def row_reporter(say: Say, name: Callable[[Spec], str] = lambda spec: spec.label) -> OnRow:
    """Return a callback that reports rounds through ``say``; ``name`` returns a run's name."""

    def on_row(spec: Spec, row: dict[str, Any]) -> None:
        figures = f"honest reward {row['honest_reward']:.2f}, {row['mean_tokens']:.0f} tokens"
        if spec.attack != NONE:
            figures = f"attack success {percent(row['asr'])}, {figures}"
        say(name(spec), row["iteration"] + 1, spec.config.iterations, figures)

    return on_row


_RUN = "run.json"
_THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class RunError(RuntimeError):
    """Raised if a run's process died; earlier results are kept."""


def play_all(
    specs: Sequence[Spec],
    out: Path,
    *,
    command: str,
    on_row: OnRow,
    every: int = 10,
    workers: int = 1,
    engine: EngineName = "local",
) -> dict[str, Any]:
    """Carry out all runs that are not yet finished; return the content of ``out/results.json``.

    results.json is written after each run, so that finished runs are never lost.

    Raises:
        ValueError: several workers were requested with an engine that has its own processes.
        RayMissingError: the engine is not installed.
        Interrupted: Ctrl-C was pressed; all runs in progress are saved.
        RunError: one of several processes died.
        CheckpointError: ``out`` holds a run with the same name but different settings.
        OSError: the disk is full, or the folder is not writable.
    """
    if engine == "ray":
        require_ray()
        if workers > 1:
            raise ValueError(f"workers: expected 1 with --engine ray, got {workers}")
    out.mkdir(parents=True, exist_ok=True)
    finished = {spec.label: run for spec in specs if (run := _finished(spec, out)) is not None}
    todo = [spec for spec in specs if spec.label not in finished]
    results = _write(specs, finished, out, command) if finished else {}
    playing = _in_processes(todo, out, every, workers, on_row) if workers > 1 else None
    for spec, run in playing or _in_turn(todo, out, every, on_row, engine):
        write_json(_folder(spec, out) / _RUN, {"identity": spec.identity(), "run": run})
        (_folder(spec, out) / CHECKPOINT).unlink(missing_ok=True)
        finished[spec.label] = run
        results = _write(specs, finished, out, command)
    return results


def _in_turn(
    specs: Sequence[Spec], out: Path, every: int, on_row: OnRow, engine: EngineName
) -> Iterator[tuple[Spec, dict[str, Any]]]:
    with stop_on_interrupt() as stop:
        for spec in specs:
            folder = _folder(spec, out)
            folder.mkdir(parents=True, exist_ok=True)

            def on_round(row: dict[str, Any], spec: Spec = spec) -> None:
                on_row(spec, row)

            yield spec, play(spec, folder, every=every, on_round=on_round, stop=stop, engine=engine)
            if stop.is_set():
                raise Interrupted


def _in_processes(
    specs: Sequence[Spec], out: Path, every: int, workers: int, on_row: OnRow
) -> Iterator[tuple[Spec, dict[str, Any]]]:
    context = mp.get_context("spawn")
    stop, rows = context.Event(), context.Queue()
    with (
        _one_thread(),
        ProcessPoolExecutor(workers, context, _prepare, (stop, rows)) as pool,
        _forwarded(rows, {spec.label: spec for spec in specs}, on_row),
    ):
        waiting: dict[Future[dict[str, Any]], Spec] = {}
        for spec in specs:
            _folder(spec, out).mkdir(parents=True, exist_ok=True)
            waiting[pool.submit(_work, spec, _folder(spec, out), every)] = spec
        try:
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    yield waiting.pop(future), future.result()
        except BrokenProcessPool:
            raise RunError(
                "a process of these runs ended without a result, perhaps for lack of memory"
            ) from None
        except KeyboardInterrupt:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise Interrupted from None
        except BaseException:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


_shared: dict[str, Any] = {}


@contextmanager
def _one_thread() -> Iterator[None]:
    """Give child processes one thread each, because they share the cores.

    The processes read these variables on import, before any code of ours could set them.
    """
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _prepare(stop: Any, rows: Any) -> None:
    """Set up a child process, which ignores Ctrl-C because the parent asks all children to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _shared.update(stop=stop, rows=rows)
    when_parent_ends(lambda: os._exit(1))
    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)
    logging.disable_progress_bar()


def _work(spec: Spec, folder: Path, every: int) -> dict[str, Any]:
    def on_round(row: dict[str, Any]) -> None:
        _shared["rows"].put((spec.label, row))

    return play(spec, folder, every=every, on_round=on_round, stop=_shared["stop"])


@contextmanager
def _forwarded(rows: Any, specs: dict[str, Spec], on_row: OnRow) -> Iterator[None]:
    """Forward the rounds that the processes report, from a thread."""
    ended = threading.Event()

    def listen() -> None:
        while not (ended.is_set() and rows.empty()):
            try:
                label, row = rows.get(timeout=0.2)
            except queue.Empty:
                continue
            on_row(specs[label], row)

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(5)


def is_finished(spec: Spec, out: Path) -> bool:
    """Whether ``out`` contains a finished run with the label of ``spec``."""
    return (_folder(spec, out) / _RUN).is_file()


def _folder(spec: Spec, out: Path) -> Path:
    return out / "runs" / spec.label


def _finished(spec: Spec, out: Path) -> dict[str, Any] | None:
    path = _folder(spec, out) / _RUN
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        identity, run = data["identity"], data["run"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: expected a finished run, got {error}; delete it") from None
    other = differences(spec.identity(), identity)
    if other:
        raise CheckpointError(
            f"{path}: expected a run of these settings, got one with {other}; choose another folder"
        )
    return dict(run)


def _each(names: Iterable[str]) -> str:
    return ",".join(dict.fromkeys(names))


def _write(
    specs: Sequence[Spec], finished: dict[str, dict[str, Any]], out: Path, command: str
) -> dict[str, Any]:
    runs = [finished[spec.label] for spec in specs if spec.label in finished]
    data: dict[str, Any] = {
        "config": {
            "command": command,
            "task": _each(spec.workload.task for spec in specs),
            "policy": _each(name for spec in specs for name in spec.workload.policies),
            "planned_runs": len(specs),
            "finished_runs": len(runs),
        },
        "versions": versions(),
        "date": today(),
        "runs": runs,
    }
    data["summary"] = summarise(parse_results(data))
    write_json(out / "results.json", data)
    return data
