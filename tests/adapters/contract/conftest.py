import pytest

# The checks stand in no test module, and an assertion that says what it compared is worth having.
pytest.register_assert_rewrite(
    "contract_trainers", "contract_guard_checks", "contract_reward_checks"
)
