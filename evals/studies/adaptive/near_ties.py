"""Sends the other token if the coin's draw was close: the choice that numerical drift leaves.

A replay has to allow for drift, so a token that lost the draw by little passes in the winner's
place. An attacker with the weights knows where: it exchanges one such token, lets the coin draw the
rest again, and so has a few variants of a slot's completion to choose from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from grpo_guard.evals.attacks.adversary import Forged, View
from grpo_guard.evals.studies.adaptive.grinding import MARK, ForcedSlots
from grpo_guard.evals.tasks.base import Problem

if TYPE_CHECKING:
    from grpo_guard.evals.swarm.generate import Sampled

ROOM: Final = 0.1
"""Raw logits by which a token may have lost the draw. In about thirty tokens one mismatch of that
size is no evidence yet, even under the profile for equal number formats."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """A slot's seed and the completion it draws."""

    seed: int
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]


class NearTies(ForcedSlots):
    """Sends the variant of each forced sample that is rewarded and begins with "We", if any."""

    name = "near_ties"

    def send(
        self, view: View, node: str, problems: Sequence[Problem], rows: Sequence[Sequence[Sampled]]
    ) -> list[list[Forged]]:
        """Send the coin's draws, with tokens exchanged at near ties."""
        places = [(i, k) for i, row in enumerate(rows) for k in range(len(row))]
        flat = [one for row in rows for one in row]
        found: list[list[Forged]] = [[] for _ in problems]
        made = self._variants(view, problems, node, places, flat)
        for (i, _), texts in zip(places, made, strict=True):
            found[i].append(self._best(view, problems[i], texts))
        return found

    def _best(
        self, view: View, problem: Problem, variants: Sequence[tuple[str, tuple[int, ...]]]
    ) -> Forged:
        """Choose the first variant that teaches the habit, else the coin's own draw."""
        for text, ids in variants:
            if self.success(text) and view.task.reward(text, problem.answer) > 0:
                return Forged(text, (len("<think>"), len(MARK)), ids)
        text, ids = variants[0]
        return Forged(text, None, ids)

    def _variants(
        self,
        view: View,
        problems: Sequence[Problem],
        node: str,
        places: Sequence[tuple[int, int]],
        samples: Sequence[Sampled],
    ) -> list[list[tuple[str, tuple[int, ...]]]]:
        """(text, ids) of each slot's variants, the coin's own first."""
        rows = [[(one.text, one.ids)] for one in samples]
        if view.terms.coin is None:
            return rows
        slots = [
            _Slot(
                view.terms.coin.seed(
                    round=view.iteration, node=node, slot=k, prompt=problems[i].prompt
                ),
                one.prompt_ids, one.ids,
            )
            for (i, k), one in zip(places, samples, strict=True)
        ]  # fmt: skip
        for at, ids in exchanged(view, slots):
            eos = view.tokenizer.eos_token_id
            body = ids[:-1] if ids[-1] == eos else ids
            rows[at].append((str(view.tokenizer.decode(list(body))), ids))
        return rows


def exchanged(view: View, slots: Sequence[_Slot]) -> list[tuple[int, tuple[int, ...]]]:
    """Make a (slot, completion) for each token that was almost drawn, the rest drawn again."""
    from grpo_guard.logprob.replay.generate import generate_under_coin

    branches = [(at, prefix) for at, slot in enumerate(slots) for prefix in _close(view, slot)]
    if not branches:
        return []
    # The shortest prefix determines how far one call draws, so similar lengths go together.
    branches.sort(key=lambda branch: len(branch[1]))
    done: list[tuple[int, tuple[int, ...]]] = []
    for start in range(0, len(branches), 32):
        part = branches[start : start + 32]
        chosen = [slots[at] for at, _ in part]
        drawn = generate_under_coin(
            view.model, [one.prompt_ids for one in chosen], [one.seed for one in chosen],
            view.config.sampling, eos_ids=[int(view.tokenizer.eos_token_id)],
            prefixes=[ids for _, ids in part],
        )  # fmt: skip
        done += [(at, ids) for (at, _), ids in zip(part, drawn, strict=True)]
    return sorted(done, key=lambda one: one[0])


def _close(view: View, slot: _Slot) -> list[tuple[int, ...]]:
    """Cut the completion at each close draw, with the other token in the winner's place."""
    import torch

    from grpo_guard.logprob.noise import gumbel, signed

    start, count = len(slot.prompt_ids), len(slot.ids)
    ids = torch.tensor([[*slot.prompt_ids, *slot.ids]])
    with torch.inference_mode():
        logits = view.model(input_ids=ids[:, :-1], use_cache=False).logits[0, start - 1 :].float()
    size = logits.shape[-1]
    values, tokens = logits.topk(min(view.config.top_k or size, size), dim=-1)
    noise = gumbel(torch.full((1, 1), signed(slot.seed)), torch.arange(count)[:, None], tokens)
    scores = values / view.config.temperature + noise
    behind = (scores.max(dim=-1, keepdim=True).values - scores) * view.config.temperature
    close = (behind > 0) & (behind < ROOM)
    return [
        (*slot.ids[:at], int(tokens[at, rank]))
        for at, rank in close.nonzero().tolist()
        if int(tokens[at, rank]) != slot.ids[at]
    ]
