import pytest


@pytest.fixture
def agent_file(tmp_path):
    """Write an agent file as a user would, and return its path."""

    def write(policy="", base="SingleTurnAgentExecutor", own="", ledger="None"):
        reward = tmp_path / "reward.py"
        reward.write_text("from tests.openrlhf.openrlhf_verifiers import graded as reward_func\n")
        path = tmp_path / "agent.py"
        path.write_text(
            "from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor\n"
            "from openrlhf.utils.agent import SingleTurnAgentExecutor\n"
            "from tests.openrlhf.openrlhf_verifiers import FullDisk, Words\n"
            "from grpo_guard import Guard, Policy\n"
            "from grpo_guard.adapters.openrlhf.agent import GuardedAgent\n"
            f"class AgentExecutor(GuardedAgent, {base}):\n"
            f"    guard = Guard(Words(), policy=Policy({policy}), ledger={ledger})\n"
            f"    {own or 'pass'}\n"
            "    def __init__(self):\n"
            f"        super().__init__({str(reward)!r})\n"
        )
        return path

    return write
