"""Runs all comparisons on one device, in a single process."""

import os
import platform
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from grpo_guard.evals.results import today, versions
from grpo_guard.evals.studies.bench.end_to_end import LONG, SPEC, end_to_end, load, name_of
from grpo_guard.evals.studies.bench.head import HeadCase, cpu_head, cuda_head
from grpo_guard.evals.studies.bench.measure import Clock, Timing
from grpo_guard.evals.studies.bench.prompts import NAME as SHARED_PROMPT
from grpo_guard.evals.studies.bench.prompts import shared_prompt
from grpo_guard.evals.studies.bench.replay import (
    DRAWING,
    PASS,
    SAMPLERS,
    SCORING,
    drawing,
    scoring,
    scoring_pass,
)

# The head of Qwen2.5-0.5B and, on a GPU, also that of Qwen2.5-7B.
VOCAB, SMALL, LARGE = 151_936, 896, 3584
END_TO_END_ROUNDS = 3

Say = Callable[[str], None]


def bench(
    device: str,
    *,
    rounds: int,
    model: Path | None,
    quick: bool,
    say: Say,
    only: str = "",
) -> dict[str, Any]:
    """Run everything that this device and these arguments allow; return the file's content.

    Comparisons whose name does not contain ``only`` are left out.
    """
    tables: list[dict[str, Any]] = []

    def add(name: str, run: Callable[[], list[Timing]], *, one_thread: bool = False) -> None:
        if only not in name:
            return
        say(name)
        threads = torch.get_num_threads()
        torch.set_num_threads(1 if one_thread else threads)
        try:
            timings = run()
        finally:
            torch.set_num_threads(threads)
        row: dict[str, Any] = {"name": name, "rows": [asdict(t) for t in timings]}
        tables.append(row | {"threads": 1 if one_thread else threads})

    head = cuda_head if device == "cuda" else cpu_head
    for case in _cases(device, quick):
        add(case.name, partial(head, case, rounds=rounds), one_thread=True)
    add(SHARED_PROMPT, partial(shared_prompt, device, rounds=rounds), one_thread=True)
    first = _cases(device, quick)[0]
    for spec, what in SAMPLERS:
        run = partial(scoring, first, device, spec, rounds=rounds)
        add(f"{SCORING}, {what}", run, one_thread=True)
    if model is not None and not quick:
        loaded, few = load(model, device), min(rounds, END_TO_END_ROUNDS)
        clock: Clock = "cuda" if device == "cuda" else "wall"
        for drawn in (SPEC, LONG):
            whole = partial(end_to_end, loaded, drawn, rounds=few, clock=clock)
            add(f"{name_of(drawn)}, {model.name}", whole)
        passing = partial(scoring_pass, clock=clock)
        for make, title in ((passing, PASS), (drawing, DRAWING)):
            for spec, what in SAMPLERS:
                coin = partial(make, loaded, spec, rounds=rounds)
                add(f"{title}, {what}, {model.name}", coin)
    return {
        "kind": "bench",
        "device": device,
        "machine": _machine(device),
        "versions": versions("triton"),
        "date": today(),
        "rounds": rounds,
        "tables": tables,
    }


def _cases(device: str, quick: bool) -> list[HeadCase]:
    if quick:
        return [HeadCase(32, 8192, 64, torch.float32)]
    if device == "cuda":
        sizes = [(4096, SMALL), (8192, SMALL), (4096, LARGE), (8192, LARGE)]
        return [HeadCase(n, VOCAB, h, torch.bfloat16) for n, h in sizes]
    return [
        HeadCase(256, VOCAB, SMALL, torch.float32),
        HeadCase(256, VOCAB, SMALL, torch.bfloat16),
        HeadCase(2048, VOCAB, SMALL, torch.float32),
    ]


def _machine(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    features = torch.backends.cpu.get_cpu_capability()
    return f"{platform.machine()} CPU, {os.cpu_count()} cores, {features}"
