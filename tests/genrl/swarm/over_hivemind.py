"""The same swarm over GenRL's hivemind backend, only on this machine's loopback."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import hivemind
import hivemind.utils

from tests.genrl.swarm.exchange import Turns

# GenRL looks for it in a place from which hivemind 1.1.12 has removed it.
hivemind.get_dht_time = hivemind.utils.get_dht_time

from genrl.communication.hivemind import hivemind_backend as genrl_backend  # noqa: E402

TIMEOUT = 300


class OnLoopback(genrl_backend.HivemindBackend):  # type: ignore[misc]
    """GenRL's backend, for nodes that take turns computing; peers get its bytes."""

    turns: Turns | None = None
    name = ""

    def all_gather_object(self, obj: Any) -> Any:
        if self.turns is None:
            return super().all_gather_object(obj)
        self.turns.give(self.name)
        try:
            return super().all_gather_object(obj)
        finally:
            self.turns.take(self.name)


@contextmanager
def backends(names: Sequence[str], turns: Turns | None = None) -> Iterator[Mapping[str, Any]]:
    """Yield a backend for each name; the others find each other through the first."""
    rendezvous, dht = genrl_backend.HivemindRendezvouz, genrl_backend.DHT

    def local(**options: Any) -> Any:
        return dht(**{**options, "host_maddrs": ["/ip4/127.0.0.1/tcp/0"]})

    made: dict[str, Any] = {}
    environment = {"HIVEMIND_WORLD_SIZE": str(len(names))}
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(genrl_backend, "DHT", local),
        mock.patch.object(rendezvous, "set_initial_peers"),
    ):
        try:
            for name in names:
                rendezvous.init(is_master=not made)
                first = [backend.dht for backend in made.values()][:1]
                peers = [str(at) for one in first for at in one.get_visible_maddrs()] or None
                made[name] = OnLoopback(initial_peers=peers, timeout=TIMEOUT)
                made[name].name, made[name].turns = name, turns
            yield made
        finally:
            for backend in made.values():
                backend.dht.shutdown()
