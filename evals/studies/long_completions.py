"""Honest completions of thousands of tokens: what is rejected, and the cost of a token.

    python -m grpo_guard.evals.studies.long_completions --drawn float32 --data train.jsonl

Draws endless texts from SmolLM2, to its window of 8,192 tokens, with one number format, and scores
them with the same and the other. EOS is a token like any other here. Pieces of a text are tested as
well: given the preceding text, a piece is an honest completion of its length. Writes
``docs/results/long-FORMAT.json``; the drawn tokens are kept under ``.measure/``.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.evals.detect.config import Loaded, load
from grpo_guard.evals.studies.corpora import gsm8k_file
from grpo_guard.evals.studies.detection import MODEL
from grpo_guard.evals.studies.harness import CACHE, RESULTS, option, rate, say, study
from grpo_guard.evals.studies.rounding import ROUNDED, rounded_to_bfloat16
from grpo_guard.logprob.batch_evidence import batch_evidence
from grpo_guard.logprob.bounds import LogProbBoundVerifier
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.profile import BFLOAT16, FLOAT32
from grpo_guard.logprob.scorers.forward import with_cache
from grpo_guard.logprob.stats import TokenStats
from grpo_guard.logprob.verifier import Scored

SPEC: Final = SamplingSpec("transformers", 1.0, 0, 1.0, max_new_tokens=8000)
LENGTHS: Final = (100, 1000, 4000, 8000)
TIMED: Final = 8000
"""Tokens that a length is timed on."""
PROMPT: Final = 40
ALPHA: Final = 1e-3
BUDGET: Final = 4 * 2**30  # a text of 8,000 tokens needs 2.9 GB by the estimate of `MemoryPlan`

Text = tuple[tuple[int, ...], tuple[int, ...]]
"""Token ids of prompt and completion."""


def measure(drawn: str, n: int, length: int, data: Path | None) -> dict[str, Any]:
    """Texts of one number format: float32 against itself and the other, rounded against float32.

    Args:
        drawn: The format that draws.
        n: Texts.
        length: Their tokens, at most 8,000.
        data: GSM8K, whose questions the texts begin with.
    """
    plain = load(MODEL, "float32")
    models = {"float32": plain.model, ROUNDED: rounded_to_bfloat16(plain.model)}
    texts = _texts(Loaded(models[drawn], plain.tokenizer), n, length, data, drawn)
    found: dict[str, Any] = {"model": MODEL, "sampling": asdict(SPEC), "alpha": ALPHA}
    for scored in ("float32", ROUNDED) if drawn == "float32" else ("float32",):
        verifier = LogProbBoundVerifier(
            models[scored], plain.tokenizer, sampling=SPEC, alpha=ALPHA,
            profile=FLOAT32 if drawn == scored else BFLOAT16, memory_budget=BUDGET, key=b"study",
        )  # fmt: skip
        found[f"drawn {drawn}, scored {scored}"] = _judged(verifier, texts)
    return found


def _judged(verifier: LogProbBoundVerifier, texts: Sequence[Text]) -> dict[str, Any]:
    """Measure rejected pieces by length, all texts as one node's batch, and the cost of scoring."""
    whole, cost = [], {}
    longest = max(len(ids) for _, ids in texts)
    for length in (*(some for some in LENGTHS[1:] if some < longest), longest):
        # The same number of tokens each time, so that seconds compare; the last are all texts.
        rows = [Encoded(prompt, ids[:length], False) for prompt, ids in texts]
        rows = rows if length == longest else rows[: max(1, TIMED // length)]
        started = time.monotonic()
        whole = verifier.score(rows, verifier.profile)
        seconds = time.monotonic() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        tokens = sum(len(row.completion_ids) for row in rows)
        cost[str(length)] = {"ms a token": round(1000 * seconds / tokens, 3), "peak RSS MB": peak}
        say(f"score {length}", len(rows), len(rows))
    scored = [
        (Encoded(prompt, ids, False), stats)
        for (prompt, ids), stats in zip(texts, whole, strict=True)
    ]
    found: dict[str, Any] = {"cost": cost}
    for length in LENGTHS:
        pieces = [piece for one in scored for piece in _pieces(*one, length)]
        if not pieces:
            continue
        said = [verifier.weigh(*piece, verifier.profile) for piece in pieces]
        found[f"{length} tokens"] = {
            "rejected": rate(sum(e.p_value < ALPHA for e in said), len(said)),
            "below 5 %": rate(sum(e.p_value < 0.05 for e in said), len(said)),
            "least p": min(e.p_value for e in said),
        }
        firsts = [next(_pieces(*one, length)) for one in scored]
        answers = [
            verifier.nodes.answer(
                Scored(e, s, verifier.profile), verifier.weigh(e, s, verifier.profile)
            )
            for e, s in firsts
        ]
        started = time.monotonic()
        log_e = batch_evidence(answers).log_e
        seconds = time.monotonic() - started
        found[f"{length} tokens"] |= {
            f"log e-value of a node's {len(answers)}": round(log_e, 2),
            "together, us a token": round(1e6 * seconds / length / len(answers), 2),
        }
    return found


def _pieces(
    encoded: Encoded, stats: TokenStats, length: int
) -> Iterator[tuple[Encoded, TokenStats]]:
    """Yield consecutive stretches of a text, each with the preceding text as its prompt."""
    ids = encoded.completion_ids
    for start in range(0, len(ids) - length + 1, length):
        piece = slice(start, start + length)
        cut: dict[str, Any] = {}
        for field in fields(stats):
            column = getattr(stats, field.name)
            cut[field.name] = None if column is None else column[piece]
        before = (*encoded.prompt_ids, *ids[:start])
        yield Encoded(before, ids[piece], False), replace(stats, **cut)


def _texts(loaded: Loaded, n: int, length: int, data: Path | None, name: str) -> list[Text]:
    """Texts of ``length`` tokens, drawn once."""
    cache = CACHE / f"long-{name}-{n}-{length}.json"
    if cache.is_file():
        return [(tuple(prompt), tuple(ids)) for prompt, ids in json.loads(cache.read_text())]
    if data is None:
        raise ValueError("--data: expected GSM8K as JSONL")
    prompts: list[list[int]] = []
    for line in data.read_text().splitlines():
        ids = loaded.tokenizer.encode(json.loads(line)["question"])
        if len(ids) >= PROMPT:
            prompts.append(ids[:PROMPT])
        if len(prompts) == n:
            break
    drawn = _draw(loaded.model, torch.tensor(prompts), length, name)
    texts = list(zip(prompts, drawn.tolist(), strict=True))
    cache.parent.mkdir(exist_ok=True)
    cache.write_text(json.dumps(texts))
    return [(tuple(prompt), tuple(ids)) for prompt, ids in texts]


@torch.inference_mode()
def _draw(model: Any, prompts: Tensor, length: int, name: str) -> Tensor:
    """Tokens that the model goes on with, at temperature 1; [N, P] -> [N, length]."""
    generator = torch.Generator().manual_seed(0)
    room = prompts.shape[1] + length
    cache = Cache(layers=[_Preallocated(room) for _ in range(model.config.num_hidden_layers)])
    ids, drawn = prompts, []
    for step in range(length):
        out = model(input_ids=ids, logits_to_keep=1, **with_cache(model, cache))
        logits = out.logits[:, -1]
        ids = torch.multinomial(logits.double().softmax(-1), 1, generator=generator)
        drawn.append(ids)
        if step % 500 == 0:
            say(f"draw with {name}", step, length)
    return torch.cat(drawn, dim=1)


class _Preallocated(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one layer in place: growing by copies costs more than attention."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room, self._used = room, 0

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        if not self._used:
            shape = (*key_states.shape[:2], self._room, key_states.shape[-1])
            self._all_keys, self._all_values = (
                key_states.new_empty(shape),
                key_states.new_empty(shape),
            )
            self.is_initialized = True
        end = self._used + key_states.shape[-2]
        self._all_keys[..., self._used : end, :] = key_states
        self._all_values[..., self._used : end, :] = value_states
        self._used = end
        self.keys, self.values = self._all_keys[..., :end, :], self._all_values[..., :end, :]
        return self.keys, self.values


if __name__ == "__main__":
    study(
        "long_completions",
        measure,
        option(
            "--drawn", choices=("float32", ROUNDED), default="float32", help="format that draws"
        ),
        option("-n", type=int, default=4, help="texts"),
        option("--length", type=int, default=8000, help="tokens of a text"),
        option("--data", type=Path, default=gsm8k_file(), metavar="FILE", help="GSM8K as JSONL"),
        out=RESULTS / "long.json",
    )
