"""The code of docs/verl.md, as a shell and verl's own configuration read it."""

import asyncio
import dataclasses
import re
import shlex
import string
from pathlib import Path

import pytest
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.trainer.ppo.reward import get_custom_reward_fn, load_reward_manager
from verl.utils.import_utils import load_class_from_fqn

from grpo_guard.adapters.verl.manager import GuardedRewardManager
from grpo_guard.adapters.verl.settings import Settings

PAGE = (Path(__file__).parents[2] / "docs" / "verl.md").read_text(encoding="utf-8")
REWARDS = """
from grpo_guard import Completion, CompletionVerifier
from grpo_guard.core.verdict import accept

class Accepts(CompletionVerifier):
    name = "accepts"

    def verify(self, batch):
        return [accept(self.name) for _ in batch]

verifier = Accepts()
"""
TRAINERS = ["ppo_trainer", "ppo_megatron_trainer"]


def blocks(language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


def overrides(block):
    """Parse the block's lines as command-line arguments, with shell variables expanded."""
    words = [word for line in block.splitlines() for word in shlex.split(line, comments=True)]
    variables = dict(found.groups() for w in words if (found := re.fullmatch(r"([A-Z]+)=(\S+)", w)))
    arguments = [w for w in words if not re.match(r"[A-Z]+=", w)]
    return [string.Template(w).safe_substitute(variables) for w in arguments]


@pytest.fixture
def as_written(tmp_path, monkeypatch):
    """Write the page's files to the working directory, at the paths that it gives."""
    (python,), (yaml, *_) = blocks("python"), blocks("yaml")
    body = "    return float(solution_str.endswith(ground_truth)) + bonus\n"
    signature = python.replace("extra_info=None): ...\n", f"extra_info=None, bonus=0.0):\n{body}")
    assert body in signature
    (tmp_path / "rewards.py").write_text(REWARDS + signature)
    (tmp_path / "guard.yaml").write_text(yaml)
    monkeypatch.chdir(tmp_path)
    folder = str(tmp_path)
    return lambda words: [word.replace("/shared", folder) for word in words]


def manager(config, tokenizer):
    async def go():
        return load_reward_manager(config, tokenizer)

    return asyncio.run(go())


def test_every_block_is_tested():
    assert [len(overrides(block)) for block in blocks("")] == [3, 4, 2, 1, 1]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_decorator_of_the_page(configuration, tokenizer, as_written, trainer):
    config = configuration(*overrides(blocks("")[0]), name=trainer)
    call = {"data_source": "d", "solution_str": "so 4", "extra_info": {}}
    assert get_custom_reward_fn(config)(ground_truth="4", **call) == 1.5


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("form", [1, 2])
def test_manager_and_hook_of_the_page(configuration, tokenizer, as_written, trainer, form):
    estimator, hook = overrides(blocks("")[3]), overrides(blocks("")[4])
    words = as_written([*overrides(blocks("")[form]), *hook, *estimator])
    config = configuration(*words, name=trainer)
    assert isinstance(manager(config, tokenizer), GuardedRewardManager)
    named = config.actor_rollout_ref.rollout.agent.agent_loop_manager_class
    assert hasattr(load_class_from_fqn(named), "guarded_worker")
    assert hasattr(load_class_from_fqn(f"{named}V0"), "guarded_worker")
    assert callable(get_adv_estimator_fn(config.algorithm.adv_estimator))


def test_options_match_the_table(configuration, as_written):
    rows = PAGE.split("| `+grpo_guard.`")[1].split("\n\n")[0]
    table = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", rows, re.MULTILINE))
    fields = {f.name: f.default for f in dataclasses.fields(Settings)}
    assert list(table) == list(fields)[:7]
    for name in ("manager", "sibling_timeout", "answer_timeout"):
        assert str(fields[name]) == str(type(fields[name])(table[name].strip("`")))
    (options,) = re.findall(r"`('\+grpo_guard\.actor_options=.*?')`", rows)
    words = as_written([*overrides(blocks("")[2]), *shlex.split(options)])
    assert Settings.of(configuration(*words)).actor_options == {"num_gpus": 1}
