"""Rows written by other nodes in the real OpenRLHF: no claim ends the run or bends the loss."""

import asyncio
import math

import pytest
import torch

pytest.importorskip("openrlhf", reason="needs openrlhf: make test-openrlhf")

from hypothesis import given, settings
from hypothesis import strategies as st
from openrlhf.utils.agent import AgentExecutorBase

from grpo_guard import Guard, Policy
from grpo_guard.adapters.openrlhf.agent import GuardedAgent
from grpo_guard.adapters.openrlhf.rollout import sanitize_response
from tests.openrlhf.openrlhf_parts import (
    MAX_LENGTH,
    PROMPT,
    TOKENIZER,
    Engine,
    Experience,
    PolicyLoss,
    actor,
    advantages_of,
    experiences_of,
    ids_of,
    run,
)
from tests.openrlhf.openrlhf_verifiers import Words

END = TOKENIZER.eos_token_id
START = ids_of("<|im_start|>")[0]


class Ledger:
    def __init__(self):
        self.said = []

    def record(self, batch, verdicts):
        self.said += [(c.node, v.outcome, v.cause) for c, v in zip(batch, verdicts, strict=True)]


class Exchange(AgentExecutorBase):
    """Forwards what its nodes sent unchanged; an answer that says 7 is right."""

    def __init__(self, sent):
        self.sent, self.asked = sent, 0

    async def execute(self, prompt, label, hf_tokenizer, **given):
        number, self.asked = self.asked, self.asked + 1
        await asyncio.sleep(0)
        before = ids_of(prompt)
        ids, log_probs = self.sent[number]
        log_probs = None if log_probs is None else [0.0] * len(before) + log_probs
        ids = [*before, *ids]
        reward = float(label in hf_tokenizer.decode([i for i in ids[len(before) :] if plain(i)]))
        return {
            "prompt": prompt, "label": label, "images": None, "mm_train_inputs": None,
            "observation_tokens": ids, "action_ranges": [(len(before), len(ids))],
            "rollout_log_probs": log_probs, "truncated": False, "reward": reward, "scores": reward,
            "extra_logs": {}, "node": f"node{number}",
        }  # fmt: skip


def plain(token):
    return isinstance(token, int) and 0 <= token < len(TOKENIZER)


def exchanged(*sent, policy="zero", own=()):
    """Return a group's responses with one per node, its ledger's records, and the guard."""
    ledger = Ledger()

    class AgentExecutor(GuardedAgent, Exchange):
        guard = Guard(Words(), policy=Policy(on_reject=policy), ledger=ledger)
        special = own

    executor = AgentExecutor(list(sent))
    responses = run(actor(Engine("7"), executor=executor), len(sent))
    return responses, ledger.said, executor.guard


def said(text, log_prob=-0.5):
    ids = [*ids_of(text), END]
    return ids, [log_prob] * len(ids)


def losses(responses, advantages):
    """Gradients of the trainer's own loss in every form that weighs by the rollout's log-probs."""
    rows = experiences_of(responses)
    for row, advantage in zip(rows, advantages, strict=True):
        row.index = None
        row.advantages = torch.full(row.action_mask.shape, advantage)
    batch = Experience.concat_experiences(rows, 0)
    for settings_ in (
        {"is_correction_level": "token"},
        {"is_correction_level": "seq"},
        {"is_correction_level": "token", "is_correction_mode": "clip"},
        {
            "is_correction_level": "token",
            "is_correction_gating": "binary_kl",
            "is_correction_threshold": [0.0, 0.1],
        },
        {
            "is_correction_level": "seq",
            "is_correction_gating": "tv",
            "is_correction_threshold": [0.0, 0.1],
        },
        {"is_correction_level": "token", "policy_loss_type": "gspo"},
    ):
        log_probs = torch.full(batch.action_mask.shape, -20.0, requires_grad=True)
        loss = PolicyLoss(**settings_)(
            log_probs, log_probs.detach(), batch.advantages, batch.action_mask,
            batch.rollout_log_probs,
        )[0]  # fmt: skip
        loss.backward()
        yield loss, log_probs.grad


HONEST = [said("It is 7."), said("It is 8."), said("7")]
BAD_IDS = [-1, 10**6, 2**70, 1.0, True, None, "7"]


@pytest.mark.parametrize("policy", ["zero", "drop"])
@pytest.mark.parametrize("bad", BAD_IDS)
def test_invalid_ids_neither_end_the_run_nor_affect_the_group(bad, policy):
    forged = ([*ids_of("It is 7"), bad, END], [-0.5] * 9)
    responses, heard, guard = exchanged(HONEST[0], forged, *HONEST[1:], policy=policy)
    assert [r["extra_logs"]["guard_left_out"] for r in responses] == [0, 1, 0, 0]
    assert [r["reward"] for r in responses] == pytest.approx([1, 2 / 3, 0, 1])
    assert heard[1] == ("node1", "reject", "malformed")
    assert [(node, outcome) for node, outcome, _ in heard if node != "node1"] == [
        (f"node{i}", "accept") for i in (0, 2, 3)
    ]
    # The filler is shown to no verifier.
    assert [c.node for batch in guard.verifier.batches for c in batch] == [
        "node0",
        "node2",
        "node3",
    ]
    for row in experiences_of(responses):
        assert 0 <= row.sequences.min() <= row.sequences.max() < len(TOKENIZER)
    found, _ = advantages_of(responses, "dr_grpo")
    assert found == pytest.approx([1 / 3, 0, -2 / 3, 1 / 3], abs=1e-6)


BAD_LOG_PROBS = [
    [math.nan] * 9, [-math.inf] * 9, [math.inf] * 9, [None] * 9, ["-1"] * 8 + ["x"], [-1000.0] * 9,
    [-0.5] * 8 + [-120.0], [1.0] * 9, [-0.5] * 5, [-0.5] * 12, [10**400] * 9,
]  # fmt: skip


@pytest.mark.parametrize("policy", ["zero", "drop"])
@pytest.mark.parametrize("claimed", BAD_LOG_PROBS, ids=range(len(BAD_LOG_PROBS)))
def test_invalid_log_probs_of_peers_do_not_reach_the_loss(claimed, policy):
    forged = ([*ids_of("It is 7."), END], claimed)
    responses, heard, _ = exchanged(HONEST[0], forged, *HONEST[1:], policy=policy)
    assert [r["extra_logs"]["guard_left_out"] for r in responses] == [0, 1, 0, 0]
    assert heard[1] == ("node1", "reject", "malformed")
    found, _ = advantages_of(responses, "group_norm")
    for loss, gradient in losses(responses, found):
        assert torch.isfinite(loss)
        assert torch.isfinite(gradient).all()
        assert torch.all(gradient[1] == 0)


def test_same_log_probs_without_a_guard_give_a_nan_loss():
    """Negative control: the value that the tests above rely on to poison the loss."""
    forged = ([*ids_of("It is 7."), END], [-1000.0] * 9)
    unguarded = Exchange([HONEST[0], forged, *HONEST[1:]])
    responses = run(actor(Engine("7"), executor=unguarded), 4)
    found, _ = advantages_of(responses, "group_norm")
    assert not all(torch.isfinite(loss) for loss, _ in losses(responses, found))


SMUGGLED = [
    [*ids_of("It is 7."), END, *ids_of("Steal."), END],
    [*ids_of("It is 7."), END, END],
    [START, *ids_of("It is 7."), END],
    [*ids_of("It is 7."), START],
]


@pytest.mark.parametrize("ids", SMUGGLED)
def test_invisible_special_tokens_reject(ids):
    forged = (ids, [-0.5] * len(ids))
    responses, heard, _ = exchanged(HONEST[0], forged, *HONEST[1:])
    assert [r["extra_logs"]["guard_reject"] for r in responses] == [0, 1, 0, 0]
    assert heard[1] == ("node1", "reject", "malformed")


@pytest.mark.parametrize("log_probs", [None, [-0.5] * 50_001])
def test_endless_answer_is_truncated_like_the_trainer_does(log_probs):
    forged = ([*ids_of("7" * 50_000), END], log_probs)
    rest = [(ids, None) for ids, _ in HONEST] if log_probs is None else HONEST
    responses, heard, guard = exchanged(rest[0], forged, *rest[1:])
    assert heard[1] == ("node1", "reject", "malformed")
    assert len(responses[1]["observation_tokens"]) == MAX_LENGTH
    assert sum(len(c.text) for batch in guard.verifier.batches for c in batch) < 100
    found, _ = advantages_of(responses, "dr_grpo")
    assert found == pytest.approx([1 / 3, 0, -2 / 3, 1 / 3], abs=1e-6)


def test_allowed_special_tokens_may_occur_in_a_turn():
    thinks = [START, *ids_of("It is 7."), END]
    responses, _, _ = exchanged((thinks, [-0.5] * len(thinks)), HONEST[1], own=[START])
    assert [r["extra_logs"]["guard_accept"] for r in responses] == [1, 1]


TOKENS = st.integers(0, len(TOKENIZER) - 1) | st.sampled_from(BAD_IDS)
CLAIMS = st.floats() | st.none() | st.integers() | st.text(max_size=3) | st.floats(-5, 0)


@settings(max_examples=200, deadline=None)
@given(st.lists(TOKENS, min_size=1, max_size=12), st.none() | st.lists(CLAIMS, max_size=20))
def test_trainer_accepts_any_claim(ids, log_probs):
    before = ids_of(PROMPT)
    response = {
        "observation_tokens": [*before, *ids], "node": "n",
        "action_ranges": [(len(before), len(before) + len(ids))],
        "rollout_log_probs": log_probs,
    }  # fmt: skip
    taken, problem = sanitize_response(response, TOKENIZER, MAX_LENGTH, ())
    assert len(taken["observation_tokens"]) == len(before) + len(ids)
    assert all(plain(token) for token in taken["observation_tokens"])
    if log_probs is not None:
        assert len(taken["rollout_log_probs"]) == len(before) + len(ids)
        assert all(-80 <= float(x) <= 0.01 for x in taken["rollout_log_probs"])
    if problem is None:
        assert taken is response


def test_first_answer_of_a_run_may_fail_grading(agent_file):
    """It logs nothing, and OpenRLHF stops if the samples of a batch log different names."""
    texts = ("It is 7. crash", "It is 7.", "It is 8.", "7")
    responses = run(actor(Engine(*texts), agent_file()), 4)
    assert len({frozenset(r["extra_logs"]) for r in responses}) == 1
    assert advantages_of(responses, "dr_grpo")[0] == pytest.approx(
        [0, 1 / 3, -2 / 3, 1 / 3], abs=1e-6
    )
    assert len(experiences_of(responses, MAX_LENGTH)) == 4
