"""Checking a share of what nodes send, as defences: `SpotCheck` around `same_weights`.

Newcomers are looked at no more than others: a run is of one share until somebody is caught.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from grpo_guard import presets
from grpo_guard.evals.defences.base import COUNTED, Defence, Ground, VerifierGuard, emptied
from grpo_guard.evals.swarm.members import NodeGuard, Peer
from grpo_guard.guard import Guard
from grpo_guard.spot_checks import SpotCheck

SHARES: Final = (5, 10, 25, 50, 100)
"""In per cent."""


def _sampled(peer: Peer, ground: Ground, *, percent: int) -> NodeGuard:
    profile = "float32" if str(peer.model.dtype) == "torch.float32" else "bfloat16"
    whole = presets.same_weights(
        peer.model, peer.tokenizer, ground.sampling,
        state=emptied(ground.folder), policy=COUNTED, profile=profile, key=ground.key.encode(),
    )  # fmt: skip
    share = percent / 100
    checked = SpotCheck(whole.verifier, share=share, newcomers=share, key=ground.key)
    return VerifierGuard(Guard(checked, policy=COUNTED))


DEFENCES: Final = {
    name: Defence(name, partial(_sampled, percent=percent), per_model=True)
    for percent in SHARES
    for name in (f"spot_checks_{percent}",)
}
"""By name."""
