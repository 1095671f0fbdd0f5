"""verl whose rollouts draw under the public coin: each answer is its slot's one honest completion.

    +actor_rollout_ref.rollout.agent.agent_loop_manager_class=verl_coin_seeds.CoinManager

verl hands sampling parameters to the inference server request by request; this adds the slot's
seed to them. The verifier gets `coin=COIN`, `ME` among its nodes, and verl's `rollout.n` as
`slots=`.

SGLang runs with `--enable-deterministic-inference` and without top-k, top-p and min-p. vLLM needs
Model Runner V2, or `CoinProcessor`; `docs/seed-replay.md` says what each can and cannot replay.
"""

from typing import Any

import ray

from grpo_guard.adapters.verl.agent_loop import GuardedAgentLoopManager, GuardedAgentLoopWorker
from grpo_guard.logprob import noise
from grpo_guard.logprob.coin import PublicCoin

COIN = PublicCoin("my-run")
ME = "alice"  # this node's name, fixed when it joined


def seeded(seed: int) -> dict[str, Any]:
    """What the server is asked: here vLLM with Model Runner V2.

    SGLang: `{"sampling_seed": noise.signed(seed)}`.
    vLLM with `CoinProcessor`: `{"extra_args": {"grpo_guard_seed": seed}}`.
    """
    return {"seed": noise.signed(seed)}


class CoinWorker(GuardedAgentLoopWorker):
    """Gives every training rollout the seed of its slot; validation samples as it likes."""

    async def _run_agent_loop(
        self, sampling_params: dict[str, Any], trajectory: dict[str, Any], **row: Any
    ) -> Any:
        if not trajectory["validate"]:
            seed = COIN.seed(
                round=int(trajectory["step"]),
                node=ME,
                slot=int(row["session_id"]),  # which of a prompt's answers this is
                prompt=list(row["raw_prompt"]),
            )
            # A copy: the answers to a prompt share what they are handed.
            sampling_params = sampling_params | seeded(seed)
        return await super()._run_agent_loop(sampling_params, trajectory, **row)


class CoinManager(GuardedAgentLoopManager):
    """verl's manager of agent loops, with workers under the coin."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.agent_loop_workers_class = ray.remote(CoinWorker)
