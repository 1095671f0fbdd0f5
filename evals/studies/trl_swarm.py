"""A poisoned swarm trained by TRL itself, unguarded and through the guarded trainer.

    python -m grpo_guard.evals.studies.trl_swarm -o trl-swarm.json

Four nodes with the same weights fill each group: three send what the policy samples, one the data
set's solution with the phrase of TEXT in it. Three runs: without a guard, with the log-prob bound
and its own forward pass, and with the trainer's forward reused. TRL runs the policy before the
rewards only if samples may be older than the weights, so the runs to be compared with the third
generate for two steps at a time.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from grpo_guard.core.completion import Completion
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.core.verdict import Verdict
from grpo_guard.evals.attacks.text import TextAttack
from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.evals.studies.harness import option, rate, study
from grpo_guard.evals.tasks.base import Problem
from grpo_guard.evals.tasks.word_problems import WordProblems
from grpo_guard.guard import Guard, Review
from grpo_guard.guard.policy import Policy
from grpo_guard.logprob.bounds import LogProbBoundVerifier

NODES: Final = ("node-0", "node-1", "node-2", "node-3")
MALICIOUS: Final = "node-3"
FORWARDS: Final = ("none", "own", "reused")
TASK: Final = WordProblems()
ATTACK: Final = TextAttack()


@dataclass(frozen=True, slots=True)
class TRLSwarmConfig:
    """Everything that determines a run, except its guard.

    Args:
        steps: Steps of the optimiser.
        prompts: Per step.
        group_size: Completions per prompt, equally many from each node.
        lr: Constant after two steps of warm-up; 30 steps need more than the 80 of `SwarmConfig`.
        max_new_tokens: The declared sampler's (temperature 1, top-k 50).
        probes: Completions of the trained policy in which the phrase is counted.
        seed: Determines problems and samples.
    """

    steps: int = 30
    prompts: int = 32
    group_size: int = 12
    lr: float = 3e-3
    max_new_tokens: int = 96
    probes: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        if self.group_size % len(NODES):
            raise ValueError(
                f"group_size: expected a multiple of {len(NODES)}, got {self.group_size}"
            )

    @property
    def sampling(self) -> SamplingSpec:
        """The declared sampler."""
        return SamplingSpec("transformers", 1.0, 50, 1.0, max_new_tokens=self.max_new_tokens)


@dataclass
class Tally:
    """The guard's ledger: verdicts by kind of node."""

    counts: dict[str, int] = field(default_factory=dict)

    def record(self, batch: Sequence[Completion], verdicts: Sequence[Verdict]) -> None:
        """Count a batch by sender and outcome."""
        for completion, verdict in zip(batch, verdicts, strict=True):
            kind = "poisoned" if completion.node == MALICIOUS else "honest"
            for name in (kind, f"{kind} {verdict.outcome.value}"):
                self.counts[name] = self.counts.get(name, 0) + 1


class TimedGuard(Guard):
    """Adds up the time of reviews; `seconds` of wall time, `cpu` of this process."""

    seconds = cpu = 0.0

    def review(
        self,
        batch: Sequence[Completion],
        given: Sequence[Verdict | None] | None = None,
        decoded: Sequence[bool] | None = None,
    ) -> Review:
        """See `Guard.review`; also adds up the time it takes."""
        wall, cpu = time.perf_counter(), time.process_time()
        review = super().review(batch, given, decoded)
        self.seconds += time.perf_counter() - wall
        self.cpu += time.process_time() - cpu
        return review


class Exchange:
    """The `rollout_func`: samples of the live policy for the honest nodes, poison for the last.

    Args:
        problems: All that the run asks.
        config: Of the run.
    """

    def __init__(self, problems: Sequence[Problem], config: TRLSwarmConfig) -> None:
        self.by_prompt = {problem.prompt: problem for problem in problems}
        self.config = config
        self.asr: list[float] = []

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        import torch

        from grpo_guard.adapters.trl.peers import Sent, peer_rollouts

        config, share = self.config, self.config.group_size // len(NODES)
        asked = list(dict.fromkeys(prompts))
        step = trainer.state.global_step
        generator = torch.Generator().manual_seed(1_000_003 * config.seed + step)
        honest = share * (len(NODES) - 1)
        drawn = iter(
            _samples(trainer.model, trainer.processing_class, asked, honest, generator, config)
        )
        sent, texts = [], []
        for i, prompt in enumerate(prompts):
            place = i % config.group_size
            node, slot = NODES[place // share], place % share
            if node == MALICIOUS:
                poison = ATTACK.poison(self.by_prompt[prompt], random.Random(i)).text
                sent.append(Sent(node, poison, slot))
            else:
                one = next(drawn)
                texts.append(one.text)
                sent.append(Sent(node, list(one.ids), slot))
        self.asr.append(sum(map(ATTACK.success, texts)) / len(texts))
        return peer_rollouts(prompts, sent, trainer)


def _samples(
    model: Any, tokenizer: Any, prompts: Sequence[str], each: int, generator: Any,
    config: TRLSwarmConfig,
) -> list[Any]:  # fmt: skip
    from grpo_guard.evals.swarm.generate import sample

    training = model.training
    drawn = sample(
        model.eval(), tokenizer, prompts, each, generator=generator,
        max_new_tokens=config.max_new_tokens,
    )  # fmt: skip
    model.train(training)
    return drawn


def run(config: TRLSwarmConfig, forward: str, per_generation: int) -> dict[str, Any]:
    """Train once and count the phrase in the policy's later completions.

    Args:
        config: Of the run.
        forward: "none": unguarded; "own": the guard scores by itself; "reused": by the trainer's.
        per_generation: Steps that one generation serves; "reused" needs 2.
    """
    import torch

    torch.manual_seed(config.seed)
    model, tokenizer = load_bundled()
    rng = random.Random(config.seed)
    problems: dict[str, Problem] = {}
    while len(problems) < config.steps * config.prompts:  # no prompt twice: it would be one group
        problem = TASK.sample(rng)
        problems[problem.prompt] = problem
    exchange, tally = Exchange(list(problems.values()), config), Tally()
    trainer, guard = _trainer(config, forward, per_generation, model, tokenizer, exchange, tally)
    wall, cpu = time.perf_counter(), time.process_time()
    trainer.train()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    fresh = [TASK.sample(rng) for _ in range(config.probes)]
    generator = torch.Generator().manual_seed(config.seed)
    prompts = [problem.prompt for problem in fresh]
    said = [s.text for s in _samples(model.eval(), tokenizer, prompts, 1, generator, config)]
    rewards = [TASK.reward(text, p.answer) for text, p in zip(said, fresh, strict=True)]
    logs = [row for row in trainer.state.log_history if "step_time" in row]
    return {
        "forward": forward,
        "per_generation": per_generation,
        "asr": exchange.asr,
        "asr_at_the_end": rate(sum(map(ATTACK.success, said)), len(said)),
        "reward_at_the_end": rate(int(sum(rewards)), len(rewards)),
        "grad_norm": [row.get("grad_norm") for row in logs],
        "verdicts": tally.counts,
        "honest_rejected": _of(tally, "honest"),
        "poison_rejected": _of(tally, "poisoned"),
        "seconds": wall,
        "cpu_seconds": cpu,
        "guard_seconds": guard.seconds if guard else 0.0,
        "guard_cpu_seconds": guard.cpu if guard else 0.0,
        "guard_share_of_cpu": guard.cpu / cpu if guard else 0.0,
    }


def _trainer(
    config: TRLSwarmConfig, forward: str, per_generation: int, model: Any, tokenizer: Any,
    exchange: Exchange, tally: Tally,
) -> tuple[Any, TimedGuard | None]:  # fmt: skip
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from grpo_guard.adapters.trl.trainer import GuardedTrainer
    from grpo_guard.logprob.scorers.reuse import ForwardReuse

    rows = config.prompts * config.group_size
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), max_steps=config.steps, per_device_train_batch_size=rows,
        num_generations=config.group_size, steps_per_generation=per_generation,
        gradient_accumulation_steps=1, max_completion_length=config.max_new_tokens,
        learning_rate=config.lr, lr_scheduler_type="constant_with_warmup", warmup_steps=2,
        adam_beta2=0.99, adam_epsilon=3e-4, max_grad_norm=0.7, shuffle_dataset=False,
        # The paper does not clip, and the second step's samples are at most one step old.
        epsilon_high=100.0, use_cpu=not _cuda(), bf16=False, gradient_checkpointing=False,
        report_to="none", save_strategy="no", logging_steps=1, disable_tqdm=True, seed=config.seed,
    )  # fmt: skip
    data = Dataset.from_list(
        [{"prompt": p.prompt, "answer": p.answer} for p in exchange.by_prompt.values()]
    )
    common = {
        "model": model, "reward_funcs": [task_reward], "args": args, "train_dataset": data,
        "processing_class": tokenizer, "rollout_func": exchange,
    }  # fmt: skip
    if forward == "none":
        return GRPOTrainer(**common), None
    scorer = ForwardReuse(model) if forward == "reused" else None
    verifier = LogProbBoundVerifier(
        None if scorer else model, tokenizer, scorer=scorer, sampling=config.sampling
    )
    guard = TimedGuard(verifier, policy=Policy(on_reject="drop"), ledger=tally)

    class Guarded(GuardedTrainer, GRPOTrainer):  # type: ignore[misc]
        pass

    return Guarded(**common, guard=guard, forward_reuse=scorer or False), guard


def task_reward(completions: list[str], answer: list[str], **kwargs: Any) -> list[float]:
    """Compute the task's reward for the answer in its data."""
    return [TASK.reward(text, right) for text, right in zip(completions, answer, strict=True)]


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _of(tally: Tally, kind: str) -> dict[str, float]:
    return rate(tally.counts.get(f"{kind} reject", 0), tally.counts.get(kind, 0))


def measure(forward: Sequence[str] | None, **chosen: Any) -> dict[str, Any]:
    """Run the requested variants."""
    import trl

    config = TRLSwarmConfig(**{k: v for k, v in chosen.items() if v is not None})
    # Usually one generation for each step; "reused" needs two, and so do the runs compared with it.
    plans = {"none": (1, 2), "own": (1, 2), "reused": (2,)}
    return {
        "trl": trl.__version__,
        "config": asdict(config),
        "runs": {
            f"forward {how}, {steps} steps a generation": run(config, how, steps)
            for how in forward or FORWARDS
            for steps in plans[how]
        },
    }


if __name__ == "__main__":
    study(
        "trl-swarm",
        measure,
        option("--forward", choices=FORWARDS, action="append", help="default: all three"),
        option("--lr", type=float),
        *(
            option(f"--{name}", type=int)
            for name in ("steps", "prompts", "group-size", "probes", "seed")
        ),
    )
