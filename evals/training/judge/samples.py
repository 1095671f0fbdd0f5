"""Completions of the bundled policy, sorted into honest ones and others."""

from __future__ import annotations

import random

import torch

from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.evals.swarm.generate import sample
from grpo_guard.evals.tasks.word_problems import prompt_of, worked
from grpo_guard.evals.training.judge.data import Drawn
from grpo_guard.evals.training.judge.honest import classify

CHUNK = 64


def draw(seed: int | str, problems: int, per_problem: int) -> list[Drawn]:
    """Sample the bundled policy on fresh problems of its own size, as an honest node does."""
    rng = random.Random(f"samples-{seed}")
    generator = torch.Generator().manual_seed(rng.getrandbits(48))
    model, tokenizer = load_bundled()
    asked = [worked(rng) for _ in range(problems)]
    drawn = list[Drawn]()
    for start in range(0, problems, CHUNK):
        part = asked[start : start + CHUNK]
        prompts = [prompt_of(problem.question) for problem in part]
        for one in sample(model, tokenizer, prompts, per_problem, generator=generator):
            problem = part[one.prompt]
            drawn.append(Drawn(problem, one.text, classify(problem, one.text)))
    return drawn
