"""The completions behind a reward worker's DataProto."""

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_guard.adapters.verl.batch import (
    HOOK_DATA,
    HookData,
    last_row,
    rows_from,
)
from grpo_guard.core.turns import own_words
from grpo_guard.core.verdict import Cause
from tests.verl.tiny_verl import HONEST, QUESTION, batch, several_outputs

masks = st.lists(st.integers(0, 1), min_size=0, max_size=60)


def completions_from(*given, **more):
    return [row.completion for row in rows_from(*given, **more)]


def with_hook_data(data, **more):
    n = len(data)
    lengths = data.non_tensor_batch["response_len"]
    given = {"masks": tuple((1,) * int(length) for length in lengths), "log_probs": (None,) * n}
    data.non_tensor_batch[HOOK_DATA] = np.array([HookData(4, **{**given, **more})] * n)
    return data


def test_padded_batch(tokenizer):
    data = batch(tokenizer, [HONEST, "no"], ["u", "v"])
    (first,), (second,) = (completions_from(data[i : i + 1], tokenizer, 99) for i in range(2))
    assert (first.text, second.text) == (HONEST, "no")
    assert first.prompt == ({"role": "user", "content": QUESTION},)
    assert list(first.prompt_ids) == tokenizer(QUESTION)["input_ids"]
    assert list(first.completion_ids) == [*tokenizer(HONEST)["input_ids"], tokenizer.eos_token_id]
    assert (first.group, second.group, first.task, first.reference) == ("u", "v", "sums", "4")
    assert first.finish_reason == "stop"


def test_all_outputs_and_truncated_ones(tokenizer):
    data = several_outputs(tokenizer, ["ab", "abcd"])
    first, second = completions_from(data, tokenizer, 4)
    assert (first.text, first.finish_reason) == ("ab", "stop")
    assert (second.text, second.finish_reason) == ("abcd", "length")
    assert first.rollout == second.rollout


def test_several_turns_without_the_hook_are_not_read(tokenizer):
    data = several_outputs(tokenizer, ["ab"])
    data.non_tensor_batch["__num_turns__"] = np.array([4])
    (unread,) = rows_from(data, tokenizer, 99)
    assert (unread.given.abstained, unread.given.cause) == (True, Cause.UNSUPPORTED)
    assert "agent-loop hook" in unread.given.reason
    # The author controls the number of turns: if abstentions pass, that must not pay.
    (unread,) = rows_from(data, tokenizer, 99, rejects_unread=True)
    assert unread.given.rejected
    (read,) = completions_from(with_hook_data(data), tokenizer, 99)
    assert read.text == "ab"


def test_node_of_a_row(tokenizer):
    data = several_outputs(tokenizer, ["ab"])
    data.non_tensor_batch["tool_extra_fields"] = np.array([{"node": "n7"}])
    assert completions_from(data, tokenizer, 99)[0].node == "n7"
    data.non_tensor_batch["extra_info"][0]["node"] = "of the data set"
    assert completions_from(data, tokenizer, 99)[0].node == "of the data set"


def test_agent_loop_cannot_override_the_node(tokenizer):
    data = several_outputs(tokenizer, ["ab"])
    data.non_tensor_batch["extra_info"][0]["peer"] = "of the data set"
    data.non_tensor_batch["tool_extra_fields"] = np.array([{"node": "somebody else"}])
    assert completions_from(data, tokenizer, 99)[0].node == "of the data set"


def test_siblings_that_share_extra_info_keep_their_own_node(tokenizer):
    """verl repeats a prompt's row, dicts included, and its managers write into them."""
    data = batch(tokenizer, [HONEST, HONEST])
    shared = {"index": 0}
    data.non_tensor_batch["extra_info"] = np.array([shared] * 2)
    data.non_tensor_batch["tool_extra_fields"] = np.array([{"node": "n0"}, {"node": "n1"}])
    for i in range(2):
        row = last_row(data[i : i + 1])
        row.non_tensor_batch["extra_info"][0].update(row.non_tensor_batch["tool_extra_fields"][0])
    assert shared == {"index": 0}
    nodes = [completions_from(data[i : i + 1], tokenizer, 99)[0].node for i in range(2)]
    assert nodes == ["n0", "n1"]


def test_tokens_hidden_from_the_text_are_shown(tokenizer):
    hidden, eos = tokenizer.pad_token_id, tokenizer.eos_token_id
    data = several_outputs(tokenizer, ["ab"])
    data.batch["responses"][0] = torch.tensor([hidden, eos])
    # From one's own vLLM engine, as verl reads it.
    assert completions_from(data, tokenizer, 99)[0].text == ""
    data.non_tensor_batch["extra_info"][0]["node"] = "n7"
    assert completions_from(data, tokenizer, 99)[0].text == "<pad>"


def test_ids_beyond_the_tokenizer_are_refused(tokenizer):
    data = several_outputs(tokenizer, ["ab"])
    data.batch["responses"][0, 1] = len(tokenizer)
    (row,) = rows_from(data, tokenizer, 99)
    assert (row.given.cause, row.was_repaired) == (Cause.MALFORMED, True)
    assert "at position 1" in row.given.reason
    data.batch["responses"][0, 1] = len(tokenizer) - 1
    assert rows_from(data, tokenizer, 99)[0].given is None


def test_outputs_without_model_tokens_are_not_judged(tokenizer):
    data = with_hook_data(
        several_outputs(tokenizer, ["ab", "cd", "ef"]), masks=((0, 0), (1, 1), (0, 0))
    )
    assert [c.text for c in completions_from(data, tokenizer, 99)] == ["cd"]
    data = with_hook_data(several_outputs(tokenizer, ["ab", "cd"]), masks=((0, 0), (0, 0)))
    assert [c.text for c in completions_from(data, tokenizer, 99)] == [""]


def test_all_outputs_of_a_trajectory_are_one_rollout(tokenizer):
    data = several_outputs(tokenizer, ["ab", "cd"])
    first, last = completions_from(data, tokenizer, 99)
    assert first.rollout is not None
    assert first.rollout == last.rollout
    assert first.group == last.group
    sibling, _ = completions_from(data, tokenizer, 99)
    assert sibling.rollout != first.rollout
    (lone,) = completions_from(several_outputs(tokenizer, ["ab"]), tokenizer, 99)
    assert lone.rollout is None


def test_all_turns_are_one_completion(tokenizer):
    data = batch(tokenizer, [HONEST], ["u"])
    hook_data = HookData(4, masks=((1, 1, 0, 1, 1),), log_probs=(None,))
    data.non_tensor_batch[HOOK_DATA] = np.array([hook_data])
    (completion,) = completions_from(data, tokenizer, 99)
    assert completion.group == "u"
    assert completion.given.tokens[0] == (2, 3)
    assert completion.verified_spans == completion.given  # called by the trainer's own agent loop
    data.non_tensor_batch["extra_info"] = np.array([{"node": "ann"}])
    (completion,) = completions_from(data, tokenizer, 99)
    # Another node's mask: used for training, but not trusted.
    assert completion.verified_spans is None
    assert completion.context == completion.given
    assert len(completion.given.chars) == 2


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mask=masks)
def test_every_model_token_is_judged_once_in_context(tokenizer, mask):
    data = several_outputs(tokenizer, [HONEST])
    length = int(data.non_tensor_batch["response_len"][0])
    ids = data.batch["responses"][0][:length].tolist()
    prompt = tokenizer("q" * 8)["input_ids"]
    log_probs = tuple(-float(i) for i in range(length))
    data = with_hook_data(data, masks=(tuple(mask),), log_probs=(log_probs,))
    (whole,) = completions_from(data, tokenizer, 99)
    (drawn,) = own_words([whole])
    own = [i for i, m in enumerate(mask[:length]) if m]
    assert list(drawn.completion_ids or ()) == [ids[i] for i in own]
    if own:
        assert list(whole.prompt_ids) == prompt
        assert list(whole.completion_ids) == ids
        assert list(drawn.sampler_logprobs) == [-float(i) for i in own]
        texts = [whole.text[a:b] for a, b in whole.given.chars] if whole.given else []
        spans = whole.given.tokens if whole.given else ()
        assert texts == [tokenizer.decode(ids[a:b], skip_special_tokens=True) for a, b in spans]


def test_non_numeric_claim_is_ignored(tokenizer):
    data = with_hook_data(several_outputs(tokenizer, ["ab"]), log_probs=((float("nan"),) * 2,))
    (completion,) = completions_from(data, tokenizer, 99)
    assert completion.sampler_logprobs is None
    assert completion.text == "ab"
