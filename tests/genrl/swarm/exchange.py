"""How the nodes of a swarm communicate: in one process, or through hivemind on loopback."""

import random
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgpack
import torch
from genrl.communication.local.null_comm import NullCommunicationBackend
from genrl.serialization.msgpack_utils import _msgpack_decode, _msgpack_encode


class Turns:
    """Lets one node compute at a time, with its own random numbers, so that runs are repeatable
    and nodes that train on the same trees keep the same weights.
    """

    def __init__(self, seed: int) -> None:
        self._lock, self._seed = threading.Lock(), seed
        self._step: Counter[str] = Counter()

    def take(self, name: str) -> None:
        self._lock.acquire()
        self._step[name] += 1
        torch.manual_seed(random.Random(f"{self._seed} {self._step[name]}").getrandbits(62))

    def give(self, name: str) -> None:
        del name
        self._lock.release()


class Table:
    """Where the nodes of one process put what they send."""

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
        self.turns.give(self.name)
        self.table.barrier.wait(300)
        sent = dict(self.table.sent)
        self.table.barrier.wait(300)  # no node may send again before all have read
        self.turns.take(self.name)
        return {
            name: msgpack.unpackb(data, object_hook=_msgpack_decode, strict_map_key=False)
            for name, data in sent.items()
        }
