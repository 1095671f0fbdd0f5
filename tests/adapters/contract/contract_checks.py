"""All contract checks by name: the public functions of the two modules that define them."""

import inspect

from tests.adapters.contract import contract_guard_checks, contract_reward_checks

CHECKS = {
    name: value
    for module in (contract_guard_checks, contract_reward_checks)
    for name, value in vars(module).items()
    if inspect.isfunction(value)
    and value.__module__ == module.__name__
    and not name.startswith("_")
}
