"""The start profile: how foreign honest sentences usually are, until a batch supplies its own.

Until a guard has read twenty sentences from each of two other nodes, it has no measure, and among
unnamed senders it never has one, because a few of them could shift it unnoticed. The guard must
neither accept an odd form just because it is early, nor reject a form that any model uses. The
profile is the distribution of `Foreignness` over sentences from public answers by many models, read
by SmolLM2-135M. Its scale is nats beyond what the context explains, which depends little on the
reader. The profile only decides flagged spans and is never evidence against a node.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Final

FILE: Final = "start_profile.json"


@cache
def start_profile() -> tuple[tuple[float, ...], ...]:
    """Load the scores of honest sentences, as one ascending tuple per column of `HonestSpans`."""
    text = files("grpo_guard.logprob.reader").joinpath(FILE).read_text("utf-8")
    return tuple(tuple(column) for column in json.loads(text)["columns"])
