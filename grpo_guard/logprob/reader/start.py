"""The start profile: how foreign honest sentences usually are, until a batch supplies its own.

A guard that has read fewer than twenty sentences of two other nodes has no measure yet, and among
senders without names it never has one: a few of them could shift it unseen. It must not accept an
odd form only because it is early, nor reject one that any model writes. The profile is
the distribution of `Foreignness` over sentences of public answers by many models, read by
SmolLM2-135M. The scale is nats beyond what the context explains, which depends little on the
reader; a profile decides about flagged spans alone and is never evidence against a node.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Final

FILE: Final = "start_profile.json"


@cache
def start_profile() -> tuple[tuple[float, ...], ...]:
    """Scores of honest sentences in ascending order, a tuple per column of `HonestSpans`."""
    text = files("grpo_guard.logprob.reader").joinpath(FILE).read_text("utf-8")
    return tuple(tuple(column) for column in json.loads(text)["columns"])
