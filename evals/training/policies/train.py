"""Train a policy that ships with the package.

``python -m grpo_guard.evals.training.policies.train [--corpus plain|wordy|programs]``

Trains a Llama with about a million parameters and a byte-level BPE tokenizer, both on generated
text (`corpus`, `wordy_corpus` or `program_corpus` in this folder). Training is seeded, takes a few
minutes on two CPU cores and needs no downloads.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from grpo_guard.evals.policies.bundled import BUNDLED, WORD_PROBLEMS
from grpo_guard.evals.tasks.programs import CODE_CLOSE, CODE_OPEN
from grpo_guard.evals.training.policies import program_corpus, wordy_corpus
from grpo_guard.evals.training.policies.corpus import sample
from grpo_guard.evals.training.policies.recipe import EOS, PAD, Steps, fast, save

TAGS: Final = ("<think>", "</think>", "<answer>", "</answer>")
# Each digit is separate, with or without a space before it, so that a number's value can be read
# from its tokens; letters and punctuation are split as in GPT-2.
_PIECES: Final = r" ?[0-9]| ?\p{L}+| ?[^\s\p{L}0-9]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class TrainConfig:
    """Settings that a bundled policy was trained with."""

    seed: int = 0
    vocab_size: int = 1024
    hidden: int = 128
    layers: int = 4
    steps: int = 1400
    batch: int = 64
    lr: float = 4e-3
    warmup: int = 100
    window: int = 256
    out: Path = WORD_PROBLEMS
    sample: Callable[[random.Random], tuple[str, str]] = sample
    """Draws one (prompt, completion) pair."""
    tags: tuple[str, ...] = TAGS
    """Texts that become a single token each."""


def build_tokenizer(config: TrainConfig) -> PreTrainedTokenizerFast:
    """Train the tokenizer. Tags are ordinary tokens, not special ones, so they survive decoding."""
    rng = random.Random(f"tokenizer-{config.seed}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size - len(config.tags),
        special_tokens=[PAD, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Trained without the tags, which become separate tokens below.
    texts = ("".join(config.sample(rng)) for _ in range(20_000))
    for_bpe = (_without(config.tags, text) for text in texts)
    tokenizer.train_from_iterator(for_bpe, trainer)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in config.tags])
    return fast(tokenizer, config.window)


def _without(tags: tuple[str, ...], text: str) -> str:
    for tag in tags:
        text = text.replace(tag, "\n")
    return text


def build_model(config: TrainConfig, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return an untrained model that fits ``tokenizer``."""
    torch.manual_seed(config.seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden,
            intermediate_size=3 * config.hidden,
            num_hidden_layers=config.layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=config.window,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def batches(
    config: TrainConfig, tokenizer: PreTrainedTokenizerFast
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (input ids, labels), both [batch, longest], in buckets of similar length."""
    rng = random.Random(f"sft-{config.seed}")
    while True:
        pairs = [config.sample(rng) for _ in range(16 * config.batch)]
        heads = tokenizer([p for p, _ in pairs], add_special_tokens=False)["input_ids"]
        tails = tokenizer([c for _, c in pairs], add_special_tokens=False)["input_ids"]
        rows = [(h, [*t, tokenizer.eos_token_id]) for h, t in zip(heads, tails, strict=True)]
        rows.sort(key=lambda row: len(row[0]) + len(row[1]))
        buckets = [rows[i : i + config.batch] for i in range(0, len(rows), config.batch)]
        rng.shuffle(buckets)
        yield from (_collate(bucket, tokenizer.pad_token_id) for bucket in buckets)


def _collate(rows: list[tuple[list[int], list[int]]], pad: int) -> tuple[Tensor, Tensor]:
    longest = max(len(head) + len(tail) for head, tail in rows)
    ids = torch.full((len(rows), longest), pad)
    labels = torch.full((len(rows), longest), -100)
    for row, (head, tail) in enumerate(rows):
        end = len(head) + len(tail)
        ids[row, :end] = torch.tensor(head + tail)
        labels[row, len(head) : end] = torch.tensor(tail)
    return ids, labels


def train(config: TrainConfig) -> dict[str, Any]:
    """Train, save tokenizer and model (fp16 safetensors) in ``config.out``; return a summary."""
    tokenizer = build_tokenizer(config)
    model = build_model(config, tokenizer)
    updates = Steps(model, lr=config.lr, warmup=config.warmup, steps=config.steps)
    started, loss_mean = time.monotonic(), 0.0
    stream = batches(config, tokenizer)
    for step in range(config.steps):
        ids, labels = next(stream)
        hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        wanted = labels[:, 1:] != -100
        loss = cross_entropy(model.lm_head(hidden[wanted]), labels[:, 1:][wanted])
        torch.autograd.backward(loss)
        updates.step()
        loss_mean += (loss.item() - loss_mean) * (1.0 if step == 0 else 0.02)
        if step % 100 == 0:
            print(
                f"step {step:5d} loss {loss_mean:.3f} {time.monotonic() - started:.0f} s",
                flush=True,
            )
    save(model, tokenizer, config.out)
    return {"steps": config.steps, "loss": loss_mean, "seconds": time.monotonic() - started}


CORPORA: Final = {
    "plain": TrainConfig(),
    "wordy": TrainConfig(out=BUNDLED["word_problems_wordy"], sample=wordy_corpus.sample),
    # The loss hardly falls after 900 steps: this corpus is diverse on purpose.
    "programs": TrainConfig(
        out=BUNDLED["python_maths"],
        sample=program_corpus.sample,
        tags=(CODE_OPEN, CODE_CLOSE),
        steps=900,
    ),
}
"""Training settings of each corpus's policy."""


def main() -> None:
    """Run the command line: a corpus, and overrides for some fields of its :class:`TrainConfig`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", choices=tuple(CORPORA), default="plain")
    parser.add_argument("--out", type=Path, help="default: the folder of that bundled policy")
    for name in ("steps", "seed", "hidden", "layers"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--threads", type=int, default=1)
    args = vars(parser.parse_args())
    torch.set_num_threads(args.pop("threads"))
    config = CORPORA[args.pop("corpus")]
    print(train(replace(config, **{k: v for k, v in args.items() if v is not None})))


if __name__ == "__main__":
    main()
