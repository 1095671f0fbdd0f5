"""The policies that the tests serve: SmolLM2 if available, and a tiny random one."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

SMOLLM2 = Path(__file__).parents[2] / "models" / "SmolLM2-135M-Instruct"
PROMPTS = (
    "Question: Tom has 3 apples and buys 14 more. How many has he?\nAnswer:",
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time there was a",
)


def policy_folder(tmp: Path) -> Path:
    """SmolLM2's folder, or the folder of a new tiny model."""
    return SMOLLM2 if (SMOLLM2 / "model.safetensors").is_file() else tiny_policy(tmp)


def tiny_policy(folder: Path) -> Path:
    """A random two-layer Qwen2 and a byte-level tokenizer of the same size."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=["<|endoftext|>", "<|pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    core.train_from_iterator(list(PROMPTS) * 50, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|endoftext|>", pad_token="<|pad|>"
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
        initializer_range=0.2,  # the usual 0.02 gives nearly flat distributions
    )
    Qwen2ForCausalLM(config).to(torch.float32).save_pretrained(folder)
    return folder
