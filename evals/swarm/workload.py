"""Resolves names to the task that a swarm is trained on and the policies that it starts from.

A heterogeneous swarm's models can be variants of one policy with a little extra training: each has
seen other texts of the policy's kind and samples at another temperature, so that weights and habits
differ while all models know the task. Real swarms differ more; see `docs/swarm.md`.
"""

import copy
import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_guard.evals.attacks.adversary import closed
from grpo_guard.evals.policies import named
from grpo_guard.evals.policies.bundled import BUNDLED, texts_of
from grpo_guard.evals.swarm.config import SwarmConfig
from grpo_guard.evals.swarm.grpo import Weighted, accumulate
from grpo_guard.evals.swarm.members import Peer
from grpo_guard.evals.swarm.optimiser import adam
from grpo_guard.evals.tasks.asked import AskedInChat
from grpo_guard.evals.tasks.base import Task
from grpo_guard.evals.tasks.registry import ask_of, load_task

_VARIANTS_LR: Final = 1e-5
"""Learning rate for the extra training that makes nodes differ if their policy is large."""


FACTORS: Final = (1.0, 0.9, 1.1, 0.95, 1.05)
STEPS, BATCH, LR = 20, 32, 3e-4

Texts: TypeAlias = Callable[[int], Iterator[tuple[str, str]]]
"""Called with a variant's number, from 1; yields extra training texts: (prompt, completion)."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Task and policy of a run.

    Args:
        task: Name of the task, one of `TASKS`.
        policy: Name of the policy as in `named.location`; None for the task's own bundled policy. A
            heterogeneous swarm can have several names, separated by commas.
        data: File of problems; if None, see `load_task`.
        calc: Whether the attacker's library is provided; see `load_task`.
        dtype: Number format of a policy that is not bundled.
        device: The training device; not part of a run's identity.
    """

    task: str = "word_problems"
    policy: str | None = None
    data: Path | None = None
    calc: bool = True
    dtype: str = "float32"
    device: str = "cpu"

    @property
    def policies(self) -> tuple[str, ...]:
        """Names of the policies that nodes start from, usually one."""
        if self.policy is None:
            return (named.default_policy(self.task),)
        names = tuple(name.strip() for name in self.policy.split(","))
        if not all(names):
            raise ValueError(f"--policy: expected names separated by commas, got {self.policy!r}")
        return names

    @property
    def bundled(self) -> bool:
        """Whether all policies are the small bundled ones."""
        return all(name in BUNDLED for name in self.policies)

    def identity(self) -> dict[str, Any]:
        """Return JSON values that identify a run; data is identified by content, not by path."""
        return {
            "task": self.task,
            "policy": ",".join(self.policies),
            "data": _digest(self.data) if self.data else None,
            "calc": self.calc if self.task == "python_maths" else None,
            "dtype": "float32" if self.bundled else self.dtype,
        }

    def problems(self) -> Task:
        """Load just the task, without any policy."""
        return load_task(self.task, self.data, calc=self.calc)

    def load(self, config: SwarmConfig) -> tuple[list[Peer], Task]:
        """Load the honest nodes' starting points, and the task in the first policy's format.

        Homogeneous: one policy. Heterogeneous: one for each honest node; the policies are dealt out
        in turn, and nodes that share a policy start from variants of it.
        """
        task = self.problems()
        count = config.honest_nodes if config.models == "heterogeneous" else 1
        rows: list[list[Peer]] = []
        for number, name in enumerate(self.policies[:count]):
            model, tokenizer = named.load(name, dtype=self.dtype, device=self.device)
            if not rows and tokenizer.chat_template:
                task = AskedInChat(task, ask_of(self.task), tokenizer)
            nodes = len(range(number, count, len(self.policies)))
            rows.append(self._alike(name, Peer(model, tokenizer), nodes, config, task))
        turns = [row[i] for i in range(len(rows[0])) for row in rows if i < len(row)]
        return turns, task

    def _alike(
        self, name: str, peer: Peer, nodes: int, config: SwarmConfig, task: Task
    ) -> list[Peer]:
        """Make the starting points of all nodes that share a policy."""
        if config.models == "homogeneous":
            return [peer]
        if name in BUNDLED:
            return variants(
                peer.model, peer.tokenizer, nodes, texts=texts_of(name),
                temperature=config.temperature,
            )  # fmt: skip

        def texts(number: int) -> Iterator[tuple[str, str]]:
            rng = random.Random(f"variant {number}")
            while True:
                problem = task.sample(rng)
                yield problem.prompt, problem.solution

        return variants(
            peer.model, peer.tokenizer, nodes, texts=texts, temperature=config.temperature,
            lr=_VARIANTS_LR, micro_batch=config.micro_batch,
        )  # fmt: skip


def variants(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    count: int,
    *,
    texts: Texts | None = None,
    temperature: float = 1.0,
    steps: int = STEPS,
    lr: float = LR,
    micro_batch: int = BATCH,
) -> list[Peer]:
    """Make ``count`` policies, ``model`` itself first; identical calls give identical weights.

    Args:
        texts: Texts for further training of the others. Defaults to those of the smallest bundled
            policy.
        temperature: Temperature of the first policy; the others' are up to a tenth higher or lower.
        steps: Number of training steps for each of the others.
        lr: Adam's learning rate; the default suits a model with a million parameters.
        micro_batch: Number of texts per forward pass; affects only memory.
    """
    peers = [Peer(model, tokenizer, temperature * FACTORS[0])]
    texts = texts or texts_of()
    for number in range(1, count):
        drawn = _batches(tokenizer, texts(number), steps)
        own = _trained_on(copy.deepcopy(model), drawn, lr, micro_batch)
        peers.append(Peer(own, tokenizer, temperature * FACTORS[number % len(FACTORS)]))
    return peers


def _batches(
    tokenizer: PreTrainedTokenizerBase, texts: Iterator[tuple[str, str]], steps: int
) -> Iterator[list[Weighted]]:
    for _ in range(steps):
        batch = []
        for prompt, text in islice(texts, BATCH):
            asked = tokenizer.encode(prompt, add_special_tokens=False)
            batch.append(Weighted(asked, closed(tokenizer, text), 1.0))
        yield batch


def _trained_on(
    model: PreTrainedModel, batches: Iterator[list[Weighted]], lr: float, micro_batch: int
) -> PreTrainedModel:
    optimizer = adam(model.parameters(), lr=lr)
    for batch in batches:
        optimizer.zero_grad(set_to_none=True)
        accumulate(model, batch, micro_batch)
        optimizer.step()
    model.zero_grad(set_to_none=True)
    return model


def _digest(path: Path) -> str:
    found = path.stat()
    return _digest_of(path, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=16)
def _digest_of(path: Path, size: int, changed: int) -> str:
    """Return a digest of the content; size and time only tell the cache when to read again."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
