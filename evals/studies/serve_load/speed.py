"""A server's throughput, compared with a server that does nothing and with the guard itself."""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, Final

from grpo_guard.config import GuardConfig
from grpo_guard.core.completion import Completion
from grpo_guard.evals.policies.bundled import WORD_PROBLEMS
from grpo_guard.evals.studies.harness import rate, say
from grpo_guard.evals.studies.serve_load.clients import ask_all
from grpo_guard.evals.studies.serve_load.server import Server, listening, serving

STACKS: Final = {
    "screens": "policy: {on_abstain: zero}\nverifier: {type: screens}\n",
    "four verifiers": "policy: {on_abstain: zero}\nverifier: {all: [{type: screens}, "
    "{type: arithmetic}, {type: answer_words}, {type: code}]}\n",
    "different_weights": "preset: different_weights\nstate: FOLDER\n",
}
SAMPLING: Final = (
    "engine: transformers, temperature: 1.0, top_k: 50, top_p: 1.0, max_new_tokens: 64"
)
LOG_PROBS: Final = (
    f"verifier: {{type: logprob_bound, model: {WORD_PROBLEMS}, sampling: {{{SAMPLING}}}}}\n"
)
GROUP: Final = 4


def solutions(count: int, nodes: int = 0, seed: int = 0) -> Iterator[Completion]:
    """Answers of some 260 characters with four right equations each, as of GSM8K's kind."""
    rng = random.Random(seed)
    for _ in range(count):
        a, b, c = rng.randint(2, 99), rng.randint(2, 99), rng.randint(2, 9)
        total = c * (a + b)
        text = (
            f"She sold {a} clips in April and {b} in May. Together she sold {a}+{b} = {a + b} "
            f"clips. Each of her {c} friends bought as many, so they bought {c}*{a + b} = {total} "
            f"clips in all. Subtracting the first {a} that were returned leaves {total} - {a} = "
            f"{total - a}. Therefore the answer is {total - a}.\n#### {total - a}"
        )
        prompt = f"{a} in April, {b} in May, {c} friends: how many clips are left?"
        node = f"node{rng.randrange(nodes)}" if nodes else None
        yield Completion(prompt, text, node=node)


@contextmanager
def written(completions: Sequence[Completion], size: int = 1) -> Iterator[Path]:
    """A file of bodies with ``size`` completions each."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bodies"
        with file.open("w") as out:
            left = iter(completions)
            while rows := [_row(c) for c in islice(left, size)]:
                out.write(json.dumps({"completions": rows}) + "\n")
        yield file


def _row(completion: Completion) -> dict[str, Any]:
    return {name: value for name, value in asdict(completion).items() if value is not None}


def against_echo(seconds: float) -> dict[str, Any]:
    """Answers per second of CPU time, each stack and an echo alternating in one run; and the time
    of the guard alone, in process and in large batches, a lower bound for any server."""
    found: dict[str, Any] = {}
    rows = list(solutions(2000))
    with written(rows) as bodies:
        for clients in (64, 256):
            for name, guard in STACKS.items():
                with listening([sys.executable, "-m", f"{__package__}.echo"]) as echo:
                    bare = _load(echo, bodies, clients, seconds)
                with serving(guard=guard) as server:
                    own = _load(server, bodies, clients, seconds)
                ratio = bare["cpu ms"] / own["cpu ms"]
                alone = _in_process(guard, rows, 256, seconds / 2)
                found[f"{name}, {clients} clients"] = {
                    "ratio": ratio,
                    "served": own,
                    "echo": bare,
                    "the guard alone": alone,
                    "the ratio's bound": bare["cpu ms"] / (bare["cpu ms"] + alone["cpu ms"]),
                }
                say(f"{name}, {clients} clients", 1, 1)
    return found


def _load(server: Server, bodies: Path, clients: int, seconds: float) -> dict[str, Any]:
    ask_all(server.port, bodies, clients, seconds=1.0)  # what is made on first use
    before = server.cpu()
    found = ask_all(server.port, bodies, clients, seconds=seconds)
    found["cpu ms"] = 1000 * (server.cpu() - before) / max(1, found["requests"])
    found["per second"] = found["requests"] / found["seconds"]
    return found


def sustained(requests: int, workers: int) -> dict[str, Any]:
    """The text stack with a memory of nodes, 64 clients, one completion a request."""
    options = ("--workers", str(workers)) if workers > 1 else ()
    with (
        written(list(solutions(5000, nodes=8))) as bodies,
        serving(*options, guard=STACKS["different_weights"]) as server,
    ):
        ask_all(server.port, bodies, 64, seconds=1.0)
        found = ask_all(server.port, bodies, 64, seconds=3600.0, most=requests)
        answered = found["said"].get("verdicts", 0)
        return {
            "answered": rate(answered, requests),
            "lost": requests - answered,
            "per second": answered / found["seconds"],
            "MB at the end": server.resident(),
            **found,
        }


def log_probs(seconds: float) -> dict[str, Any]:
    """The bundled policy: served to 64 clients that send a group each, and called in process."""
    rows = _sampled(512)
    in_process = _in_process(LOG_PROBS, rows, 64, seconds)
    with written(rows, GROUP) as bodies, serving(guard=LOG_PROBS) as server:
        found = _load(server, bodies, 64, seconds)
    served = GROUP * found["per second"]
    return {
        "in process, per second": in_process,
        "served, per second": served,
        "ratio": served / in_process["per second"],
        "ratio of CPU time": in_process["cpu ms"] / (found["cpu ms"] / GROUP),
        **found,
    }


def _in_process(
    text: str, rows: Sequence[Completion], size: int, seconds: float
) -> dict[str, float]:
    """Time a guard on batches of ``size`` in process, without other callers."""
    batches = [rows[i : i + size] for i in range(0, len(rows) - size + 1, size)]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "guard.yaml"
        config.write_text(text.replace("FOLDER", folder))
        judge: Callable[[Sequence[Completion]], Any] = GuardConfig.from_yaml(config).build().judge
        judge(batches[0])
        done, began, used = 0, time.monotonic(), time.process_time()
        while time.monotonic() < began + seconds:
            judge(batches[done % len(batches)])
            done += 1
        wall, used = time.monotonic() - began, time.process_time() - used
    return {"per second": done * size / wall, "cpu ms": 1000 * used / (done * size)}


def _sampled(count: int) -> list[Completion]:
    import torch

    from grpo_guard.evals.policies.bundled import load_bundled
    from grpo_guard.evals.swarm.generate import sample
    from grpo_guard.evals.tasks.word_problems import WordProblems

    model, tokenizer = load_bundled()
    rng, task = random.Random(0), WordProblems()
    prompts = [task.sample(rng).prompt for _ in range(count // GROUP)]
    drawn = sample(
        model, tokenizer, prompts, GROUP, generator=torch.Generator().manual_seed(0),
        temperature=1.0, top_k=50, max_new_tokens=64,
    )  # fmt: skip
    return [
        Completion(prompts[s.prompt], s.text, prompt_ids=s.prompt_ids, completion_ids=s.ids)
        for s in drawn
    ]
