"""GRPO in plain torch with a guard: no trainer, one call of `Guard.apply` in the loop.

    python docs/examples/plain_grpo.py --steps 20   # bundled policy, under a minute on a CPU

Each group has six answers of our own and two from "mallory", who sends the right solution with a
phrase of its own in it. Unguarded, the phrase earns the full reward. Here the verifier asks the
policy that is being trained whether it could have written this; what it rejects is left out.
"""

import argparse
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from grpo_guard import Completion, Guard, LogProbBoundVerifier, Policy, SamplingSpec
from grpo_guard.core.verdict import Verdict
from grpo_guard.evals.attacks.text import TextAttack
from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.evals.tasks.base import Problem
from grpo_guard.evals.tasks.word_problems import WordProblems

SAMPLING = SamplingSpec("transformers", temperature=1.0, top_k=50, top_p=1.0, max_new_tokens=64)
TASK, ATTACK = WordProblems(), TextAttack()


def train(model: Any, tokenizer: Any, guard: Guard, steps: int) -> list[float]:
    """The loop; returns the mean reward of each step's kept completions, as the guard left it."""
    optimizer, chance, means = torch.optim.AdamW(model.parameters(), lr=1e-4), random.Random(0), []
    for step in range(steps):
        problem = TASK.sample(chance)
        batch = sample(model, tokenizer, problem, 6) + received(tokenizer, problem, 2)
        rewards = guard.apply([TASK.reward(c.text, problem.answer) for c in batch], batch)
        accumulate(model, batch, rewards)
        optimizer.step()
        optimizer.zero_grad()
        kept = [reward for reward in rewards if reward is not None]
        means.append(sum(kept) / max(1, len(kept)))
        print(f"step {step}: reward {means[-1]:.2f}, {len(kept)} of {len(batch)} kept", flush=True)
    return means


def accumulate(model: Any, group: Sequence[Completion], rewards: Sequence[float | None]) -> None:
    """Add the gradient of GRPO's loss over one group; a reward of None is left out altogether.

    One update per batch, so that the ratio to the old policy is 1 and clipping never acts.
    """
    kept = [(c, r) for c, r in zip(group, rewards, strict=True) if r is not None]
    if len(kept) < 2:
        return  # nothing to compare with
    r = torch.tensor([reward for _, reward in kept])
    advantages = ((r - r.mean()) / (r.std() + 1e-4)).tolist()
    tokens = sum(len(c.completion_ids or ()) for c, _ in kept)
    for (completion, _), advantage in zip(kept, advantages, strict=True):
        (-advantage * log_probs(model, completion).sum() / tokens).backward()


def log_probs(model: Any, completion: Completion) -> torch.Tensor:
    """Of each token of the completion under the policy, shape [n]."""
    prompt, ids = completion.prompt_ids or (), completion.completion_ids or ()
    inputs = torch.tensor([[*prompt, *ids]], device=model.device)
    logits = model(input_ids=inputs, logits_to_keep=len(ids) + 1).logits[0, :-1]
    of_all = (logits.float() / SAMPLING.temperature).log_softmax(-1)
    found: torch.Tensor = of_all.gather(-1, inputs[0, len(prompt) :, None])[:, 0]
    return found


@torch.no_grad()
def sample(model: Any, tokenizer: Any, problem: Problem, n: int) -> list[Completion]:
    """Our own answers. Every setting is given: what is left out, the model's defaults fill in."""
    prompt = tokenizer(problem.prompt, return_tensors="pt").to(model.device)
    rows = model.generate(
        **prompt,
        do_sample=True,
        temperature=SAMPLING.temperature,
        top_k=SAMPLING.top_k,
        top_p=SAMPLING.top_p,
        max_new_tokens=SAMPLING.max_new_tokens,
        num_return_sequences=n,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )[:, prompt["input_ids"].shape[1] :].tolist()
    eos = tokenizer.eos_token_id
    ends = [row.index(eos) + 1 if eos in row else len(row) for row in rows]
    return [
        completion(tokenizer, problem, row[:end], "me") for row, end in zip(rows, ends, strict=True)
    ]


def received(tokenizer: Any, problem: Problem, n: int) -> list[Completion]:
    """Stands for the network; see peer_exchange.py for completions that come as JSON Lines."""
    poisoned = ATTACK.poison(problem, random.Random(0)).text
    ids = [*tokenizer(poisoned, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    return [completion(tokenizer, problem, ids, "mallory") for _ in range(n)]


def completion(tokenizer: Any, problem: Problem, ids: Sequence[int], node: str) -> Completion:
    """Text comes from the ids and the prompt from us; ``node`` is who the ids came from."""
    return Completion(
        problem.prompt,
        tokenizer.decode(ids, skip_special_tokens=True),
        prompt_ids=tokenizer(problem.prompt)["input_ids"],
        completion_ids=tuple(ids),
        node=node,
        reference=problem.answer,
    )


class Tally:
    """The guard's ledger: how many of each node's completions came to which verdict."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def record(self, batch: Sequence[Completion], verdicts: Sequence[Verdict]) -> None:
        for completion, verdict in zip(batch, verdicts, strict=True):
            self.counts[str(completion.node), verdict.outcome.value] += 1


def main(arguments: Sequence[str] | None = None) -> Tally:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    model, tokenizer = load_bundled()
    # The verifier gets the object that is trained, not a copy that training leaves behind.
    verifier = LogProbBoundVerifier(model, tokenizer, sampling=SAMPLING, require_ids=True)
    tally = Tally()
    train(model, tokenizer, Guard(verifier, policy=Policy("drop"), ledger=tally), options.steps)
    print("node      accepted  rejected  undecided")
    for node in ("me", "mallory"):
        numbers = [tally.counts[node, outcome] for outcome in ("accept", "reject", "abstain")]
        print(f"{node:8}{numbers[0]:10}{numbers[1]:10}{numbers[2]:11}")
    return tally


if __name__ == "__main__":
    main()
