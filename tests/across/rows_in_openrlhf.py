"""Compute advantages with OpenRLHF behind a guarded agent; runs in OpenRLHF's environment."""

from pathlib import Path

from openrlhf.utils.agent import SingleTurnAgentExecutor

from grpo_guard.adapters.openrlhf.agent import GuardedAgent
from tests.across.same_rows import SIZE, TEXTS, print_advantages
from tests.openrlhf.openrlhf_parts import Engine, actor, advantages_of, run

REWARDS = "from tests.across.same_rows import reward_func\n"


def executor(reward_file, of_guard):
    if of_guard is None:
        return SingleTurnAgentExecutor(reward_file)

    class AgentExecutor(GuardedAgent, SingleTurnAgentExecutor):
        guard = of_guard

    return AgentExecutor(reward_file)


def advantages(folder, guard, scaled):
    reward_file = Path(folder) / "reward.py"
    reward_file.write_text(REWARDS)
    responses = []
    for start in range(0, len(TEXTS), SIZE):
        engine = Engine(*TEXTS[start : start + SIZE])
        responses += run(actor(engine, executor=executor(str(reward_file), guard)), SIZE)
    return advantages_of(responses, "group_norm" if scaled else "dr_grpo", n=SIZE)[0]


print_advantages(advantages)
