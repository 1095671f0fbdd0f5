"""The bundled policies, and how to load them."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_HERE: Final = Path(__file__).resolve().parent
WORD_PROBLEMS: Final = _HERE / "word_problems"
BUNDLED: Final = {
    "word_problems": WORD_PROBLEMS,
    # The same task, but its answers differ in length; see `training.policies.wordy_corpus`.
    "word_problems_wordy": _HERE / "word_problems_wordy",
    # Maths solved by programs; see `training.policies.program_corpus`.
    "python_maths": _HERE / "python_maths",
}
"""Folder of each bundled policy by its name."""
TEXTS: Final = "texts.json.gz"
"""Next to the weights: texts like those they were trained on; see `training.policies.texts`."""
TEXTS_EACH: Final = 640
"""How many of them belong to one variant of the policy."""


def load_bundled(
    name: str = "word_problems", *, device: str = "cpu", folder: Path | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return (model in float32 and evaluation mode, tokenizer) of a bundled policy.

    ``folder`` selects a policy of the same kind elsewhere, in place of ``name``. Raises
    ``KeyError`` for a name that is not in `BUNDLED` and ``FileNotFoundError`` if the folder holds
    no policy. Needs the extra ``torch``; both imports wait until the call so that the command
    line's help stays fast.
    """
    if folder is None:
        if name not in BUNDLED:
            raise KeyError(f"expected one of {', '.join(BUNDLED)}, got {name!r}")
        folder = BUNDLED[name]
    if not (folder / "model.safetensors").is_file():
        raise FileNotFoundError(
            f"{folder}: no model.safetensors; train it with training/policies/train.py"
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, use_safetensors=True
    )
    return model.to(device).eval(), tokenizer


def texts_of(name: str = "word_problems") -> Callable[[int], Iterator[tuple[str, str]]]:
    """Texts for training a bundled policy further: variant (from 1) -> (prompt, completion) ...

    The first variants have `TEXTS_EACH` texts of their own. After those, and for further variants,
    texts are drawn again from those of all.
    """
    kept = json.loads(gzip.decompress((BUNDLED[name] / TEXTS).read_bytes()))

    def texts(variant: int) -> Iterator[tuple[str, str]]:
        rng = random.Random(f"texts of variant {variant}")
        for prompt, completion in kept[(variant - 1) * TEXTS_EACH : variant * TEXTS_EACH]:
            yield prompt, completion
        while True:
            prompt, completion = rng.choice(kept)
            yield prompt, completion

    return texts
