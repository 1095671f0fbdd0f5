"""Seed replay on your own model: how much honest work it rejects, and what it catches.

    python docs/examples/seed_replay.py --model MODEL --prompts FILE --out DIR

Draws one honest completion for each prompt under a public coin, in bfloat16 and in float32, and
verifies it in the other format. Then forges: flips one digit in each completion that has an
equation, and sends the longest of eight samples of the attacker's own. Writes DIR/results.json.

FILE has one JSON object a line, with "prompt" (text, or chat messages) or "question". On a CPU,
bfloat16 is float32 with weights and every module's output rounded, because native products are
slow there; the results say which.
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from grpo_guard import Completion, SamplingSpec, SeedReplayVerifier
from grpo_guard.evals.detect.sample import encode_prompt
from grpo_guard.evals.stats import Rate
from grpo_guard.evals.studies.replay.forgeries import flipped_digit
from grpo_guard.evals.studies.rounding import ROUNDED, rounded_to_bfloat16
from grpo_guard.logprob.coin import PublicCoin
from grpo_guard.logprob.replay.generate import generate_under_coin
from grpo_guard.logprob.scorers.load import load_policy

COIN = PublicCoin("seed-replay-example")  # everybody in the run knows its name
NODE, ROUND = "node-0", 0


def main() -> None:
    args = arguments()
    spec = SamplingSpec(
        "transformers", args.temperature, args.top_k, args.top_p, max_new_tokens=args.max_new_tokens
    )
    model, tokenizer = load_policy(args.model, dtype="float32", device=args.device)
    models = {"float32": model, **in_bfloat16(model)}
    prompts = list(read_prompts(args.prompts, tokenizer))[: args.limit]

    counts: dict[str, list[bool]] = {"honest": [], "math_flip": [], "best_of_n": []}
    for drawn_in, verified_in in (tuple(models), tuple(reversed(models))):
        honest = draw(models[drawn_in], tokenizer, prompts, spec, args.batch_size)
        flipped = [f for c in honest if (f := with_flipped_digit(c, tokenizer))]
        cases = {"honest": honest, "math_flip": flipped}
        if drawn_in == "float32":
            cases["best_of_n"] = longest_of(
                args.best_of, models[drawn_in], tokenizer, prompts, spec, args.batch_size
            )
        for name, completions in cases.items():
            # A verifier for each case, because all of them fill the same slots.
            verifier = SeedReplayVerifier(
                models[verified_in], tokenizer, sampling=spec, coin=COIN, slots=len(prompts)
            )
            verifier.begin_round(ROUND)
            verdicts = verifier.verify(completions)
            counts[name] += [verdict.rejected for verdict in verdicts]
            print(
                f"{name}, drawn in {drawn_in}, verified in {verified_in}: "
                f"{sum(v.rejected for v in verdicts)} of {len(verdicts)} rejected",
                flush=True,
            )
    write(args, list(models), counts)


def draw(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Any],
    spec: SamplingSpec,
    batch_size: int,
    coin: PublicCoin = COIN,
) -> list[Completion]:
    """What an honest node does: look up its slots' seeds, and sample with them."""
    completions = []
    for start in range(0, len(prompts), batch_size):
        batch = list(enumerate(prompts))[start : start + batch_size]
        prompt_ids = [encode_prompt(tokenizer, prompt) for _, prompt in batch]
        seeds = [
            coin.seed(round=ROUND, node=NODE, slot=slot, prompt=prompt) for slot, prompt in batch
        ]
        rows = generate_under_coin(model, prompt_ids, seeds, spec, eos_ids=[tokenizer.eos_token_id])
        completions += [
            Completion(
                prompt,
                tokenizer.decode(ids, skip_special_tokens=True),
                prompt_ids=own_ids,
                completion_ids=ids,
                node=NODE,
                round=ROUND,
                slot=slot,
            )
            for (slot, prompt), own_ids, ids in zip(batch, prompt_ids, rows, strict=True)
        ]
        print(f"drawn: {start + len(batch)}/{len(prompts)}", flush=True)
    return completions


def with_flipped_digit(completion: Completion, tokenizer: Any) -> Completion | None:
    """The attack MATH in its smallest form: one digit of one equation; all else is kept."""
    rng = random.Random(f"flip:{completion.slot}")
    forged = flipped_digit(completion.completion_ids or (), tokenizer, rng)
    return None if forged is None else with_ids(completion, forged[0], tokenizer)


def longest_of(
    n: int,
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Any],
    spec: SamplingSpec,
    batch_size: int,
) -> list[Completion]:
    """The attack DoS: honest samples, of which the longest is sent. Its seeds are its own."""
    samples = [
        draw(model, tokenizer, prompts, spec, batch_size, PublicCoin(f"the attacker's, {i}"))
        for i in range(n)
    ]
    return [
        max(row, key=lambda c: len(c.completion_ids or ())) for row in zip(*samples, strict=True)
    ]


def with_ids(completion: Completion, ids: Sequence[int], tokenizer: Any) -> Completion:
    return Completion(
        completion.prompt,
        tokenizer.decode(ids, skip_special_tokens=True),
        prompt_ids=completion.prompt_ids,
        completion_ids=tuple(ids),
        node=completion.node,
        round=completion.round,
        slot=completion.slot,
    )


def in_bfloat16(model: Any) -> dict[str, Any]:
    """The same weights in bfloat16, native if that is fast."""
    if next(model.parameters()).device.type == "cuda":
        import copy

        return {"bfloat16": copy.deepcopy(model).to(torch.bfloat16)}
    return {ROUNDED: rounded_to_bfloat16(model)}


def read_prompts(path: Path, tokenizer: Any) -> Iterator[Any]:
    """Prompts as the trainer would ask them: questions become chats if there is a template."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        row = json.loads(line)
        if not isinstance(row, dict) or not (row.get("prompt") or row.get("question")):
            raise SystemExit(f'{path}:{number}: expected an object with "prompt" or "question"')
        prompt = row.get("prompt") or row["question"]
        if isinstance(prompt, str) and getattr(tokenizer, "chat_template", None):
            prompt = [{"role": "user", "content": prompt}]
        yield prompt


def write(args: argparse.Namespace, formats: list[str], counts: dict[str, list[bool]]) -> None:
    results: dict[str, Any] = {}
    for name, rejected in counts.items():
        results[f"{name}_rejected"] = sum(rejected)
        results[f"{name}_total"] = len(rejected)
        results[f"{name}_interval"] = Rate(sum(rejected), len(rejected)).interval
    results["config"] = {
        "formats": formats,
        **{name: str(v) if isinstance(v, Path) else v for name, v in vars(args).items()},
    }
    args.out.mkdir(parents=True, exist_ok=True)
    target = args.out / "results.json"
    target.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    for name in counts:
        low, high = results[f"{name}_interval"]
        print(
            f"{name}: {results[f'{name}_rejected']} of {results[f'{name}_total']} rejected "
            f"({low:.1%} to {high:.1%})"
        )
    print(f"wrote {target}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Seed replay on your own model.")
    parser.add_argument("--model", required=True, help="a folder, or a model id")
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL")
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json")
    parser.add_argument("--limit", type=int, default=None, help="use only the first prompts")
    parser.add_argument("--best-of", type=int, default=8, help="samples of the selecting attacker")
    parser.add_argument("--max-new-tokens", type=int, default=160)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-k", type=int, default=50)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--device", default=None, help="default: the GPU if there is one")
    return parser.parse_args()


if __name__ == "__main__":
    main()
