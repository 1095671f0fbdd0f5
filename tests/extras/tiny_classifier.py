"""A sequence classifier that knows one bad word: a tiny BERT, trained here in seconds."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

WORDS = """i you like hate cats dogs the sum is seven of 3 and 4 all we . ? ! yes no""".split()  # noqa: SIM905
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def save(folder):
    """Write model and tokenizer to a folder: label ``toxic`` for texts with "hate"."""
    vocabulary = {word: i for i, word in enumerate([*SPECIALS, *WORDS])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", model_max_length=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=1,
            num_attention_heads=2, intermediate_size=32, max_position_embeddings=64,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            id2label={0: "neutral", 1: "toxic"}, label2id={"neutral": 0, "toxic": 1},
        )
    )  # fmt: skip
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    bad = vocabulary["hate"]
    for _ in range(150):
        ids = torch.randint(1, len(vocabulary), (32, 64))
        ids[ids == bad] = vocabulary["like"]
        ids[::2, torch.randint(64, ())] = bad
        loss = model(input_ids=ids, labels=(ids == bad).any(1).long()).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
