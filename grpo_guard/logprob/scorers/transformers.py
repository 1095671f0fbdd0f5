"""Score completions with a transformers model: one pass of its body, then its head in tiles."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.kernels.head_stats import HeadStats, head_stats
from grpo_guard.logprob.kernels.product import faster_linear
from grpo_guard.logprob.kernels.scores import HeadError, RepetitionPenalty, head_of, scores_of
from grpo_guard.logprob.kernels.support import whole_rows
from grpo_guard.logprob.replay.margins import Replay, rows_of
from grpo_guard.logprob.scorers.base import OutOfMemoryError
from grpo_guard.logprob.scorers.forward import (
    Crowding,
    SharedPrompts,
    body_of,
    cpu_threads,
    eval_mode,
    forget_lengths,
    row_states,
)
from grpo_guard.logprob.scorers.memory import (
    FEWEST_HEAD_ROWS,
    Job,
    MemoryPlan,
    plan_jobs,
    ran_out_of_memory,
    release_cached_memory,
    unscaled_length,
)
from grpo_guard.logprob.stats import TokenStats

# Maximum relative difference between the tiled head and the model's own logits.
HEAD_TOLERANCE = 2e-2


class TransformersScorer:
    """Computes per-token statistics under a causal language model.

    The model is used as it is at the time of the call: pass the object being trained, and every
    round is verified with that round's weights. During the call the model is in eval mode, because
    dropout would look like drift.

    Args:
        model: A transformers causal language model.
        memory_budget: Memory for batches and tiles on top of the weights, in bytes, at least 1 MiB;
            a sequence estimated to exceed it by itself is not scored. None for a quarter of the
            memory free at the time of the call, up to 4 GiB.
        shared_prompts: Run each prompt once for all its completions if that saves work.
        threads: Maximum number of CPU threads for scoring, at least 1, or None for torch's own
            setting.

    Raises:
        HeadError: the model has no output head.
        ValueError: the budget is implausibly small, or the model is a PEFT model with prompt
            learning.
    """

    replays = True

    def __init__(
        self,
        model: Any,
        *,
        memory_budget: int | None = None,
        shared_prompts: bool = True,
        threads: int | None = None,
    ) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads: expected an integer >= 1 or None, got {threads!r}")
        if memory_budget is not None and memory_budget < 2**20:
            raise ValueError(
                f"memory_budget: expected bytes >= 1048576 or None, got {memory_budget!r}"
            )
        # PEFT injects its adapters into the base model, which scores like any other model.
        _refuse_prompt_learning(model)
        self._given = model
        self.model: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.memory_budget = memory_budget
        self.threads = threads
        self._crowding = Crowding()
        self._shared = SharedPrompts(shared_prompts)
        head_of(self.model)
        self._head_checked = False

    @property
    def vocab_size(self) -> int:
        return head_of(self.model).vocab_size

    @property
    def window(self) -> int | None:
        """Maximum sequence length in tokens, from the model's config."""
        config = self.model.config.get_text_config()
        length = getattr(config, "max_position_embeddings", None)
        return int(length) if length else None

    @property
    def unscaled_length(self) -> int | None:
        """Maximum length at which a sequence's numbers cannot depend on its batch, if limited."""
        return unscaled_length(self.model.config.get_text_config())

    def identity(self) -> dict[str, str]:
        """Return architecture, engine and dtype, but not the weights, which training changes."""
        config = self.model.config.get_text_config()
        shape = f"{config.num_hidden_layers}x{config.hidden_size}, vocabulary {self.vocab_size}"
        dtype = str(self.model.get_input_embeddings().weight.dtype).removeprefix("torch.")
        return {
            "engine": "transformers",
            "architecture": f"{config.model_type} {shape}",
            "dtype": dtype,
        }

    def score(
        self,
        sequences: Sequence[Encoded],
        spec: SamplingSpec,
        *,
        mass_margin: float = 0.0,
        replay: Replay | None = None,
    ) -> list[TokenStats]:
        """Compute the statistics of each completion's tokens, in the order of ``sequences``.

        With ``replay`` every sequence needs a seed, and the statistics have replay margins.

        Raises:
            OutOfMemoryError: a sequence does not fit into memory even on its own.
            HeadError: the model's logits are not those of its output head, or some of them are NaN
                (a ValueError; detected on the first call).
            ValueError: prompt learning has become the PEFT model's active adapter.
        """
        results: dict[int, TokenStats] = {}
        asked = Asked(spec, mass_margin, replay)
        watched = self._crowding.watched(self.model)
        with eval_mode(self.model), cpu_threads(self.threads), watched:
            self._check_head()
            plan = MemoryPlan.of(self.model, self.memory_budget)
            _require_room(sequences, plan)
            together = self.unscaled_length
            jobs = plan_jobs(sequences, plan, share=self._shared.enabled, together=together)
            while jobs:
                job = jobs.pop()
                results.update(self._run(job, sequences, asked, plan))
        return [results[i] for i in range(len(sequences))]

    def plain_states(self, sequence: Encoded) -> Tensor:
        """Return the hidden states that predict one completion's tokens, [n, H]; raises as `score`
        does for a model that cannot be scored."""
        with eval_mode(self.model):
            self._check_head()
            body = body_of(self.model)
            with faster_linear(body):
                return row_states(body, [sequence], self.device)

    def _run(
        self, job: Job, sequences: Sequence[Encoded], asked: "Asked", plan: MemoryPlan
    ) -> dict[int, TokenStats]:
        """Run a job; whenever memory runs out, split it into halves with smaller sizes."""
        chosen = [sequences[i] for i in job.indices]
        try:
            stats = self._score(chosen, job.shared, asked, plan)
            return dict(zip(job.indices, stats, strict=True))
        except Exception as error:
            if not ran_out_of_memory(error):
                raise
            reason = f"{type(error).__name__}: {str(error)[:200]}"
        release_cached_memory()  # outside the except block, whose traceback keeps the tensors alive
        smaller = plan.halved()
        if len(job.indices) == 1 and smaller.head_rows < FEWEST_HEAD_ROWS:
            raise OutOfMemoryError(
                f"no room to score {len(chosen[0].completion_ids)} tokens: {reason}"
            )
        results = {}
        for part in job.halves():
            results.update(self._run(part, sequences, asked, smaller))
        return results

    def _score(
        self, sequences: Sequence[Encoded], shared: bool, asked: "Asked", plan: MemoryPlan
    ) -> list[TokenStats]:
        body, device = body_of(self.model), self.device
        if self.unscaled_length is not None:
            forget_lengths(body, device)
        states_of = self._shared.states if shared else row_states
        with faster_linear(body):
            hidden = states_of(body, sequences, device)
        return self.stats_of(hidden, sequences, asked, plan.head_rows)

    def stats_of(
        self, hidden: Tensor, sequences: Sequence[Encoded], asked: "Asked", head_rows: int
    ) -> list[TokenStats]:
        """Compute statistics from hidden states that predict the sequences' tokens, [N, H]."""
        head, device, spec = head_of(self.model), self.device, asked.spec
        pairs = [(s.prompt_ids, s.completion_ids) for s in sequences]
        targets = torch.tensor([t for _, ids in pairs for t in ids], device=device)
        penalty = RepetitionPenalty.of(spec.repetition_penalty, pairs, head.vocab_size, device)
        stats = head_stats(
            hidden,
            head,
            targets,
            spec,
            penalty=penalty,
            mass_margin=asked.mass_margin,
            rows_at_once=head_rows,
            replay=rows_of(asked.replay, sequences, device) if asked.replay else None,
        )
        return split(stats, [len(ids) for _, ids in pairs])

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device

    def _check_head(self) -> None:
        """Require the tiled head to reproduce the model's own logits; unknown transforms fail."""
        _refuse_prompt_learning(self._given)  # the active adapter may have changed
        if self._head_checked:
            return
        head = head_of(self.model)
        ids = torch.arange(min(4, head.vocab_size), device=self.device)[None]
        # Trainers wrap this object's `forward` in mixed precision; use the class's own, to compare
        # like with like.
        forward = type(self.model).forward
        expected = forward(self.model, input_ids=ids, use_cache=False).logits[0].float()
        states = body_of(self.model)(input_ids=ids, use_cache=False).last_hidden_state[0]
        rows = torch.arange(len(states), device=self.device)
        own = whole_rows(scores_of(states, head, 1.0, None), rows)
        if bool(own.isnan().all() and expected.isnan().all()):
            return  # broken weights: all logits are NaN, and a later call checks the head
        # Equal infinities (tokens masked by their bias) do not count as a difference, but NaN
        # always does. If NaN passed, a single masked token would hide any transform of all the
        # others.
        error = (own - expected).abs().masked_fill(own == expected, 0.0).max().item()
        scale = expected.masked_fill(~expected.isfinite(), 0.0).abs().max().item()
        if not error <= HEAD_TOLERANCE * max(1.0, scale):
            raise HeadError(
                f"{type(self.model).__name__}: its logits are not those of its output head "
                f"(largest difference {error:.3g} at scale {scale:.3g}); this architecture "
                "transforms them in a way that is not supported"
            )
        self._head_checked = True


@dataclass(frozen=True, slots=True)
class Asked:
    """The parameters of one call to `TransformersScorer.score`."""

    spec: SamplingSpec
    mass_margin: float
    replay: Replay | None


def split(stats: HeadStats, lengths: Sequence[int]) -> list[TokenStats]:
    """Split the rows of all sequences into one TokenStats per sequence."""
    columns = {**stats.rows._asdict(), "edge_gap": stats.edge_gap}
    if stats.margins is not None:
        columns |= {"replay_margin": stats.margins.margin, "replay_token": stats.margins.drawn}
    arrays = {
        name: (column.double() if column.is_floating_point() else column).cpu().numpy()
        for name, column in columns.items()
    }
    ends = torch.tensor(lengths).cumsum(0).tolist()
    return [
        TokenStats(**{name: array[end - n : end] for name, array in arrays.items()})
        for end, n in zip(ends, lengths, strict=True)
    ]


def _require_room(sequences: Sequence[Encoded], plan: MemoryPlan) -> None:
    """Refuse a sequence that alone is estimated to exceed the budget set by the user."""
    room = min(plan.forward_tokens, plan.cache_tokens)
    longest = max((len(s.prompt_ids) + len(s.completion_ids) for s in sequences), default=0)
    if plan.strict and longest > room:
        raise OutOfMemoryError(
            f"a sequence of {longest} tokens exceeds the {room} that the memory budget allows"
        )
    if plan.strict and plan.head_rows < FEWEST_HEAD_ROWS:
        raise OutOfMemoryError(
            f"the memory budget leaves room for {plan.head_rows} rows of scores, fewer than "
            f"{FEWEST_HEAD_ROWS}"
        )


def _refuse_prompt_learning(model: Any) -> None:
    """Refuse prompt learning. Scoring never calls the PEFT model's own forward, which adds virtual
    tokens, so the numbers would be the base model's, and honest work would look forged."""
    config = getattr(model, "active_peft_config", None)
    if getattr(config, "is_prompt_learning", False):
        raise ValueError(
            f"{type(config).__name__}: expected an adapter inside the model (such as LoRA), got "
            "prompt learning, which is not supported"
        )
