"""Show a model worked examples before a swarm trains it, so that it can earn any reward at all.

``python -m grpo_guard.evals.training.policies.warm_start MODEL -o FOLDER [--steps 30]``

Even with a worked example before the question, SmolLM2-135M-Instruct wrote the paper's ``<answer>``
tags in only 2 of 28 samples. If honest work earns nothing, a swarm learns only from its attacker.
240 worked examples, prompted the same way the task prompts the bundled policies (``Q: ... A:``, no
chat), teach the model the format; the arithmetic is left to the swarm. On the same machine,
identical arguments produce identical weights.
"""

import argparse
import random
from pathlib import Path

import torch

from grpo_guard.evals.policies import named
from grpo_guard.evals.swarm.generate import sample
from grpo_guard.evals.swarm.grpo import Weighted, accumulate
from grpo_guard.evals.swarm.optimiser import adam
from grpo_guard.evals.tasks.base import Problem, held_out
from grpo_guard.evals.tasks.registry import TASKS, WORD_PROBLEMS, load_task


def main() -> None:
    """Train, save the model without the chat template, and print what the policy earns."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="name, folder or id")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--task", choices=TASKS, default=WORD_PROBLEMS)
    parser.add_argument("--data", type=Path, help="problems of the task as JSONL")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=8, help="problems of a step")
    parser.add_argument("--lr", type=float, default=1e-4, help="falls to 0 linearly")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()

    task = load_task(given.task, given.data)
    model, tokenizer = named.load(given.model, dtype="float32", device=given.device)
    end = tokenizer.eos_token_id

    def solved(problem: Problem) -> Weighted:
        prompt = tokenizer.encode(problem.prompt, add_special_tokens=False)
        text = tokenizer.encode(problem.solution, add_special_tokens=False)
        return Weighted(prompt, [*text, end], 1.0)

    rng = random.Random("warm start")
    optimizer = adam(model.parameters(), lr=given.lr)
    for step in range(given.steps):
        optimizer.param_groups[0]["lr"] = given.lr * (1 - step / given.steps)
        optimizer.zero_grad(set_to_none=True)
        accumulate(model, [solved(task.sample(rng)) for _ in range(given.batch)], given.batch)
        optimizer.step()
        print(f"step {step + 1} of {given.steps}", flush=True)
    model.save_pretrained(given.out)
    tokenizer.chat_template = None  # the policy has seen only the task's own prompts
    tokenizer.save_pretrained(given.out)

    asked = [held_out(task, rng) for _ in range(32)]
    drawn = sample(
        model, tokenizer, [problem.prompt for problem in asked], 1,
        generator=torch.Generator().manual_seed(0), max_new_tokens=96,
    )  # fmt: skip
    earned = sum(task.reward(one.text, asked[one.prompt].answer) for one in drawn)
    print(f"wrote {given.out}; earns {earned:.0f} of {len(asked)} held-out problems, top-k 50")
    print(*(repr(one.text) for one in drawn[:8]), sep="\n")


if __name__ == "__main__":
    main()
