"""The smallest real GRPO run: a random two-layer Qwen2 and a tokenizer built here, no downloads."""

import os
import random

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from grpo_guard.evals.attacks.text import TextAttack
from grpo_guard.evals.swarm.generate import sample

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer():
    """Four special tokens, printable ASCII and the newline; one character is one token."""
    specials = ["<|pad|>", "<|im_start|>", "<|im_end|>", "<unk>"]
    characters = [chr(c) for c in range(32, 127)] + ["\n"]
    vocabulary = {token: i for i, token in enumerate(specials + characters)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    tok = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        unk_token="<unk>",
        additional_special_tokens=["<|im_start|>"],
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    tok.chat_template = CHAT_TEMPLATE
    return tok


def model(tok):
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tok),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        pad_token_id=tok.pad_token_id,
        eos_token_id=tok.eos_token_id,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config)


def dataset(conversational=False):
    rows = []
    for a in range(4):
        for b in range(4):
            question = f"{a}+{b}="
            prompt = [{"role": "user", "content": question}] if conversational else question
            rows.append({"prompt": prompt, "answer": str(a + b), "task": "sums"})
    return Dataset.from_list(rows)


def peers(*texts):
    """A rollout function with the rows of four peers, the same in each group."""

    def rollout(prompts, trainer):
        tok = trainer.processing_class
        sent = [texts[i % len(texts)] for i in range(len(prompts))]
        return {
            "prompt_ids": [tok(text=p)["input_ids"] for p in prompts],
            "completion_ids": [tok(text=t)["input_ids"] + [tok.eos_token_id] for t in sent],
            "logprobs": None,
            "peer": [f"peer{i % len(texts)}" for i in range(len(prompts))],
        }

    return rollout


def one_bad_peer(problems):
    """A rollout function: three honest peers sample from the live policy, and the fourth sends a
    poisoned solution."""
    by_prompt = {problem.prompt: problem for problem in problems}

    def rollout(prompts, trainer):
        model, tok = trainer.model, trainer.processing_class
        generator = torch.Generator().manual_seed(trainer.state.global_step)
        training = model.training
        sampled = sample(model.eval(), tok, prompts, 1, generator=generator, max_new_tokens=64)
        model.train(training)
        ids = [list(s.ids) for s in sampled]
        for i in range(3, len(prompts), 4):
            poison = TextAttack().poison(by_prompt[prompts[i]], random.Random(i)).text
            ids[i] = [*tok.encode(poison, add_special_tokens=False), tok.eos_token_id]
        return {
            "prompt_ids": [tok.encode(p) for p in prompts],
            "completion_ids": ids,
            "logprobs": None,
            "peer": [f"peer{i % 4}" for i in range(len(prompts))],
        }

    return rollout


def advantages(rewards):
    """GRPO's advantages over one group: None leaves the baseline and gets 0."""
    r = np.array([np.nan if x is None else x for x in rewards], dtype=np.float64)
    return np.nan_to_num((r - np.nanmean(r)) / (np.nanstd(r, ddof=1) + 1e-4), nan=0.0)


class Captures:
    """Records the advantages and the output of each generation batch, in the completions' order."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.captured, self.outputs = [], []

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.captured.append(output["advantages"].tolist())
        self.outputs.append(output)
        return output


class CapturingTrainer(Captures, GRPOTrainer):
    pass


class CapturingRLOO(Captures, RLOOTrainer):
    pass


def trainer(
    folder,
    reward_funcs,
    *,
    conversational=False,
    rollout=None,
    kind=CapturingTrainer,
    extra=None,
    reference=False,
    configuration=None,
    **overrides,
):
    """A GRPOTrainer with two steps on CPU in float32 and four completions per prompt.

    ``kind`` is another trainer class, ``configuration`` the class of its arguments, ``extra`` the
    arguments of its mixins. ``reference``: the policy differs from the weights on disk, where TRL
    looks for the reference of ``beta > 0``.
    """
    settings = {
        "output_dir": str(folder),
        "max_steps": 2,
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": 8,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "learning_rate": 1e-3,
        "seed": 0,
    }
    tok = tokenizer()
    configuration = configuration or (RLOOConfig if issubclass(kind, RLOOTrainer) else GRPOConfig)
    options = dict(extra or {})
    if rollout is not None:
        options["rollout_func"] = rollout
    policy = model(tok)
    if reference:
        policy.save_pretrained(folder)
        policy.config._name_or_path = str(folder)
        with torch.no_grad():
            policy.lm_head.weight.mul_(20)
    return kind(
        model=policy,
        reward_funcs=reward_funcs,
        args=configuration(**(settings | overrides)),
        train_dataset=dataset(conversational),
        processing_class=tok,
        **options,
    )
