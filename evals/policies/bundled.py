"""The policies that ship with the package, and how to load them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

WORD_PROBLEMS: Final = Path(__file__).resolve().parent / "word_problems"
WORDY: Final = WORD_PROBLEMS.with_name("word_problems_wordy")
"""The same task, but the policy's answers differ in length; see `wordy_corpus`."""


def load_bundled(
    device: str = "cpu", *, folder: Path = WORD_PROBLEMS
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return (model in float32 and evaluation mode, tokenizer) of a bundled policy.

    Raises ``FileNotFoundError`` if ``folder`` holds no policy. Needs the extra ``torch``; both
    imports wait until the call so that the command line's help stays fast.
    """
    if not (folder / "model.safetensors").is_file():
        raise FileNotFoundError(
            f"{folder}: no model.safetensors; train it with train_word_problems"
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, use_safetensors=True
    )
    return model.to(device).eval(), tokenizer
