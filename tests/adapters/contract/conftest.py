import pytest

# pytest rewrites asserts in test modules only; the checks are elsewhere.
pytest.register_assert_rewrite(
    *(
        f"tests.adapters.contract.contract_{name}"
        for name in ("trainers", "guard_checks", "reward_checks")
    )
)
