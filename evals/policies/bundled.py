"""The bundled policies, and how to load them."""

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
    # The same task, but with answers of varying length; see `training.policies.wordy_corpus`.
    "word_problems_wordy": _HERE / "word_problems_wordy",
    # Maths solved by programs; see `training.policies.program_corpus`.
    "python_maths": _HERE / "python_maths",
}
"""Folder of each bundled policy by its name."""
TEXTS: Final = "texts.json.gz"
"""File next to the weights with texts like the training's; see `training.policies.texts`."""
TEXTS_EACH: Final = 640
"""Number of texts in the file per variant of the policy."""


def load_bundled(
    name: str = "word_problems", *, device: str = "cpu"
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """Load the model, in float32 and evaluation mode, and the tokenizer of a bundled policy.

    Needs the extra ``torch``. Raises ``KeyError`` for a name that is not in `BUNDLED`.
    """
    if name not in BUNDLED:
        raise KeyError(f"expected one of {', '.join(BUNDLED)}, got {name!r}")
    from grpo_guard.logprob.scorers.load import load_policy

    return load_policy(str(BUNDLED[name]), dtype="float32", device=device)


def texts_of(name: str = "word_problems") -> Callable[[int], Iterator[tuple[str, str]]]:
    """Return a function that yields texts for training a bundled policy further: it takes the
    number of a variant, counted from 1, and yields an endless stream of (prompt, completion) pairs.

    The first variants each have their own `TEXTS_EACH` texts. After those, and for all other
    variants, texts are drawn at random from the whole file.
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
