"""Names that other tools use for the fields of a completion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CALLED: Final[Mapping[str, tuple[str, ...]]] = {
    "text": ("completion", "response", "output", "generated_text", "completions"),
    "prompt": ("question", "problem", "query", "messages", "input", "prompts"),
    "reference": ("ground_truth", "gts", "answer", "solution", "target"),
    "round": ("step",),
    "node": ("node_id", "peer", "peer_id", "worker"),
}
"""Field of a completion -> other names for it, most certain first."""
FIELD_CALLED: Final = {name: field for field, names in CALLED.items() for name in names}
"""Other name -> field of a completion."""
