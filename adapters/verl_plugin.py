"""verl: the entry point of ``verl.plugins``, which verl loads in each of its processes.

Registers the reward manager ``grpo_guard`` and the advantage estimator ``grpo_guarded``. This
module is nothing but that registration; without verl it cannot be imported.
"""

from verl.experimental.reward_loop.reward_manager import register
from verl.trainer.ppo.core_algos import register_adv_est

from grpo_guard.adapters.verl_advantage import compute_guarded_advantage
from grpo_guard.adapters.verl_manager import GuardedRewardManager

register("grpo_guard")(GuardedRewardManager)
register_adv_est("grpo_guarded")(compute_guarded_advantage)
