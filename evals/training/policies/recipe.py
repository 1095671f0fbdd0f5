"""The training recipe for small models: Muon and AdamW, a warm-up, then cosine decay."""

import json
import math
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

PAD, EOS = "<|pad|>", "<|end|>"


def fast(tokenizer: Tokenizer, window: int) -> PreTrainedTokenizerFast:
    """Wrap a tokenizer for transformers, with padding on the left and `EOS` as the end token."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=window,
    )


class Steps:
    """Updates a model's weights, step by step.

    Muon updates the matrices (needing about half as many steps as AdamW here), and AdamW updates
    the embeddings, heads and everything else.

    Args:
        lr: AdamW's peak learning rate; Muon's is five times that.
        warmup: Number of steps until the peak rate is reached.
        steps: Total number of steps; after the last one the rate is 0.
    """

    def __init__(self, model: nn.Module, *, lr: float, warmup: int, steps: int) -> None:
        matrices, rest = list[nn.Parameter](), list[nn.Parameter]()
        for name, parameter in model.named_parameters():
            inner = parameter.ndim == 2 and "embed" not in name and not name.startswith("head")
            (matrices if inner else rest).append(parameter)
        self.model = model
        self._optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=5 * lr, weight_decay=0.0),
            torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.98), weight_decay=0.0),
        ]

        def scale(step: int) -> float:
            cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
            return min(1.0, (step + 1) / warmup) * cosine

        self._scales = [torch.optim.lr_scheduler.LambdaLR(o, scale) for o in self._optimizers]

    def step(self) -> None:
        """Clip the gradients, update the weights and clear the gradients."""
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer, scale in zip(self._optimizers, self._scales, strict=True):
            optimizer.step()
            scale.step()
            optimizer.zero_grad(set_to_none=True)


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    """Write tokenizer and model (fp16 safetensors) to a folder; the model is then fp16."""
    out.mkdir(parents=True, exist_ok=True)
    # Half precision halves the file. transformers 5 would load it as fp16, and Adam, whose epsilon
    # is 0 in fp16, ruins a policy within three steps; so the config asks for float32.
    model.to(torch.float16).save_pretrained(out)
    _set(out / "config.json", "dtype", "float32")
    tokenizer.save_pretrained(out)
    # transformers 5 writes a class name unknown to version 4; both know the older name.
    _set(out / "tokenizer_config.json", "tokenizer_class", "PreTrainedTokenizerFast")


def _set(file: Path, name: str, value: str) -> None:
    values = json.loads(file.read_text())
    values[name] = value
    file.write_text(json.dumps(values, indent=2) + "\n")
