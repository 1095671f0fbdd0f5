"""slime's own files, compared with what the adapter relies on. slime is on no package index::

    SLIME=PATH_OF_A_CHECKOUT python -m pytest tests/slime/test_slime_source.py

Last passed with https://github.com/THUDM/slime at 624b824a898a (21 August 2026):
``slime/utils/types.py`` and, out of ``slime/ray/rollout.py``, `_post_process_rewards`.
"""

import ast
import asyncio
import importlib.util
import os
import sys
import textwrap
import types
from pathlib import Path
from types import SimpleNamespace

import pytest

if "SLIME" not in os.environ:
    pytest.skip("set SLIME to a checkout of slime", allow_module_level=True)

import torch

from grpo_guard import Guard, Policy
from grpo_guard.adapters.slime import SlimeAdapter, rewards_without_left_out, row_from
from tests.helpers.characters import Characters
from tests.helpers.words import Words
from tests.slime.test_slime_contract import ZERO, arguments, correct

SOURCE = Path(os.environ["SLIME"]) / "slime"


def _types():
    spec = importlib.util.spec_from_file_location("slime_types", SOURCE / "utils" / "types.py")
    module = importlib.util.module_from_spec(spec)
    misc = types.ModuleType("slime.utils.misc")  # whose imports need a cluster
    misc.decode_int32_meta_array = None
    for stub in (types.ModuleType("slime"), types.ModuleType("slime.utils"), misc):
        sys.modules.setdefault(stub.__name__, stub)
    sys.modules["slime_types"] = module
    spec.loader.exec_module(module)
    return module


def _function(path, name):
    """Load one function from a file whose imports need a GPU."""
    text = path.read_text(encoding="utf-8")
    nodes = [n for n in ast.walk(ast.parse(text)) if getattr(n, "name", None) == name]
    names = {"torch": torch, "Sample": Sample}
    code = textwrap.dedent("    " + ast.get_source_segment(text, nodes[0]))
    exec(code, names)  # noqa: S102
    return names[name]


Sample = _types().Sample
post_process = _function(SOURCE / "ray" / "rollout.py", "_post_process_rewards")


def samples(texts, rm, args):
    made = []
    for text in texts:
        said = Characters().encode(text)
        one = Sample(
            group_index=0, prompt="3+4?", tokens=[5, 6, *said], response=text,
            response_length=len(said), label="7" if text != "two" else "8",
            rollout_log_probs=[-0.5] * len(said), status=Sample.Status.COMPLETED,
        )  # fmt: skip
        one.reward = asyncio.run(rm(args, one))
        made.append(one)
    return made


def slimes_own(args, made):
    holder = SimpleNamespace(args=args, custom_reward_post_process_func=None)
    raw, rewards = post_process(holder, made)
    return raw, rewards


def guarded(policy, **more):
    guard = Guard(Words(), policy=policy, tokenizer=Characters())
    return SlimeAdapter(**more).wrap(correct, guard)


@pytest.mark.parametrize("estimator", ["grpo", "gspo", "cispo", "reinforce_plus_plus_baseline"])
def test_adapter_arithmetic_matches_slime_with_nothing_left_out(estimator):
    args = arguments(advantage_estimator=estimator, rollout_batch_size=1)
    made = samples(["one", "two", "Hail", "three"], guarded(ZERO, leave_out=True), args)
    (raw, ours), (own_raw, theirs) = rewards_without_left_out(args, made), slimes_own(args, made)
    assert raw == own_raw == [1.0, 0.0, 0.0, 1.0]
    assert ours == pytest.approx(theirs, abs=1e-5)


def test_remaining_samples_have_the_rewards_slime_gives_them_alone():
    args = arguments(n_samples_per_prompt=3, rollout_batch_size=1)
    rm = guarded(Policy("drop", "skip"), leave_out=True)
    _, alone = slimes_own(args, samples(["one", "two", "three"], rm, args))
    made = samples(["one", "two", "Hail", "three"], rm, args)
    _, found = rewards_without_left_out(args, made)
    assert found == pytest.approx([*alone[:2], 0.0, alone[2]], abs=1e-5)
    assert [one.remove_sample for one in made] == [False, False, True, False]


def test_slime_sample_is_read_completely():
    args, rm = arguments(), guarded(ZERO)
    (one,) = samples(["one"], rm, args)
    got = row_from(one, Guard(Words(), policy=ZERO, tokenizer=Characters())).completion
    assert (got.text, got.prompt_ids, got.reference, got.group) == ("one", (5, 6), "7", 0)
    assert got.sampler_logprobs == (-0.5,) * 3
