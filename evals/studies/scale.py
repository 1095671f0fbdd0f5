"""The cost of verifying: text rules, node memory and log-probs on one core, plus bytes on the wire.

``python -m grpo_guard.evals.studies.scale --model models/SmolLM2-135M-Instruct [-o FILE]``

Seconds are CPU time. ``--memory 10000,100000`` also measures the memory needed for that many nodes.
"""

import json
import random
import time
from collections.abc import Sequence
from typing import Any, Final

from grpo_guard import presets
from grpo_guard.core.completion import Completion
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.evals.studies.harness import option, say, study
from grpo_guard.evals.studies.ledger_scale import compared, recorded
from grpo_guard.evals.tasks.registry import load_task
from grpo_guard.guard import Guard
from grpo_guard.logprob.bounds import LogProbBoundVerifier
from grpo_guard.logprob.scorers.load import load_policy

MEASURED: Final = 512
SCORED: Final = 12
ROUNDS: Final = 3
FEW_ROUNDS: Final = 8


def service_times(model: str, tokens: int) -> dict[str, float]:
    """Measure CPU seconds per completion (text rules, record) and per scored token, plus bytes."""
    policy, tokenizer = load_policy(model)
    batch = _answers(tokens, tokenizer)
    text = presets.different_weights()
    started = time.process_time()
    verdicts = Guard(text.verifier).verifier.verify(batch)
    rules = (time.process_time() - started) / len(batch)
    say("text rules", 1, 3)
    memory = recorded(1000, 20, 3)
    say("memory of nodes", 2, 3)
    sampling = SamplingSpec(engine="transformers", temperature=1.0, top_k=50, top_p=1.0)
    verifier = LogProbBoundVerifier(policy, tokenizer, sampling=sampling, node_alpha=0)
    few = batch[:SCORED]
    verifier.verify(few[:4])  # gets one-off work done
    started = time.process_time()
    verifier.verify(few)
    spent = time.process_time() - started
    say("log-probs", 3, 3)
    sent = [len(json.dumps(_sent(c))) for c in few]
    scored = sum(len(c.completion_ids or ()) for c in few)
    return {
        "text_rules_seconds_per_completion": rules,
        "memory_seconds_per_completion": memory["microseconds_per_record_in_last_round"] * 1e-6,
        "log_prob_seconds_per_token_on_a_core": spent / scored,
        "bytes_per_token_sent": sum(sent) / scored,
        "bytes_per_verdict": sum(len(json.dumps(v.to_dict())) for v in verdicts) / len(verdicts),
        "completions_timed": len(batch),
        "tokens_timed": scored,
    }


def measure(model: str, tokens: int, memory: str) -> dict[str, Any]:
    """Compute all figures."""
    if tokens < 1:
        raise ValueError("expected tokens >= 1")
    times = service_times(model, tokens)
    sizes = sorted(int(size) for size in memory.split(",") if size)
    return {
        "service_times": {name: float(f"{value:.4g}") for name, value in times.items()},
        "tokens_per_completion": tokens,
        "memory_of_nodes": {f"{size:,} nodes": _memory(size) for size in sizes},
    }


def _memory(size: int) -> dict[str, Any]:
    say("memory of nodes", size, size)
    return {
        "recorded": recorded(size, 1, ROUNDS),
        "compared": compared(size, FEW_ROUNDS),
        "compared, half of them at work in a round": compared(size, FEW_ROUNDS, 0.5),
    }


def _answers(tokens: int, tokenizer: Any) -> list[Completion]:
    """Concatenate worked solutions to the bundled word problems to at least ``tokens`` tokens."""
    task, rng = load_task("word_problems"), random.Random(0)
    found = []
    for i in range(MEASURED):
        problem, text = task.sample(rng), ""
        ids: list[int] = []
        while len(ids) < tokens:
            text += task.sample(rng).solution + "\n"
            ids = tokenizer.encode(text, add_special_tokens=False)
        whole = [*ids, tokenizer.eos_token_id]
        of = Completion(problem.prompt, text, completion_ids=tuple(whole))
        found.append(of.with_labels(node=f"node {i % 16}", round=0, slot=i))
    return found


def _sent(of: Completion) -> dict[str, Any]:
    ids: Sequence[int] = of.completion_ids or ()
    fields = {"prompt": of.prompt, "text": of.text, "completion_ids": list(ids), "node": of.node}
    return fields | {"round": of.round, "slot": of.slot}


if __name__ == "__main__":
    study(
        "scale",
        measure,
        option("--model", default="models/SmolLM2-135M-Instruct", help="what a core scores with"),
        option("--tokens", type=int, default=256, help="tokens per completion, on average"),
        option("--memory", default="", help="measure memory of so many nodes, e.g. 10000,100000"),
    )  # fmt: skip
