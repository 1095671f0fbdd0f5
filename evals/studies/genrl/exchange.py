"""What the nodes of a swarm talk through: each other in one process, or hivemind on loopback."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import msgpack
import torch
from genrl.communication.local.null_comm import NullCommunicationBackend
from genrl.serialization.msgpack_utils import _msgpack_decode, _msgpack_encode


class Turns:
    """One node computes at a time, with random numbers of its own: a run is the same each time."""

    def __init__(self, seed: int) -> None:
        self._lock, self._seed = threading.Lock(), seed
        self._step: dict[str, int] = {}

    def take(self, name: str) -> None:
        self._lock.acquire()
        step = self._step[name] = self._step.get(name, -1) + 1
        torch.manual_seed(hash_of(f"{self._seed} {name} {step}"))

    def give(self) -> None:
        self._lock.release()


def hash_of(text: str) -> int:
    """A seed."""
    import random

    return random.Random(text).getrandbits(62)


class Table:
    """Where the nodes of one process lay down what they send."""

    def __init__(self, names: Sequence[str]) -> None:
        self.sent: dict[str, bytes] = {}
        self.barrier = threading.Barrier(len(names))


class InProcess(NullCommunicationBackend):  # type: ignore[misc]
    """GenRL's null backend for several nodes: bytes on a table, packed as hivemind's are."""

    def __init__(self, name: str, table: Table, turns: Turns) -> None:
        super().__init__()
        self.name, self.table, self.turns = name, table, turns

    def get_id(self) -> str:
        return self.name

    def all_gather_object(self, obj: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        self.table.sent[self.name] = msgpack.packb(obj, default=_msgpack_encode)
        self.turns.give()
        self.table.barrier.wait(300)
        sent = dict(self.table.sent)
        self.table.barrier.wait(300)  # nobody lays down the next before all have read
        self.turns.take(self.name)
        return {
            name: msgpack.unpackb(data, object_hook=_msgpack_decode, strict_map_key=False)
            for name, data in sent.items()
        }
