"""A random, untrained Llama with a character tokenizer: small and confident."""

import string
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHARACTERS = string.ascii_letters + string.digits + string.punctuation + " \n"


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {"<pad>": 0, "</s>": 1} | {c: i for i, c in enumerate(CHARACTERS, 2)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>", padding_side="left"
    )


def tiny_policy(seed: int = 0) -> LlamaForCausalLM:
    """Logits with a wide spread, as in a trained model."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(CHARACTERS) + 2,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight *= 5
    return model


def save_tiny(folder: Path) -> Path:
    tiny_policy().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
