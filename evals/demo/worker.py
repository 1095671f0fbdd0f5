"""One run of the demo in a process of its own: train a swarm, tell of each round, return it."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Literal

from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.examples import examples_of, kept
from grpo_guard.policy import Policy
from grpo_guard.sampling import SamplingSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from grpo_guard.evals.swarm.engine import GuardFn, Round


@dataclass(frozen=True, slots=True)
class Job:
    """What one process is to train; everything in it can be pickled."""

    name: Literal["attack-free", "undefended", "guarded"]
    config: SwarmConfig
    alpha: float

    @property
    def attack(self) -> str:
        return "none" if self.name == "attack-free" else "text"

    @property
    def defence(self) -> str:
        return "logprob_bound" if self.name == "guarded" else "none"


@dataclass(frozen=True, slots=True)
class Progress:
    """One finished round, as far as a progress line shows it."""

    iteration: int
    asr: float
    honest_reward: float
    seconds: float


def sampling_spec(config: SwarmConfig) -> SamplingSpec:
    """The sampler that the swarm's nodes declare: the one that they use."""
    return SamplingSpec(
        engine="transformers", temperature=config.temperature, top_k=config.top_k, top_p=1.0,
        max_new_tokens=config.max_new_tokens,
    )  # fmt: skip


def train(job: Job, tell: Callable[[Progress], None] | None = None) -> dict[str, Any]:
    """Train one swarm in this process and return its entry for ``runs`` of results.json."""
    from grpo_guard.evals.attacks.text import TextAttack
    from grpo_guard.evals.policies.bundled import load_bundled
    from grpo_guard.evals.swarm.engine import Swarm
    from grpo_guard.evals.tasks.word_problems import WordProblems

    model, tokenizer = load_bundled()
    attacked = job.attack != "none"
    config = job.config if attacked else replace(job.config, malicious=0)
    swarm = Swarm(
        model, tokenizer, WordProblems(), config,
        attack=TextAttack() if attacked else None,
        guard=_guard(model, tokenizer, job) if job.defence != "none" else None,
    )  # fmt: skip
    started = time.perf_counter()

    def on_round(done: Round) -> None:
        if tell is not None:
            spent = time.perf_counter() - started
            tell(Progress(done.iteration + 1, done.asr, done.honest_reward, spent))

    rounds = swarm.run(on_round)
    return run_record(job, rounds, time.perf_counter() - started)


def run_record(job: Job, rounds: Sequence[Round], seconds: float) -> dict[str, Any]:
    """The rounds as one entry of ``runs``; counts are over the whole run."""
    examples: list[dict[str, Any]] = []
    for done in rounds:
        examples = kept(examples, examples_of(done.iteration, done.shown))
    return {
        "attack": job.attack,
        "defence": job.defence,
        "setting": "horizontal",
        "models": "homogeneous",
        "seed": job.config.seed,
        "asr": [done.asr for done in rounds],
        "honest_reward": [done.honest_reward for done in rounds],
        "mean_tokens": [done.mean_tokens for done in rounds],
        "rejected": {
            "honest": sum(done.rejected_honest for done in rounds),
            "honest_correct": sum(done.rejected_honest_correct for done in rounds),
            "poisoned": sum(done.rejected_poisoned for done in rounds),
        },
        "submitted": {
            "honest": sum(done.honest for done in rounds),
            "honest_correct": sum(done.honest_correct for done in rounds),
            "poisoned": sum(done.poisoned for done in rounds),
        },
        "abstained": sum(done.abstained for done in rounds),
        "seconds": round(seconds, 2),
        "guard_seconds": round(sum(done.guard_seconds for done in rounds), 2),
        "examples": examples,
    }


def work(job: Job, pipe: Connection) -> None:
    """Entry point of the process: sends ``("round", ...)``, then ``("done" | "failed", ...)``."""
    try:
        import torch
        from transformers.utils import logging

        torch.set_num_threads(1)  # two of these share two cores; more threads only get in the way
        logging.disable_progress_bar()
        pipe.send(("done", train(job, lambda progress: _tell(pipe, progress))))
    except BrokenPipeError:
        pass  # nobody listens any more
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))
    finally:
        pipe.close()


def _tell(pipe: Connection, progress: Progress) -> None:
    parent = parent_process()
    if parent is not None and not parent.is_alive():
        raise SystemExit("the process that asked for this run is gone")
    pipe.send(("round", progress))


def _guard(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, job: Job) -> GuardFn:
    """The guard as a trainer would have it, on the very weights that are being trained."""
    from grpo_guard.guard import Guard
    from grpo_guard.logprob.bounds import LogProbBoundVerifier

    verifier = LogProbBoundVerifier(
        model,
        tokenizer,
        sampling=sampling_spec(job.config),
        alpha=job.alpha,
        profile="float32",  # all nodes of this swarm compute in one process, in fp32
    )
    guard = Guard(verifier, policy=Policy(on_reject=job.config.on_reject))
    return lambda batch: guard.review(batch).verdicts
