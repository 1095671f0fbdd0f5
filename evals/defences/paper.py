"""The paper's logit check as published, for comparison (arXiv 2511.09780, section 5)."""

from collections.abc import Sequence
from typing import Any

import torch

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Finding, Verdict, accept, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.swarm.grpo import Weighted, collate

_AT_ONCE = 64


def outside_top_k(
    model: Any, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], k: int
) -> list[int]:
    """Count, for each completion, the tokens that are not among the model's ``k`` most likely.

    For such a token, at least ``k`` other tokens have strictly higher logits.

    All pairs (prompt, completion) of ids are scored in a single forward pass.
    """
    if not pairs:
        return []
    ids, mask = collate([Weighted(prompt, own, 0.0) for prompt, own in pairs], model.device)
    with torch.inference_mode():
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        chosen = logits.gather(-1, ids[:, 1:, None])
        outside = ((logits > chosen).sum(dim=-1) >= k) & mask
    counts: list[int] = outside.sum(dim=1).tolist()
    return counts


class PaperLogitVerifier(CompletionVerifier):
    """Accepts a completion only if every token is in the verifier's own top ``k``.

    There is no tolerance for numerical noise, because the paper does not state one. Nor does it say
    how completions without ids are treated, so ids are required here.
    """

    name = "paper_logit"
    reads_text = False

    def __init__(self, model: Any, *, k: int = 50) -> None:
        self.model, self.k = model, k

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        verdicts: list[Verdict] = []
        for start in range(0, len(batch), _AT_ONCE):
            verdicts += self._part(batch[start : start + _AT_ONCE])
        return verdicts

    def _part(self, batch: Sequence[Completion]) -> list[Verdict]:
        if any(not c.prompt_ids or not c.completion_ids for c in batch):
            raise ValueError("paper_logit: expected token ids for every completion")
        pairs = [(c.prompt_ids or (), c.completion_ids or ()) for c in batch]
        return [self._verdict(count) for count in outside_top_k(self.model, pairs, self.k)]

    def _verdict(self, outside: int) -> Verdict:
        if not outside:
            return accept(self.name)
        finding = Finding("outside_top_k", f"{outside} tokens outside the top {self.k}")
        return reject(self.name, findings=(finding,))
