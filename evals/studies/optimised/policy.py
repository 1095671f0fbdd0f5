"""A bundled policy with a sampler: honest samples, continuations, and verifiers of its weights."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from grpo_guard.core.completion import Completion
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.defences.paper import PaperLogitVerifier
from grpo_guard.evals.policies.bundled import load_bundled
from grpo_guard.evals.studies.shared_scores import SharedScores
from grpo_guard.evals.swarm.generate import sample
from grpo_guard.evals.tasks.base import Problem
from grpo_guard.evals.tasks.registry import load_task
from grpo_guard.logprob.bounds import LogProbBoundVerifier
from grpo_guard.logprob.scorers.transformers import TransformersScorer
from grpo_guard.logprob.tail import TailProbabilityVerifier

LONGEST: Final = 96
ALPHA: Final = 1e-3
_AT_ONCE: Final = 512


class Ground:
    """The setting in which likelihood is attacked.

    Args:
        name: A task whose policy is bundled under the same name.
        top_k: The sampler's, at temperature 1; 0 = no truncation.
        count: Number of right samples to poison.
        honest: Number of further samples, right or wrong.

    Attributes:
        problems, bases: Those to be poisoned, shape [count] each.
        honest: Those on which false positives are counted.
    """

    def __init__(self, name: str, top_k: int, count: int, honest: int) -> None:
        self.model, self.tokenizer = load_bundled(name)
        self.task = load_task(name)
        self.spec = SamplingSpec("transformers", 1.0, top_k, 1.0)
        self._generator = torch.Generator().manual_seed(0)
        rng = random.Random(f"optimised {name}")
        self.honest = self.draw([self.task.sample(rng).prompt for _ in range(honest)])
        drawn = [self.task.sample(rng) for _ in range(8 * count)]
        pairs = zip(drawn, self.draw([problem.prompt for problem in drawn]), strict=True)
        right = [(p, one) for p, one in pairs if self.earns(one, p)][:count]
        self.problems = [problem for problem, _ in right]
        self.bases = [replace(one, reference=problem.answer) for problem, one in right]

    def draw(self, prompts: Sequence[str]) -> list[Completion]:
        """Draw one honest completion for each prompt, with ids."""
        made = []
        for start in range(0, len(prompts), _AT_ONCE):
            made += sample(
                self.model, self.tokenizer, prompts[start : start + _AT_ONCE], 1,
                generator=self._generator, top_k=self.spec.top_k, max_new_tokens=LONGEST,
            )  # fmt: skip
        return [
            Completion(prompt, one.text, prompt_ids=one.prompt_ids, completion_ids=one.ids)
            for prompt, one in zip(prompts, made, strict=True)
        ]

    def continued(self, base: Completion, heads: Sequence[str]) -> list[Completion]:
        """Let the policy finish completions that begin with these heads."""
        prompt, ids = base.prompt_text, base.prompt_ids or ()
        found = []
        for head, one in zip(heads, self.draw([prompt + head for head in heads]), strict=True):
            whole = (*(one.prompt_ids or ()), *(one.completion_ids or ()))
            if whole[: len(ids)] == ids:  # else the tokenizer joined the two
                own = whole[len(ids) :]
                found.append(replace(base, text=head + one.text, completion_ids=own))
        return found

    def earns(self, one: Completion, problem: Problem) -> bool:
        """Whether a completion ends on its own and is right."""
        ended = (one.completion_ids or (0,))[-1] == self.tokenizer.eos_token_id
        return ended and self.task.reward(one.text, problem.answer) > 0

    def verifiers(self, node_alpha: float = 0.0) -> dict[str, CompletionVerifier]:
        """New ones by name, which share one pass over the weights."""
        options: dict[str, Any] = {
            "tokenizer": self.tokenizer, "sampling": self.spec, "alpha": ALPHA,
            "scorer": SharedScores(TransformersScorer(self.model)), "profile": "float32",
        }  # fmt: skip
        found: dict[str, CompletionVerifier] = {
            "logprob_bound": LogProbBoundVerifier(node_alpha=node_alpha, key=b"study", **options),
            "tail_probability": TailProbabilityVerifier(**options),
        }
        if self.spec.top_k:
            found["paper_logit"] = PaperLogitVerifier(self.model, k=self.spec.top_k)
        return found
