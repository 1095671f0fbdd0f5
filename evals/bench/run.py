"""All comparisons of one device, in one process and one run."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from grpo_guard.evals.bench.end_to_end import LONG, SPEC, end_to_end, long_completions, name_of
from grpo_guard.evals.bench.head import HeadCase, cpu_head, cuda_head
from grpo_guard.evals.bench.measure import Timing
from grpo_guard.evals.bench.prompts import NAME as SHARED_PROMPT
from grpo_guard.evals.bench.prompts import shared_prompt
from grpo_guard.evals.bench.replay import (
    DRAWING,
    PASS,
    SAMPLERS,
    SCORING,
    drawing,
    scoring,
    scoring_pass,
)
from grpo_guard.evals.versions import versions

# The head of Qwen2.5-0.5B, and on a GPU also that of Qwen2.5-7B.
VOCAB, SMALL, LARGE = 151_936, 896, 3584
END_TO_END_ROUNDS = 3

Say = Callable[[str], None]


def bench(
    device: str,
    *,
    rounds: int,
    model: Path | None,
    vllm_python: Path | None,
    quick: bool,
    say: Say,
) -> dict[str, Any]:
    """Run everything that this device and these arguments allow; returns what goes to the file."""
    tables: list[dict[str, Any]] = []

    def add(name: str, timings: list[Timing], **more: Any) -> None:
        tables.append({"name": name, "rows": [t.to_dict() for t in timings], **more})

    for case in _cases(device, quick):
        say(case.name)
        head = cuda_head if device == "cuda" else cpu_head
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        add(case.name, head(case, rounds=rounds), threads=1)
        torch.set_num_threads(threads)
    say(SHARED_PROMPT)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    add(SHARED_PROMPT, shared_prompt(device, rounds=rounds), threads=1)
    torch.set_num_threads(threads)
    for spec, what in SAMPLERS:
        name = f"{SCORING}, {what}"
        say(name)
        torch.set_num_threads(1)
        add(name, scoring(_cases(device, quick)[0], device, spec, rounds=rounds), threads=1)
        torch.set_num_threads(threads)
    if model is not None and not quick:
        few = min(rounds, END_TO_END_ROUNDS)
        say(name_of(SPEC))
        timings, notes = end_to_end(model, device, rounds=few, vllm_python=vllm_python)
        add(f"{name_of(SPEC)}, {model.name}", timings, threads=threads, notes=notes)
        say(name_of(LONG))
        timings = long_completions(model, device, rounds=few)
        add(f"{name_of(LONG)}, {model.name}", timings, threads=threads)
        for spec, what in SAMPLERS:
            name = f"{PASS}, {what}, {model.name}"
            say(name)
            add(name, scoring_pass(model, device, spec, rounds=rounds), threads=threads)
        for spec, what in SAMPLERS:
            name = f"{DRAWING}, {what}, {model.name}"
            say(name)
            add(name, drawing(model, device, spec, rounds=rounds), threads=threads)
    return {
        "kind": "bench",
        "device": device,
        "machine": _machine(device),
        "versions": versions() | _triton(),
        "date": datetime.date.today().isoformat(),
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


def _triton() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return {"triton": version("triton")}
    except PackageNotFoundError:
        return {}
