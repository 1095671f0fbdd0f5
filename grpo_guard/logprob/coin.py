"""The public coin, which assigns a seed and a prompt to each slot.

Every completion that a node may send fills a slot: (run, round, node, slot). The seed is a keyed
hash of the slot and the prompt, so each slot has exactly one honest completion, and anyone can
compute it. Slots are numbered without gaps and names are fixed when a node joins, so nobody can
pick the run, node or slot to suit a completion. Someone who knows a round's weights in advance
could still try out names and slots, unless the seed also depends on a beacon: a public value,
revealed only when the round begins, that its publisher must not be able to choose. Nodes can still
leave slots empty (receivers must count them), and an operator with several names gets that many
more slots: who may join is decided elsewhere.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

MOST_FIELD_BYTES = 64  # maximum size of a BLAKE2b key


@dataclass(frozen=True, slots=True)
class PublicCoin:
    """Assigns the seeds and prompts of one run.

    Args:
        run: Name of the run, such as ``"run-7"``; not empty. The name keys the hash, so different
            runs have different seeds.
        beacons: A public value per round, revealed when the round begins, or None if the run uses
            no beacons. The mapping can grow during use.

    Raises:
        ValueError: the name is empty or not valid Unicode, or a beacon is not text.
    """

    run: str
    beacons: Mapping[int, str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.run, str) or not self.run:
            raise ValueError(f"run: expected a name, got {self.run!r}")
        try:
            self.run.encode()
        except UnicodeEncodeError:
            raise ValueError(f"run: expected Unicode, got {self.run!r}") from None
        for round, beacon in (self.beacons or {}).items():
            if not isinstance(beacon, str):
                raise ValueError(f"beacons[{round!r}]: expected text, got {beacon!r:.80}")

    def seed(
        self, *, round: int, node: str, slot: int, prompt: str | Sequence[Mapping[str, Any]]
    ) -> int:
        """Return the seed for a slot's only honest completion, 0 <= seed < 2^64.

        Rounds and slots are numbered from 0 without gaps; the node's name was fixed when it joined.

        Raises:
            KeyError: the run uses beacons and this round's beacon is not known.
            ValueError: round or slot is negative.
        """
        return self._hash(b"grpo-guard seed", round, node, slot, canonical(prompt))

    def prompt_index(self, *, round: int, node: str, slot: int, prompts: int) -> int:
        """Pick one of ``prompts`` prompts for a slot, in runs where nodes do not share prompts.

        Without this, a node could pick the prompts that best suit its poison.

        Raises:
            KeyError, ValueError: as for `seed`; ValueError also if ``prompts`` is below 1.
        """
        if prompts < 1:
            raise ValueError(f"prompts: expected an integer >= 1, got {prompts!r}")
        drawn = self._hash(b"grpo-guard task", round, node, slot, b"")
        return drawn * prompts >> 64  # a bias of at most prompts / 2^64

    def _hash(self, domain: bytes, round: int, node: str, slot: int, rest: bytes) -> int:
        for name, value in (("round", round), ("slot", slot)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"{name}: expected an integer >= 0, got {value!r}")
        beacon = "" if self.beacons is None else self.beacons[round]
        key = blake2b(self.run.encode(), digest_size=MOST_FIELD_BYTES).digest()
        # `person` separates the domains, so a seed reveals nothing about the prompt drawn.
        h = blake2b(key=key, digest_size=8, person=domain)
        for part in (b"%d" % round, node.encode(), b"%d" % slot, beacon.encode(), rest):
            # Each part is length-prefixed: ("ab", "c") and ("a", "bc") must hash differently.
            h.update(len(part).to_bytes(8, "little"))
            h.update(part)
        return int.from_bytes(h.digest(), "little")


def canonical(prompt: str | Sequence[Mapping[str, Any]]) -> bytes:
    """Encode a prompt as bytes so that text and messages never collide; key order is ignored."""
    if isinstance(prompt, str):
        return b"text:" + prompt.encode()
    messages = [dict(message) for message in prompt]
    dumped = json.dumps(messages, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return b"messages:" + dumped.encode()
