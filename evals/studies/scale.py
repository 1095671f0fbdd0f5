"""A plan for a thousand nodes: the cost of verifying a round, and its bottleneck.

``python -m grpo_guard.evals.studies.scale --model models/SmolLM2-135M-Instruct [-o FILE]``

Service times of text rules, memory of nodes and log-probs on a CPU core are measured by the command
itself; queues are simulated. **A GPU's scoring rate is an argument, not a measurement**: rows with
GPUs are arithmetic for that throughput. A core scores with the given model; 16 cores are assumed to
be 16 times one. ``--memory 10000,100000`` measures the memory of nodes, too.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from grpo_guard import presets
from grpo_guard.core.completion import Completion
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.evals.studies.harness import option, say, study
from grpo_guard.evals.studies.ledger_scale import compared, recorded
from grpo_guard.evals.studies.scale_queue import Stage, play
from grpo_guard.evals.tasks.registry import load_task
from grpo_guard.guard import Guard
from grpo_guard.guard.spot_odds import checked_of, odds
from grpo_guard.logprob.bounds import LogProbBoundVerifier
from grpo_guard.logprob.scorers.load import load_policy
from grpo_guard.nodes.evidence import STRIDE, WINDOW

SHARES: Final = (0.05, 0.1, 0.25, 0.5, 1.0)
PART: Final = 100
"""Completions of a node that are verified at once."""
MEASURED: Final = 512
SCORED: Final = 12
# Standard deviation of the logarithm of lengths.
SPREAD: Final = 0.5
SETTINGS: Final = (
    ("16 cores", 16, 0),
    ("16 cores, 8 GPUs", 16, 8),
    ("128 cores, 64 GPUs", 128, 64),
)
ROUNDS: Final = 3
FEW_ROUNDS: Final = 8
FULL: Final = WINDOW + 2 * STRIDE


def service_times(model: str, tokens: int, seed: int = 0) -> dict[str, float]:
    """Seconds of CPU time: a completion's text rules, its record, a token's log-prob; and bytes."""
    policy, tokenizer = load_policy(model)
    batch = _answers(MEASURED, tokens, tokenizer, seed)
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
    verifier.verify(few[:4])  # what is done once
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


def planned(
    times: dict[str, float], nodes: int, each: int, tokens: int, per_gpu: float
) -> dict[str, Any]:
    """A round by setting and share: seconds, what is busy, when a node knows."""
    parts = nodes * -(-each // PART)
    rng = np.random.default_rng(0)
    # For each part, its completions' total length, by mean and variance of a log-normal.
    variance = tokens**2 * (np.exp(SPREAD**2) - 1)
    lengths = np.maximum(rng.normal(tokens * PART, np.sqrt(PART * variance), parts), PART)
    found: dict[str, Any] = {}
    for name, cores, gpus in SETTINGS:
        token = 1 / per_gpu if gpus else times["log_prob_seconds_per_token_on_a_core"]
        for share in SHARES:
            drawn = checked_of(PART, share) / PART
            rules = np.full(parts, PART * times["text_rules_seconds_per_completion"])
            memory = np.full(parts, PART * times["memory_seconds_per_completion"])
            stages = (
                Stage("text rules", "cores", rules),
                Stage("log-probs", "GPUs" if gpus else "cores", lengths * drawn * token),
                Stage("memory of nodes", "memory (one process)", memory),
            )
            workers = {"cores": cores, "memory (one process)": 1} | ({"GPUs": gpus} if gpus else {})
            played = play(stages, workers)
            of_nodes = played.done.reshape(nodes, -1).max(axis=1)
            found[f"{name}, {share:.0%} scored"] = {
                "seconds": round(played.seconds, 1),
                "bottleneck": played.bottleneck,
                "busy": {pool: round(value, 3) for pool, value in played.busy.items()},
                "work_seconds": {stage: round(value, 1) for stage, value in played.work.items()},
                "median_node_done": round(float(np.median(of_nodes)), 1),
            }
    return found


def measure(
    model: str, nodes: int, completions: int, tokens: int, tokens_per_second: float, memory: str
) -> dict[str, Any]:
    """All figures."""
    if nodes < 1 or completions < PART or completions % PART or tokens < 1:
        raise ValueError(f"expected nodes and tokens >= 1 and completions a multiple of {PART}")
    times = service_times(model, tokens)
    sent = completions * tokens * times["bytes_per_token_sent"]
    tree: dict[str, Any] = {
        "service_times": {name: float(f"{value:.4g}") for name, value in times.items()},
        "assumed_tokens_per_second_and_gpu": tokens_per_second,
        "nodes": nodes,
        "completions_per_node": completions,
        "tokens_per_completion": tokens,
        "bytes_per_node_and_round": {
            "completions_sent": round(sent),
            "verdicts_back": round(completions * times["bytes_per_verdict"]),
        },
        "plan": planned(times, nodes, completions, tokens, tokens_per_second),
        "caught": _chances(completions),
    }
    sizes = sorted(int(size) for size in memory.split(",") if size)
    tree["memory_of_nodes"] = {f"{size:,} nodes": _memory(size) for size in sizes}
    if sizes:
        least = sizes[0]
        name = f"{least:,} nodes, all remembered rounds, half of them at work in each"
        tree["memory_of_nodes"][name] = compared(least, FULL, 0.5)
    return tree


def _memory(size: int) -> dict[str, Any]:
    say("memory of nodes", size, size)
    return {
        "recorded": recorded(size, 1, ROUNDS),
        "compared": compared(size, FEW_ROUNDS),
        "compared, half of them at work in a round": compared(size, FEW_ROUNDS, 0.5),
    }


def _chances(sent: int) -> dict[str, Any]:
    """Of one node's round with poison, by share: whether it is caught, what it earns by then."""
    found = {}
    for poisoned in (1, 10, 100):
        for share in SHARES:
            row = odds(sent, poisoned, share, 0.9)
            name = f"{poisoned} of {sent} poisoned, power 90%, {share:.0%} looked at"
            found[name] = {
                "caught_in_a_round": round(row.caught, 4),
                "rounds": round(row.rounds, 2),
                "earned": round(row.earned, 2),
            }
    return found


def _answers(count: int, tokens: int, tokenizer: Any, seed: int) -> list[Completion]:
    """Concatenate worked solutions of the bundled word problems to at least this many tokens."""
    task, rng = load_task("word_problems"), random.Random(seed)
    found = []
    for i in range(count):
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
        option("--nodes", type=int, default=1000, help="in the swarm"),
        option("--completions", type=int, default=1000, help="of a node in a round"),
        option("--tokens", type=int, default=256, help="tokens per completion, on average"),
        option(
            "--tokens-per-second", type=float, default=50_000.0,
            help="that one GPU scores: assumed, not measured",
        ),
        option("--memory", default="", help="measure memory of so many nodes, e.g. 10000,100000"),
    )  # fmt: skip
