"""Completions of a real model for `content_honest`: honest groups, and an attacker's pools.

    python -m grpo_guard.evals.studies.content_samples --data train.jsonl --model FOLDER -o FILE

Sampling takes minutes on a CPU and judging takes seconds, so that the samples have a file of their
own. The questions are those of GSM8K whose solution needs at most ``--calculations`` steps: a model
of 135M parameters answers few others, and an attack on rewards needs right answers. The pools are
drawn for the questions that the groups answer best.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, TextIO

from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.evals.tasks import gsm8k

SEED = 5


def asked_questions(data: Path, calculations: int, count: int) -> list[gsm8k.Question]:
    """The questions, in an order that `SEED` fixes."""
    easy = [q for q in gsm8k.load(data) if q.solution.count("<<") <= calculations]
    return gsm8k.subset(easy, count, SEED)


def draw(
    out: TextIO, policy: Any, questions: list[gsm8k.Question], count: int, limit: int, kind: str
) -> dict[int, int]:
    """Write ``count`` samples of each question; returns right answers by question."""
    import torch

    from grpo_guard.evals.swarm.generate import sample

    model, tokenizer = policy
    right = {}
    for question in questions:
        chat = [dict(m) for m in gsm8k.messages(question.question)]
        prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        # Each question has a generator of its own: a larger count of questions changes none.
        generator = torch.Generator().manual_seed(question.index * 2 + (kind == "pool"))
        drawn = sample(model, tokenizer, [prompt], count, generator=generator, max_new_tokens=limit)
        right[question.index] = sum(gsm8k.reward(s.text, question.answer) > 0 for s in drawn)
        for s in drawn:
            row = {"question": question.question, "answer": question.answer, "kind": kind}
            out.write(json.dumps(row | {"text": s.text, "ids": s.ids}) + "\n")
        out.flush()
        print(f"{kind} {question.index}: {right[question.index]} of {count} right", flush=True)
    return right


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Sample a real model for content_honest.")
    parser.add_argument("--data", type=Path, required=True, help="GSM8K's train.jsonl")
    parser.add_argument("--model", type=Path, required=True, help="folder of SmolLM2")
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("--group", type=int, default=8, help="honest completions per question")
    parser.add_argument("--pools", type=int, default=2, help="questions that get a pool")
    parser.add_argument("--pool", type=int, default=80, help="completions per pool")
    parser.add_argument("--limit", type=int, default=256, help="new tokens per completion")
    parser.add_argument("--calculations", type=int, default=2)
    parser.add_argument("-o", type=Path, required=True)
    args = parser.parse_args()
    questions = asked_questions(args.data, args.calculations, args.questions)
    policy = load_bundled(folder=args.model)
    with args.o.open("w", encoding="utf-8") as out:
        right = draw(out, policy, questions, args.group, args.limit, "group")
        best = sorted(questions, key=lambda q: -right[q.index])[: args.pools]
        draw(out, policy, best, args.pool, args.limit, "pool")


if __name__ == "__main__":
    main()
