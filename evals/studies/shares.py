"""The cost of a preset's ``share``, and what an attacker earns before getting caught.

    python -m grpo_guard.evals.studies.shares [--model FOLDER] [-o FILE]

Nodes draw honest completions under a public coin, so that both presets can judge the same
completions. CPU time is for reviewing settled nodes; odds are exact for the measured power.
"""

import os
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from grpo_guard import presets
from grpo_guard.core.completion import Completion
from grpo_guard.core.ensemble import inner_verifiers
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.evals.attacks.text import PHRASE, inserted
from grpo_guard.evals.policies import named
from grpo_guard.evals.policies.bundled import WORD_PROBLEMS
from grpo_guard.evals.studies.harness import option, rate, say, study
from grpo_guard.evals.tasks.word_problems import WordProblems
from grpo_guard.guard import Guard
from grpo_guard.guard.spot_checks import SpotCheck
from grpo_guard.guard.spot_odds import odds
from grpo_guard.logprob.bounds import LogProbBoundVerifier
from grpo_guard.logprob.coin import PublicCoin
from grpo_guard.logprob.replay.generate import generate_under_coin

SHARES: Final = (0.05, 0.1, 0.25, 0.5, 1.0)
SENT: Final = 64
"""Number of completions that a node sends per round."""
POISONED: Final = (1, 4, 16)
COIN: Final = PublicCoin("shares")
SPEC: Final = SamplingSpec("transformers", 1.0, 50, 1.0, max_new_tokens=64)


def measure(model: Path, nodes: int, repeats: int) -> dict[str, Any]:
    """Compute all figures."""
    policy, tokenizer = named.load(str(model), dtype="float32", device="cpu")
    rng, task = random.Random("shares"), WordProblems()
    prompts = [task.sample(rng).prompt for _ in range(SENT)]
    names = [f"node-{number}" for number in range(nodes)]
    rows = [c for name in names for c in _drawn(policy, tokenizer, prompts, name)]
    cost: dict[str, Any] = {}
    for preset in ("same_weights", "shared_seed"):
        cost[preset] = {}
        for share in SHARES:
            made = (_made(preset, share, policy, tokenizer, names) for _ in range(repeats))
            found = [_reviewed(guard, rows) for guard in made]
            cost[preset][str(share)] = min(found, key=lambda one: one["ms_per_completion"])
            say(f"{preset}, share {share}", len(cost[preset]), len(SHARES))
    power = _power(policy, tokenizer, rows[:SENT])
    hit = power["hits"] / power["total"]
    chances = [asdict(odds(SENT, m, share, hit)) for share in SHARES for m in POISONED]
    tokens = sum(len(c.completion_ids or ()) for c in rows)
    sizes = {"policy": model.name, "completions": len(rows), "tokens": tokens, "sent": SENT}
    return {"sizes": sizes, "cost": cost, "power": power, "odds": chances}


def _drawn(policy: Any, tokenizer: Any, prompts: Sequence[str], node: str) -> list[Completion]:
    """Draw one completion per prompt, as an honest node does for its slot 0."""
    prompt_ids = [tuple(tokenizer.encode(prompt)) for prompt in prompts]
    seeds = [COIN.seed(round=0, node=node, slot=0, prompt=prompt) for prompt in prompts]
    ids = generate_under_coin(policy, prompt_ids, seeds, SPEC, eos_ids=[tokenizer.eos_token_id])
    say("drawn", len(ids), len(prompts))
    return [
        Completion(
            prompt, tokenizer.decode(own, skip_special_tokens=True), prompt_ids=asked,
            completion_ids=own, node=node, round=0, slot=0,
        )
        for prompt, asked, own in zip(prompts, prompt_ids, ids, strict=True)
    ]  # fmt: skip


def _made(preset: str, share: float, policy: Any, tokenizer: Any, names: Sequence[str]) -> Guard:
    """Build the preset for a swarm whose nodes are all settled, no longer newcomers."""
    if preset == "same_weights":
        made = presets.same_weights(
            policy, tokenizer, SPEC, share=share, profile="float32", key=b"shares"
        )
    else:
        made = presets.shared_seed(
            policy, tokenizer, SPEC, COIN, share=share, profile="float32", slots=1, nodes=names
        )
    for part in inner_verifiers(made.verifier):
        if isinstance(part, SpotCheck):
            settled = part.settled_after
            part.memory.add(dict.fromkeys(names, settled), frozenset(), settled)
    return made


def _reviewed(guard: Guard, rows: Sequence[Completion]) -> dict[str, Any]:
    started = time.process_time()
    verdicts = guard.review(rows).verdicts
    seconds = time.process_time() - started
    # Rejections for false sums do not count: they occur at any share, no matter who wrote the text.
    ours = sum(bool(set(v.deciding) - {"false_sums"}) for v in verdicts if v.rejected)
    return {
        "ms_per_completion": round(1000 * seconds / len(rows), 3),
        "honest_rejected_by_scores_or_form": rate(ours, len(rows)),
    }


def _power(policy: Any, tokenizer: Any, rows: Sequence[Completion]) -> dict[str, Any]:
    """Return the share of completions with a phrase (TEXT) that the log-prob bound rejects."""
    bound = LogProbBoundVerifier(policy, tokenizer, sampling=SPEC, key=b"shares")
    poison = []
    for row in rows:
        text = inserted(row.text, PHRASE).text
        ids = (*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id)
        poison.append(replace(row, text=text, completion_ids=ids))
    # A completion made too long by the phrase would be given away by its length.
    fit = [p for p in poison if len(p.completion_ids or ()) <= (SPEC.max_new_tokens or 0)]
    verdicts = [bound.verify([one])[0] for one in fit]
    return rate(sum(v.rejected for v in verdicts), len(verdicts))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    study(
        "shares",
        measure,
        option("--model", type=Path, default=WORD_PROBLEMS, help="folder of the policy"),
        option("--nodes", type=int, default=4, help="honest nodes with 64 completions each"),
        option("--repeats", type=int, default=4, help="reviews, of which the fastest counts"),
    )
