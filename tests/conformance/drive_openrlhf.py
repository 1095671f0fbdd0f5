"""Run the cases through OpenRLHF behind a guarded agent; runs in OpenRLHF's environment."""

import tempfile
from importlib.metadata import version
from pathlib import Path

import torch
from openrlhf.utils.agent import SingleTurnAgentExecutor

from grpo_guard.adapters.openrlhf.agent import GuardedAgent
from tests.conformance.conformance_cases import (
    JUDGED,
    OF_A_GROUP,
    SIBLING,
    SIZE,
    print_cells,
    reward_of,
)
from tests.openrlhf.openrlhf_parts import (
    TOKENIZER,
    Engine,
    PolicyLoss,
    actor,
    advantages_of,
    experiences_of,
    run,
)

assert reward_of
REWARDS = """
from tests.conformance.conformance_cases import reward_of

def reward_func(queries, prompts, labels):
    pay = [reward_of(query) for query in queries]
    return {"rewards": pay, "scores": [0.0], "extra_logs": {}}
"""
WRONG_COUNT = """
def reward_func(queries, prompts, labels):
    return {"rewards": [1.0] * 3, "scores": [0.0], "extra_logs": {}}
"""


def responses(texts, guard, reward=REWARDS):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "reward.py"
        file.write_text(reward)
        if guard is None:
            executor = SingleTurnAgentExecutor(str(file))
        else:
            kind = (GuardedAgent, SingleTurnAgentExecutor)
            executor = type("AgentExecutor", kind, {"guard": guard})(str(file))
        done = []
        for start in range(0, len(texts), SIZE):
            engine = Engine(*texts[start : start + SIZE])
            done += run(actor(engine, executor=executor), SIZE)
        return done


def advantages(done):
    """Return the advantage of each row; None if none of its tokens trains."""
    found = advantages_of(done, "dr_grpo", n=SIZE)[0]
    acts = [bool(row.action_mask.any()) for row in experiences_of(done)]
    left = [bool(row.get("extra_logs", {}).get("guard_left_out", 0)) for row in done]
    return [
        None if out or not act else value for value, act, out in zip(found, acts, left, strict=True)
    ]


def cell(texts):
    return lambda guard: {"advantages": advantages(responses(texts, guard))}


def judged(guard):
    found = cell(JUDGED)(guard)
    return found if guard is None else found | {"verdicts": guard.ledger.verdicts}


def batch(guard):
    """Compute the policy's own loss on log-probs equal to the rollout's."""
    done = responses(OF_A_GROUP, guard)
    found = torch.tensor(advantages_of(done, "dr_grpo", n=SIZE)[0])
    log_probs = torch.zeros(SIZE, 1, requires_grad=True)
    loss = PolicyLoss()(log_probs, log_probs.detach(), found[:, None])[0]
    loss.backward()
    rate = [row.get("extra_logs", {}).get("guard_reject") for row in done]
    return {
        "advantages": advantages(done),
        "loss": "finite" if loss.isfinite() else str(float(loss)),
        "moved": float(log_probs.grad.abs().max()),
        "reject_rate": None if None in rate else sum(map(float, rate)) / SIZE,
    }


def wrong_count(guard):
    try:
        responses(SIBLING, guard, WRONG_COUNT)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "asked": 1}
    return {"error": "none", "asked": 1}


CASES = {
    "rejected_sibling": cell(SIBLING),
    "wrong_count": wrong_count,
    "rejected_group": cell([*OF_A_GROUP, *SIBLING]),
    "rejected_batch": batch,
    "judges_zero": judged,
}
ABSENT = {
    "fan_out": "one sequence a rollout, whatever its turns",
    "masked_row": "no correction takes a row out before the advantages",
    "final_token": "rewards are of rows; no token has one",
    "scaffold": "one range of actions a turn, which its agent makes, and no mask that a row brings",
}
print_cells(f"openrlhf {version('openrlhf')}", CASES, ABSENT, tokenizer=TOKENIZER)
