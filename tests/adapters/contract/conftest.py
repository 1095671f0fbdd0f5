import pytest

# pytest rewrites asserts in test modules only, and the checks live in other modules.
pytest.register_assert_rewrite(
    *(
        f"tests.adapters.contract.contract_{name}"
        for name in ("trainers", "guard_checks", "reward_checks")
    )
)
