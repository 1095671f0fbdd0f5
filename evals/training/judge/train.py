"""Train the shipped judge in two stages, and choose its threshold::

    python -m grpo_guard.evals.training.judge.train --out STAGE1
    python -m grpo_guard.evals.training.judge.train --start STAGE1 --seed 1 --steps 800 \\
        --lr 1.5e-3 --carried 0.35
    python -m grpo_guard.evals.training.judge.threshold

The bundled policy, which can calculate, is turned into a judge. Training starts from its weights,
plus two layers that do nothing at first, and uses only generated text; it is seeded and runs on one
CPU core. The judge learns three things at once:

- the verdict, as the token after the prompt, which is its purpose;
- for each token, whether an honest solution can contain it there (predicted from the last layer but
  one, by a head that is discarded): this teaches the judge to check every digit;
- to continue honest solutions (the ordinary language modelling loss): this teaches the judge to
  calculate with larger numbers than the policy's.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.evals.training.judge.data import Drawn, training
from grpo_guard.evals.training.judge.encode import NO, YES, Row, encode, judge_tokenizer
from grpo_guard.evals.training.judge.sets import draw
from grpo_guard.evals.training.policies.recipe import Steps, save
from grpo_guard.judge.rubric import Rubric
from grpo_guard.judge.shipped import FOLDER, RUBRIC

BAD_WEIGHT: Final = 4.0


@dataclass(frozen=True)
class TrainConfig:
    """Settings that the shipped judge was trained with."""

    seed: int = 0
    more_layers: int = 2
    steps: int = 2400
    batch: int = 32
    lr: float = 3e-3
    warmup: int = 60
    window: int = 8192
    longest: int = 384
    policy_problems: int = 2500
    policy_samples: int = 4
    carried: float = 0.0
    start: Path | None = None
    out: Path = FOLDER


def build_model(config: TrainConfig, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Build the bundled policy with added layers that start as the identity, or load a judge."""
    torch.manual_seed(config.seed)
    if config.start is not None:
        judge: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(
            config.start, dtype=torch.float32, local_files_only=True
        )
        return judge
    policy, _ = load_bundled()
    settings = policy.config.to_dict() | {
        "num_hidden_layers": policy.config.num_hidden_layers + config.more_layers,
        "max_position_embeddings": config.window,
        "dtype": "float32",
    }
    settings.pop("layer_types", None)
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(policy.state_dict(), strict=False)
    for layer in model.model.layers[policy.config.num_hidden_layers :]:
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)
    model.resize_token_embeddings(len(tokenizer))
    return model


def batches(
    config: TrainConfig, tokenizer: PreTrainedTokenizerFast, pool: Sequence[Drawn]
) -> Iterator[list[Row]]:
    """Yield batches of similar length endlessly, with a fresh fence secret every few batches."""
    rubric, rng = Rubric.load(RUBRIC), random.Random(f"order-{config.seed}")
    stream = training(config.seed, pool, config.carried)
    while True:
        examples = list(islice(stream, 16 * config.batch))
        rows = encode(tokenizer, examples, rubric, rng.randbytes(16))
        rows = [row for row in rows if len(row.ids) <= config.longest]
        rows.sort(key=lambda row: len(row.ids))
        buckets = [rows[i : i + config.batch] for i in range(0, len(rows), config.batch)]
        rng.shuffle(buckets)
        yield from buckets


class Objective(nn.Module):
    """The three losses of one batch; holds the head that is later discarded."""

    def __init__(self, model: LlamaForCausalLM, yes: int, no: int) -> None:
        super().__init__()
        self.model = model
        self.yes, self.no = yes, no
        hidden = model.config.hidden_size
        self.head = nn.Sequential(nn.RMSNorm(hidden), nn.Linear(hidden, 1))

    def forward(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the losses: verdict per row [B], mean over token labels, mean over next tokens."""
        ids, fits, goes_on, last = _collate(rows, int(self.model.config.pad_token_id))
        out = self.model.model(input_ids=ids, use_cache=False, output_hidden_states=True)
        top = out.last_hidden_state
        wanted = torch.tensor([self.yes if row.good else self.no for row in rows])
        verdict = cross_entropy(
            self.model.lm_head(top[torch.arange(len(rows)), last]), wanted, reduction="none"
        )
        marked = fits >= 0
        scores = self.head(out.hidden_states[-2][marked]).squeeze(-1)
        labels = fits[marked].float()
        # Few tokens are bad, and the bad ones matter most.
        weight = 1.0 + (BAD_WEIGHT - 1.0) * (1.0 - labels)
        dense = binary_cross_entropy_with_logits(scores, labels, weight)
        next_ids = ids[:, 1:][goes_on]
        language = cross_entropy(self.model.lm_head(top[:, :-1][goes_on]), next_ids)
        return verdict, dense, language


def _collate(rows: Sequence[Row], pad: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (ids [B, T], fits [B, T], mask of honest next tokens [B, T-1], last index [B])."""
    longest = max(len(row.ids) for row in rows)
    ids = torch.full((len(rows), longest), pad)
    fits = torch.full((len(rows), longest), -1)
    for number, row in enumerate(rows):
        ids[number, : len(row.ids)] = torch.tensor(row.ids)
        fits[number, : len(row.ids)] = torch.tensor(row.fits)
    # Only next tokens known to be right are worth imitating.
    return ids, fits, fits[:, 1:] == 1, torch.tensor([len(row.ids) - 1 for row in rows])


def train(config: TrainConfig) -> dict[str, Any]:
    """Train, save tokenizer and model (fp16 safetensors) in ``config.out``; return a summary."""
    started = time.monotonic()
    pool = draw(config.seed, config.policy_problems, config.policy_samples)
    print(f"{len(pool)} samples of the policy, {time.monotonic() - started:.0f} s", flush=True)
    tokenizer = judge_tokenizer(config.window)
    yes, no = (int(tokenizer.convert_tokens_to_ids(word)) for word in (YES, NO))
    objective = Objective(build_model(config, tokenizer), yes, no)
    updates = Steps(objective, lr=config.lr, warmup=config.warmup, steps=config.steps)
    stream, means = batches(config, tokenizer, pool), [0.0, 0.0, 0.0]
    by_kind = dict[str, float]()
    for step in range(config.steps):
        rows = next(stream)
        verdicts, *others = objective(rows)
        losses = [verdicts.mean(), *others]
        torch.autograd.backward(losses[0] + losses[1] + 0.5 * losses[2])
        for row, loss in zip(rows, verdicts.tolist(), strict=True):
            by_kind[row.kind] = by_kind.get(row.kind, loss) * 0.95 + loss * 0.05
        updates.step()
        rate = 1.0 if step == 0 else 0.03
        means = [m + (loss.item() - m) * rate for m, loss in zip(means, losses, strict=True)]
        if step % 100 == 0:
            text = " ".join(f"{mean:.3f}" for mean in means)
            seconds, cpu = time.monotonic() - started, time.process_time()
            print(f"step {step:5d} losses {text} {seconds:.0f} s, cpu {cpu:.0f} s", flush=True)
            worst = sorted(by_kind.items(), key=lambda item: -item[1])
            print("   ", ", ".join(f"{k} {v:.2f}" for k, v in worst), flush=True)
    save(objective.model, tokenizer, config.out)
    return {"config": asdict(config), "losses": means, "seconds": time.monotonic() - started}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--threads", type=int, default=1)
    for name in ("steps", "seed", "batch", "policy_problems"):
        parser.add_argument(f"--{name}", type=int, default=getattr(TrainConfig, name))
    parser.add_argument("--start", type=Path, help="folder of a judge to train further")
    parser.add_argument("--lr", type=float, default=TrainConfig.lr)
    parser.add_argument("--carried", type=float, default=TrainConfig.carried)
    args = vars(parser.parse_args())
    torch.set_num_threads(args.pop("threads"))
    print(json.dumps(train(TrainConfig(**args)), default=str))


if __name__ == "__main__":
    main()
