"""Numbers that an agent loop may receive from elsewhere, before verl makes tensors of them."""

import asyncio
import math
from types import SimpleNamespace as Fields

import numpy as np
import pytest
import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from grpo_guard.adapters.plain_numbers import LOG_PROBS
from grpo_guard.adapters.verl.agent_loop import GuardedRollouts, _Rollout, _rollout
from grpo_guard.adapters.verl.batch import HOOK_DATA, HookData, rows_from
from grpo_guard.adapters.verl.manager import _plain_info
from tests.helpers.hostile_numbers import lists, numbers
from tests.verl.tiny_verl import HONEST, several_outputs


class Worker:
    """verl's own processing of an output."""

    async def _agent_loop_postprocess(self, output, validate, **kwargs):
        return output.as_dict()


class Guarded(GuardedRollouts, Worker):
    pass


def postprocessed(log_probs):
    output = AgentLoopOutput(
        prompt_ids=[5], response_ids=[6, 7, 8], response_mask=[1] * 3, metrics=AgentLoopMetrics()
    )
    output.response_logprobs = log_probs
    mine = _Rollout(False, 4, 1)

    async def go():
        _rollout.set(mine)
        return await Guarded()._agent_loop_postprocess(output, False)

    return asyncio.run(go()), mine.unusable


def test_log_probs_are_sanitised_before_verl():
    for value in lists(3):
        made, unusable = postprocessed(value)
        found = made.get("rollout_log_probs")
        if value is None:
            assert found is None
            continue
        assert len(found) <= 3
        assert ((found >= LOG_PROBS[0]) & (found <= LOG_PROBS[1])).all()
        assert not unusable or found.tolist() == [0.0] * 3


def test_honest_log_probs_are_unchanged():
    made, unusable = postprocessed([-0.1, -2.5, 0.0])
    assert torch.equal(made["rollout_log_probs"], torch.tensor([-0.1, -2.5, 0.0]))
    assert not unusable


def test_row_with_invalid_log_probs_is_malformed(tokenizer):
    for unusable in (True, False):
        data = several_outputs(tokenizer, [HONEST])
        length = int(data.non_tensor_batch["response_len"][0])
        hook_data = HookData(
            4, masks=((1,) * length,), log_probs=((0.0,) * length,), unusable=unusable
        )
        data.non_tensor_batch[HOOK_DATA] = np.array([hook_data])
        (row,) = rows_from(data, tokenizer, 99)
        assert row.was_repaired is unusable


@pytest.mark.parametrize("key", ["uid", "responses", 7])
def test_extra_fields_of_a_loop_do_not_become_columns(key):
    data = Fields(non_tensor_batch={"uid": 0}, batch={"responses": 0})
    assert _plain_info({key: 1.0, "acc": True}, data) == {"acc": True}
    for value in numbers():
        info = _plain_info({"acc": value}, data)
        assert isinstance(info["acc"], str | bool) or math.isfinite(info["acc"])
    assert _plain_info("x", data) == {}
