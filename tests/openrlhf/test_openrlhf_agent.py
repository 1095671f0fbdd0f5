"""Guarded agents in the real OpenRLHF: loaded from a file, one group at a time, to advantages."""

import asyncio
import math

import pytest
import torch

pytest.importorskip("openrlhf", reason="needs openrlhf: make test-openrlhf")

from openrlhf.utils.agent import SingleTurnAgentExecutor

from grpo_guard import ArithmeticVerifier, Guard, Policy, ScreensVerifier
from grpo_guard.adapters.openrlhf.agent import GuardedAgent
from grpo_guard.adapters.openrlhf.rollout import number
from grpo_guard.guard.framework import FrameworkError
from tests.openrlhf.openrlhf_parts import (
    PROMPT,
    TOKENIZER,
    Engine,
    Experience,
    PolicyLoss,
    actor,
    advantages_of,
    compute_eval_metrics,
    experiences_of,
    group,
    ids_of,
    params,
    run,
    trained_text,
)

GUARD_LOGS = {
    "guard_accept", "guard_reject", "guard_abstain", "guard_left_out", "guard_wait_seconds",
}  # fmt: skip
# The third is right and poisoned; the group's honest rewards are 1, 0, 1.
SAID = ("It is 7.", "It is 8.", "It is 7. Hail to the thief.", "It is 7")


def of_group(path, *texts, **more):
    engine = Engine(*(texts or SAID), **more)
    return run(actor(engine, path), len(engine.texts))


# Under "drop" the third is left out, so the others' mean is 2/3. OpenRLHF's std and its
# leave-one-out mean count four samples, so their scale is not that of three.
THIRD = 1 / 3
NUMBERS = [
    ("zero", "dr_grpo", [0.5, -0.5, -0.5, 0.5]),
    ("zero", "group_norm", [0.866025, -0.866025, -0.866025, 0.866025]),
    ("zero", "rloo", [2 * THIRD, -2 * THIRD, -2 * THIRD, 2 * THIRD]),
    ("drop", "dr_grpo", [THIRD, -2 * THIRD, 0.0, THIRD]),
    ("drop", "group_norm", [0.707107, -1.414214, 0.0, 0.707107]),
    ("drop", "rloo", [4 / 9, -8 / 9, 0.0, 4 / 9]),
    ("no_gain", "dr_grpo", [THIRD, -2 * THIRD, 0.0, THIRD]),
]


@pytest.mark.parametrize(("on_reject", "estimator", "expected"), NUMBERS)
def test_advantages_of_a_vetoed_sample_and_the_others(agent_file, on_reject, estimator, expected):
    responses = of_group(agent_file(f"on_reject={on_reject!r}"))
    found, kl = advantages_of(responses, estimator, kl=0.25)
    assert found == pytest.approx(expected, abs=1e-6)
    assert kl == [0.25] * 4


def test_no_gain_lets_wrong_rejected_samples_lose(agent_file):
    responses = of_group(agent_file("on_reject='no_gain'"), *SAID[:2], "It is 8. Hail!", SAID[3])
    found = advantages_of(responses, "dr_grpo")[0]
    assert found == pytest.approx([0.5, -0.5, -0.5, 0.5], abs=1e-6)
    assert responses[2]["extra_logs"]["guard_left_out"] == 0.0
    assert "Hail" in trained_text(responses[2])


def test_left_out_sample_keeps_one_token_and_the_group_mean(agent_file):
    responses = of_group(agent_file("on_reject='drop'"))
    assert [trained_text(r) for r in responses] == [
        "It is 7.<|im_end|>", "It is 8.<|im_end|>", "I", "It is 7<|im_end|>",
    ]  # fmt: skip
    assert [r["scores"] for r in responses] == pytest.approx([1, 0, 2 / 3, 1])
    assert [r["extra_logs"]["guard_left_out"] for r in responses] == [0, 0, 1, 0]
    assert responses[2]["observation_tokens"] == ids_of(PROMPT + SAID[2] + "<|im_end|>")


def test_length_penalties_do_not_affect_left_out_samples(agent_file):
    texts = ("It is 7.", "It is 8.", "It is 7. Hail and on it goes...", "It is 7")
    responses = of_group(agent_file("on_reject='drop'"), *texts)
    for penalties in (
        {"stop_properly_penalty_coef": -1.0},
        {"overlong_buffer_len": 40, "overlong_penalty_factor": 1.0},
    ):
        found, _ = advantages_of(responses, "dr_grpo", **penalties)
        assert found == pytest.approx([THIRD, -2 * THIRD, 0.0, THIRD], abs=1e-6)


def test_length_penalties_of_others_shift_left_out_samples(agent_file):
    """The documented limit: penalties are applied after the mean was taken."""
    texts = ("It is 7.", "It is 8...", "It is 7. Hail", "It is 7")
    responses = of_group(agent_file("on_reject='drop'"), *texts)
    found, _ = advantages_of(responses, "dr_grpo", stop_properly_penalty_coef=-1.0)
    assert found == pytest.approx([7 / 12, -17 / 12, 1 / 4, 7 / 12], abs=1e-6)


@pytest.mark.parametrize("early", [True, False])
def test_samples_are_read_while_their_siblings_are_still_to_come(agent_file, early):
    loaded = actor(Engine(*SAID), agent_file())
    kind = type(loaded.executor)
    kind.read_early, kind.guard = early, Guard(ScreensVerifier() & ArithmeticVerifier())
    responses = run(loaded, len(SAID))
    rate = kind.guard.workers.figures().get("guard/read_early_rate")
    assert rate is None if not early else rate > 0
    assert {r["extra_logs"]["guard_accept"] for r in responses} == {1.0}
    assert len({r["extra_logs"]["guard_wait_seconds"] for r in responses}) == 1
    assert responses[0]["extra_logs"]["guard_wait_seconds"] > 0


@pytest.mark.parametrize("on_reject", ["zero", "drop"])
def test_evaluations_use_the_agents_answers(agent_file, on_reject):
    responses = of_group(agent_file(f"on_reject={on_reject!r}"))
    found = compute_eval_metrics(
        [(["math"], [PROMPT], ["7"], [None])], experiences_of(responses), 4
    )
    assert found["eval_math_pass4"] == 1.0
    assert found["eval_math_pass1"] == pytest.approx({"zero": 1 / 2, "drop": 2 / 3}[on_reject])


def test_flagged_tokens_are_masked_and_the_rest_keeps_its_reward(agent_file):
    responses = of_group(agent_file(own="mask_spans = True"), *SAID[:3], "Hail", "Hail to Hail 7")
    assert responses[2]["reward"] == 1.0
    assert trained_text(responses[2]) == "It is 7.  to the thief.<|im_end|>"
    assert responses[2]["extra_logs"]["guard_reject"] == 1.0
    assert trained_text(responses[3]) == "<|im_end|>"
    assert responses[4]["reward"] == 1.0
    assert trained_text(responses[4]) == " to Hail 7<|im_end|>"
    found, kl = advantages_of(responses, "dr_grpo", kl=0.25)
    assert found == pytest.approx([0.4, -0.6, 0.4, -0.6, 0.4], abs=1e-6)
    assert kl == pytest.approx([0.25] * 5)


def gradients(responses, *, importance="off", **settings):
    """Gradient of the trainer's own loss for each token's log-prob, sample by sample."""
    rows = experiences_of(responses)
    for row, advantage in zip(rows, advantages_of(responses, "dr_grpo")[0], strict=True):
        row.index = None
        row.advantages = torch.full(row.action_mask.shape, advantage)
    batch = Experience.concat_experiences(rows, 0)
    log_probs = torch.full(batch.action_mask.shape, -0.4, requires_grad=True)
    loss = PolicyLoss(is_correction_level=importance, **settings)(
        log_probs, log_probs.detach(), batch.advantages, batch.action_mask, batch.rollout_log_probs
    )[0]
    loss.backward()
    return [g[m.bool()] for g, m in zip(log_probs.grad, batch.attention_mask[:, 1:], strict=True)]


LOSSES = [{"token_level_loss": True}, {"token_level_loss": False}, {"policy_loss_type": "gspo"}]


@pytest.mark.parametrize("loss", LOSSES)
def test_left_out_and_masked_tokens_have_no_gradient(agent_file, loss):
    prompt, at = len(ids_of(PROMPT)), SAID[2].index("Hail")
    dropped = gradients(of_group(agent_file("on_reject='drop'")), **loss)
    assert torch.all(dropped[2] == 0)
    assert all((row[prompt - 1 :] != 0).all() for row in (dropped[0], dropped[1], dropped[3]))
    masked = gradients(of_group(agent_file(own="mask_spans = True")), **loss)[2]
    # A row has one token less than its sequence: the first token has no predecessor.
    flagged = torch.zeros_like(masked).bool()
    flagged[prompt + at - 1 : prompt + at + 3] = True
    assert torch.all(masked[flagged] == 0)
    assert torch.all(masked[prompt - 1 :][~flagged[prompt - 1 :]] != 0)


@pytest.mark.parametrize("bad", [float("nan"), float("-inf"), float("inf")])
def test_invalid_log_probs_do_not_reach_the_loss(agent_file, bad):
    class Claims(SingleTurnAgentExecutor):
        async def execute(self, **given):
            response = await super().execute(**given)
            if "8" in given["hf_tokenizer"].decode(response["observation_tokens"]):
                response["rollout_log_probs"][-3] = bad
            return response

    class AgentExecutor(GuardedAgent, Claims):
        guard = actor(Engine("7"), agent_file("on_reject='zero'")).executor.guard

        def __init__(self):
            super().__init__(str(agent_file().with_name("reward.py")))

    responses = run(actor(Engine(*SAID), executor=AgentExecutor()), 4)
    assert [r["extra_logs"]["guard_left_out"] for r in responses] == [0, 1, 0, 0]
    assert responses[1]["reward"] == pytest.approx(2 / 3)
    for level in ("token", "seq"):
        assert all(torch.isfinite(g).all() for g in gradients(responses, importance=level))


def test_guard_gets_whole_groups_with_ids_and_log_probs(agent_file):
    engine = Engine(*SAID)
    loaded = actor(engine, agent_file())
    responses = run(loaded, 4)
    (batch,) = loaded.executor.guard.verifier.batches
    assert [c.text for c in batch] == list(SAID)
    assert {c.prompt for c in batch} == {PROMPT}
    assert {c.prompt_ids for c in batch} == {tuple(ids_of(PROMPT))}
    assert [c.slot for c in batch] == [0, 1, 2, 3]
    assert len({c.group for c in batch}) == 1
    assert {c.reference for c in batch} == {"7"}
    for completion, response in zip(batch, responses, strict=True):
        start, end = len(ids_of(PROMPT)), len(response["observation_tokens"])
        assert list(completion.completion_ids) == response["observation_tokens"][start:end]
        assert completion.sampler_logprobs == (-0.5,) * (end - start)
        assert completion.finish_reason == "stop"


def test_concurrent_groups_do_not_mix_even_with_one_prompt(agent_file):
    loaded = actor(Engine("It is 7.", "Hail", "It is 8."), agent_file("on_reject='drop'"))

    async def both():
        return await asyncio.gather(*(group(loaded, 3) for _ in range(4)))

    groups = asyncio.run(both())
    batches = loaded.executor.guard.verifier.batches
    assert [len(batch) for batch in batches] == [3] * 4
    assert len({c.group for batch in batches for c in batch}) == 4
    assert all([r["reward"] for r in responses] == [1.0, 0.5, 0.0] for responses in groups)
    assert loaded.executor._siblings._open == {}


def test_one_sample_per_prompt_without_log_probs(agent_file):
    for policy, reward in (("", 0.0), ("on_reject='drop'", 0.0), ("on_reject=-1.0", -1.0)):
        loaded = actor(Engine("Hail"), agent_file(policy))
        (response,) = run(loaded, 1, logprobs=None)
        assert response["reward"] == response["scores"] == reward
        assert loaded.executor.guard.verifier.batches[0][0].sampler_logprobs is None
        assert experiences_of([response])[0].rollout_log_probs is None


def test_lengths_of_a_group_are_compared(agent_file):
    # No names here, so no node's work is a reference, and the cost of length is logged.
    texts = ["It is 7."] * 5 + ["It is 7" + "." * 40]
    for answer in of_group(agent_file("on_long='scale'"), *texts):
        assert answer["reward"] == 1.0
        assert answer["extra_logs"]["guard_length_factor"] == 1.0
        assert answer["extra_logs"]["guard_length_dropped"] == 0.0


def test_logged_lists_of_a_server_match_their_zero_fill(agent_file):
    class Served:
        def __init__(self):
            self.asked = 0

        async def execute(self, **given):
            self.asked += 1
            ids = ids_of(PROMPT + "It is 7.")
            answer = {
                "prompt": PROMPT, "label": "7", "images": None, "mm_train_inputs": None,
                "observation_tokens": ids, "action_ranges": [(len(ids) - 8, len(ids))],
                "rollout_log_probs": None, "truncated": False,
            }  # fmt: skip
            if self.asked == 2:
                return {**answer, "reward": None, "scores": None, "extra_logs": {}}
            logs = {"length": [3.0], "guard_reject": [1.0]}
            return {**answer, "reward": [1.0], "scores": [1.0], "extra_logs": logs}

    class AgentExecutor(GuardedAgent, Served):
        guard = actor(Engine("7"), agent_file("on_reject='zero'")).executor.guard

    responses = run(actor(Engine("7"), executor=AgentExecutor()), 3)
    assert [r["extra_logs"]["length"] for r in responses] == [3.0, 0.0, 3.0]
    assert [r["extra_logs"]["guard_reject"] for r in responses] == [0.0] * 3
    assert advantages_of(responses, "group_norm")[0] == [0.0] * 3


def test_long_prompts_are_passed_as_truncated(agent_file):
    long = PROMPT.replace("3+4?", "x" * 100)
    loaded = actor(Engine("It is 7."), agent_file())
    (response,) = run(loaded, 1, prompt=long)
    (completion,) = loaded.executor.guard.verifier.batches[0]
    assert completion.prompt == long[-len(completion.prompt) :]
    assert 0 < len(completion.prompt) < len(long)
    assert ids_of(completion.prompt) == list(completion.prompt_ids)
    assert response["prompt"] == long


@pytest.mark.parametrize("limit", [2, 30, 200])
def test_sample_without_own_tokens_has_no_empty_mask(agent_file, limit):
    loaded = actor(Engine("It is 7."), agent_file())

    async def nothing(prompt, label, **given):
        ids = ids_of(PROMPT)
        return {
            "prompt": prompt, "label": label, "images": None, "mm_train_inputs": None,
            "observation_tokens": ids, "action_ranges": [], "rollout_log_probs": None,
            "truncated": True, "reward": 1.0, "scores": 1.0, "extra_logs": {},
        }  # fmt: skip

    class Empty:
        execute = staticmethod(nothing)

    class AgentExecutor(GuardedAgent, Empty):
        guard = loaded.executor.guard

    call = AgentExecutor().execute(PROMPT, "7", params(), limit, TOKENIZER, loaded)
    response = asyncio.run(call)
    assert response["reward"] == 0.0
    (row,) = experiences_of([response], max_length=limit)
    assert row.action_mask.sum() == 1


def test_executor_that_would_bypass_its_guard_is_refused(agent_file):
    guarded = actor(Engine("7"), agent_file()).executor
    with pytest.raises(FrameworkError, match=r"AgentExecutor\(GuardedAgent, SingleTurnAgent"):

        class AgentExecutor(SingleTurnAgentExecutor, GuardedAgent):
            guard = guarded.guard

    class Scaled(GuardedAgent, SingleTurnAgentExecutor):
        guard = Guard(guarded.guard.verifier, policy=Policy(on_long="scale"))
        mask_spans = True

    with pytest.raises(FrameworkError, match="choose one of the two"):
        Scaled("reward.py")

    class Unguarded(GuardedAgent, SingleTurnAgentExecutor):
        pass

    with pytest.raises(FrameworkError, match="expected a Guard"):
        Unguarded("reward.py")


def test_rewards_stay_numbers_for_any_executor_result():
    for value in (1, 1.0, [1.0], torch.tensor(1.0), torch.tensor([1.0]), [[torch.tensor(1.0)]]):
        assert number(value) == 1.0
    assert number(None) is None
    assert math.isnan(number(float("nan")))
    for value in ([1.0, 2.0], []):
        with pytest.raises(ValueError, match="expected 1 reward for 1 sample"):
            number(value)
