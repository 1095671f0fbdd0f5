"""The cost of reading: the reader's CPU time compared with generating the batch.

    python -m grpo_guard.evals.studies.reader.cost --model FOLDER [-o FILE]

Four nodes sharing one policy answer eight prompts each round: 32 completions through
``model.generate``, the call that TRL makes without vLLM. Two guards then review the same batch,
both with that policy as their reader: one reads only the spans flagged by rules, plus honest text
as a measure (``ReaderVerifier(..., alpha=None)``); the other is the full preset. Only the reader is
timed, not the rules. Rounds that fill the measure have their own figures. Everything runs in one
process with one thread, timed in CPU seconds, so other work barely affects the ratios.
"""

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, Final

from grpo_guard import presets
from grpo_guard.core.completion import Completion
from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.evals.studies.harness import option, say, study
from grpo_guard.evals.tasks.word_problems import WordProblems
from grpo_guard.guard import Guard
from grpo_guard.logprob.reader.foreignness import UnreadError
from grpo_guard.logprob.reader.reader import Opinion, SpanReader
from grpo_guard.logprob.reader.spans import TextSpan
from grpo_guard.logprob.reader.verifier import ReaderVerifier
from grpo_guard.logprob.scorers.load import load_policy

_TASK: Final = WordProblems()
_NAMES: Final = ("node-0", "node-1", "node-2", "node-3")
_PROMPTS: Final = 8
_MOST_FILLING: Final = 40
BUNDLED: Final = "bundled"
WAYS: Final = ("flagged spans", "whole reader")


class TimedReader(SpanReader):
    """A reader that totals its CPU seconds and counts flagged spans and spans of honest text."""

    cpu = 0.0
    flagged = honest = 0

    def read(
        self, spans: Sequence[TextSpan], honest: Sequence[bool]
    ) -> list[Opinion | UnreadError]:
        """Read spans as `SpanReader.read` does, and record the cost."""
        started = time.process_time()
        opinions = super().read(spans, honest)
        self.cpu += time.process_time() - started
        self.honest += sum(honest)
        self.flagged += len(honest) - sum(honest)
        return opinions

    def taken(self) -> dict[str, float]:
        """Return the seconds and counts since the last call."""
        found = {"cpu": self.cpu, "flagged": self.flagged, "honest": self.honest}
        self.cpu, self.flagged, self.honest = 0.0, 0, 0
        return found


@dataclass(frozen=True)
class _Policy:
    """A policy, its tokenizer and its length limit."""

    model: Any
    tokenizer: Any
    max_new_tokens: int

    def answers(self, prompts: Sequence[str]) -> list[tuple[str, list[int]]]:
        """Sample one completion per prompt; return (text, token ids) pairs."""
        import torch

        if self.tokenizer.chat_template:
            prompts = [
                self.tokenizer.apply_chat_template(
                    [{"role": "user", "content": prompt}], tokenize=False,
                    add_generation_prompt=True,
                )
                for prompt in prompts
            ]  # fmt: skip
        asked = self.tokenizer(
            list(prompts), return_tensors="pt", padding=True, padding_side="left",
            add_special_tokens=False, return_token_type_ids=False,
        )  # fmt: skip
        with torch.inference_mode():
            drawn = self.model.generate(
                **asked, do_sample=True, temperature=1.0, top_k=50, top_p=1.0,
                max_new_tokens=self.max_new_tokens, pad_token_id=self.tokenizer.pad_token_id,
            )  # fmt: skip
        own = drawn[:, asked["input_ids"].shape[1] :].tolist()
        texts = self.tokenizer.batch_decode(own, skip_special_tokens=True)
        pad = self.tokenizer.pad_token_id
        return [(t, [i for i in ids if i != pad]) for t, ids in zip(texts, own, strict=True)]


def measure(
    model: str, rounds: int, max_new_tokens: int, seed: int, ways: Sequence[str]
) -> dict[str, Any]:
    """Compute the figures for one policy."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    loaded = load_bundled() if model == BUNDLED else load_policy(model)
    policy, rng = _Policy(*loaded, max_new_tokens), random.Random(seed)
    readers = {way: TimedReader(*loaded) for way in ways}
    guards = {way: _guard(reader, way) for way, reader in readers.items()}
    policy.answers(["Warm up."])
    filling, afterwards = list[dict[str, Any]](), list[dict[str, Any]]()
    while len(afterwards) < rounds:
        say(model, len(afterwards), rounds)
        full = not any(r.wanted(name) for r in readers.values() for name in _NAMES)
        if not full and len(filling) == _MOST_FILLING:
            raise ValueError(f"model: after {_MOST_FILLING} rounds the measure is not full")
        log = afterwards if full else filling
        log.append(_round(policy, [_TASK.sample(rng).prompt for _ in range(_PROMPTS)], guards))
        for way, reader in readers.items():
            log[-1][way] |= reader.taken()
    return {"filling": _figures(filling, ways), "afterwards": _figures(afterwards, ways)}


def _round(policy: _Policy, prompts: Sequence[str], guards: Mapping[str, Guard]) -> dict[str, Any]:
    """Generate a batch and have each guard review it."""
    asked = [prompt for prompt in prompts for _ in _NAMES]
    started = time.process_time()
    answers = policy.answers(asked)
    row: dict[str, Any] = {"generating": time.process_time() - started}
    row["tokens"] = sum(len(ids) for _, ids in answers)
    batch = [
        Completion(prompt, text, node=_NAMES[i % len(_NAMES)], group=str(i // len(_NAMES)))
        for i, (prompt, (text, _)) in enumerate(zip(asked, answers, strict=True))
    ]
    for way, guard in guards.items():
        row[way] = {"rejected": sum(v.rejected for v in guard.review(batch).verdicts)}
    return row


def _guard(reader: SpanReader, name: str) -> Guard:
    """Build the preset with the reader; "flagged spans" reads no more than necessary."""
    guard = presets.different_weights(reader=reader)
    if name == WAYS[0]:
        whole = guard.verifier
        assert isinstance(whole, ReaderVerifier)
        return Guard(
            ReaderVerifier(whole.verifier, reader, alpha=None), policy=guard.policy,
            ledger=guard.ledger, length_scaling=guard.length_scaling,
        )  # fmt: skip
    return guard


def _figures(log: Sequence[dict[str, Any]], names: Iterable[str]) -> dict[str, Any]:
    generating = sum(row["generating"] for row in log)
    completions = len(log) * _PROMPTS * len(_NAMES)
    figures: dict[str, Any] = {
        "rounds": len(log),
        "completions": completions,
        "tokens of a completion": sum(row["tokens"] for row in log) / completions,
        "generating, CPU seconds a round": generating / len(log),
    }
    for name in names:
        figures[name] = {
            "share of generating": sum(row[name]["cpu"] for row in log) / generating,
            "largest share of a round": max(row[name]["cpu"] / row["generating"] for row in log),
            "flagged spans a round": mean(row[name]["flagged"] for row in log),
            "honest sentences a round": mean(row[name]["honest"] for row in log),
            "rejected": sum(row[name]["rejected"] for row in log),
        }
    return figures


if __name__ == "__main__":
    study(
        "reader-cost",
        measure,
        option("--model", default=BUNDLED, metavar="FOLDER", help="policy, also its own reader"),
        option("--rounds", type=int, default=12, help="rounds after the reader's measure is full"),
        option("--max-new-tokens", type=int, default=64, help="longest completion"),
        option("--seed", type=int, default=0, help="seed of problems and samples"),
        option("--ways", nargs="+", choices=WAYS, default=list(WAYS)),
    )
