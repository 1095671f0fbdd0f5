"""The real OpenRLHF without a GPU: its loader, its engine actor's group call, its advantages.

Import after `pytest.importorskip("openrlhf")`. Packages that need a GPU are stubbed as empty
modules; the tests never reach their code. An engine with canned answers replaces vLLM.
"""

import asyncio
import importlib.machinery
import sys
import types
from types import SimpleNamespace as Fields
from unittest.mock import MagicMock

import torch
import transformers  # noqa: F401 (before the stubs: it looks for vllm)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


class Absent:
    """Import hook that finds empty modules for whatever is not installed."""

    NAMES = frozenset({"deepspeed", "flash_attn", "torchdata", "datasets", "wandb", "tensorboard"})

    def find_spec(self, name, path=None, target=None):
        known = name.partition(".")[0] in self.NAMES | {"bitsandbytes"}
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__spec__, module.__path__, module.__name__ = spec, [], spec.name
        return module

    def exec_module(self, module):
        pass


def _vllm():
    for name, names in {
        "vllm": {"__version__": "0.29.0", "SamplingParams": Fields},
        "vllm.inputs": {"TokensPrompt": dict},
        "vllm.utils": {"random_uuid": lambda: "x"},
    }.items():
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        vars(module).update(names)
        sys.modules.setdefault(name, module)


sys.meta_path.append(Absent())  # last, so that installed packages come first
_vllm()

from openrlhf.models.loss import PolicyLoss  # noqa: E402, F401
from openrlhf.trainer.ppo_trainer import compute_eval_metrics  # noqa: E402, F401
from openrlhf.trainer.ppo_utils.experience import Experience, split_experience_batch  # noqa: E402
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker  # noqa: E402
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator  # noqa: E402
from openrlhf.trainer.ray import vllm_engine  # noqa: E402

PROMPT = "<|im_start|>user\n3+4?<|im_end|>\n<|im_start|>assistant\n"
MAX_LENGTH = 120


def tiny_tokenizer():
    """Characters, and the markers of ChatML."""
    specials = ["<|pad|>", "<|im_start|>", "<|im_end|>", "<unk>"]
    characters = [*map(chr, range(32, 127)), "\n"]
    vocabulary = {token: i for i, token in enumerate(specials + characters)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<|pad|>", eos_token="<|im_end|>", unk_token="<unk>",
        additional_special_tokens=["<|im_start|>"], clean_up_tokenization_spaces=False,
    )  # fmt: skip


TOKENIZER = tiny_tokenizer()


def ids_of(text):
    return TOKENIZER(text=text, add_special_tokens=False)["input_ids"]


class Engine:
    """Returns its texts one after the other, each with an EOS unless it ends with "..."."""

    def __init__(self, *texts, fails_at=None, logprob=-0.5):
        self.texts, self.asked, self.fails_at, self.logprob = texts, [], fails_at, logprob

    async def generate(self, prompt_token_ids, sampling_params, multi_modal_data=None):
        number = len(self.asked)
        self.asked.append(list(prompt_token_ids))
        # The later ones finish first, as can happen with an engine.
        await asyncio.sleep(0.01 * (len(self.texts) - number))
        if number == self.fails_at:
            raise RuntimeError("engine died")
        text = self.texts[number % len(self.texts)]
        cut = text.endswith("...")
        ids = ids_of(text) + ([] if cut else [TOKENIZER.eos_token_id])
        shown = [{i: Fields(logprob=self.logprob)} for i in ids]
        output = Fields(
            token_ids=ids,
            text=TOKENIZER.decode(ids),
            finish_reason="length" if cut else "stop",
            logprobs=shown if sampling_params.logprobs is not None else None,
        )
        return Fields(outputs=[output])


def actor(engine, agent_file=None, executor=None):
    """The engine actor's own class, without Ray around it."""
    kind = vllm_engine.RolloutRayActor.__ray_metadata__.modified_class
    made = kind.__new__(kind)
    made.executor = executor or vllm_engine._load_agent_executor(str(agent_file))
    made.generate = engine.generate
    return made


def params(logprobs=1, max_tokens=60):
    return Fields(max_tokens=max_tokens, logprobs=logprobs)


async def group(of, n, prompt=PROMPT, label="7", max_length=MAX_LENGTH, **sampling):
    """Generate all samples of one prompt with the actor's own method."""
    return await of.generate_responses(
        prompt=prompt, label=label, sampling_params=params(**sampling), max_length=max_length,
        hf_tokenizer=TOKENIZER, num_samples=n,
    )  # fmt: skip


def run(of, n, **more):
    return asyncio.run(group(of, n, **more))


def experiences_of(responses, max_length=MAX_LENGTH):
    """Take the responses in as the trainer does: one by one, merged, and split again."""
    generator = SamplesGenerator.__new__(SamplesGenerator)
    each = [generator._process_response_into_experience(r, max_len=max_length) for r in responses]
    for i, experience in enumerate(each):
        experience.index = [i]
    split_experience_batch(Experience.concat_experiences(each, 0))
    for i, experience in enumerate(each):
        experience.index = [i]
    return each


def advantages_of(responses, estimator, n=None, kl=None, **reward):
    """Return the trainer's own advantages, at each row's first trained token, and its KL metrics.

    Args:
        responses: Responses of whole groups.
        n: Samples per prompt; None = all belong to one.
        kl: KL of each token against the reference; None = 0.
        reward: Settings of length penalties.
    """
    maker = RemoteExperienceMaker.__new__(RemoteExperienceMaker)
    advantage = Fields(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=False)
    settings = {"clip_range": (-10, 10), "overlong_buffer_len": None} | reward
    maker.args = Fields(
        reward=Fields(**settings),
        rollout=Fields(n_samples_per_prompt=n or len(responses), max_new_tokens=60),
        algo=Fields(advantage=advantage),
        data=Fields(max_len=MAX_LENGTH),
    )
    maker.strategy, maker.kl_ctl = Fields(args=maker.args), Fields(value=0.0)
    maker.advantage_estimator = estimator
    rows = experiences_of(responses)
    for row in rows:
        row.kl = torch.full(row.action_mask.shape, kl or 0.0)
    figures = [mean_kl(row) for row in rows]
    done = maker.compute_advantages_and_returns(rows)
    found = [row.advantages[row.action_mask.bool()][0].item() for row in done]
    return found, figures


def mean_kl(row):
    from openrlhf.models.utils import masked_mean

    return masked_mean(row.kl, row.action_mask, dim=-1).item()


def trained_text(response):
    """The tokens on which the trainer trains, as text."""
    (row,) = experiences_of([response])
    ids = row.sequences[0, 1:][row.action_mask[0].bool()]
    return TOKENIZER.decode(ids.tolist())
