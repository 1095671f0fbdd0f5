"""Build presets' verifiers and readers on a model object, or load the model first."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from grpo_guard.core.detokenizer import Detokenizer
from grpo_guard.core.model_paths import missing
from grpo_guard.core.quoting import shown
from grpo_guard.core.verifier import CompletionVerifier

if TYPE_CHECKING:
    from grpo_guard.logprob.reader.reader import SpanReader


def on_model(kind: Any, model: Any, tokenizer: Any, **options: Any) -> CompletionVerifier:
    """Build a log-prob verifier on a model object, or load the model from a folder or by id."""
    if isinstance(model, str | os.PathLike):
        if problem := missing(os.fspath(model)):
            raise ValueError(f"model: {problem}")
        if tokenizer is not None:
            raise TypeError(
                f"tokenizer: expected None with the name of a model, which is loaded with its own, "
                f"got a {type(tokenizer).__name__}. In training, pass the model object that is "
                "trained, not its name: a loaded copy does not learn"
            )
        loaded: CompletionVerifier = kind.from_pretrained(os.fspath(model), **options)
        return loaded
    if _is_tokenizer(model):
        raise TypeError(
            f"model: expected a causal language model, got a tokenizer ({type(model).__name__}); "
            "the order is model, tokenizer, sampling"
        )
    verifier: CompletionVerifier = kind(model, tokenizer, **options)
    return verifier


def _is_tokenizer(value: Any) -> bool:
    return callable(getattr(value, "convert_tokens_to_ids", None))


def reader_of(
    model: Any | str | None, tokenizer: Any, reader: Any | str | None, frozen: Any | None
) -> SpanReader | None:
    """Return the given reader, or a new reader on the given model; None if neither is given."""
    if model is not None and reader is not None:
        raise TypeError("reader: expected None together with model, since either is the reader")
    given = reader if model is None else model
    if _is_tokenizer(given):
        raise TypeError(
            f"model: expected a causal language model, got a tokenizer ({type(given).__name__}); "
            "the order is model, tokenizer"
        )
    if given is None:
        if frozen is not None:
            raise TypeError("frozen: expected None if there is no other reader")
        return None
    from grpo_guard.logprob.reader.reader import SpanReader

    if not isinstance(given, SpanReader | str | os.PathLike) and not callable(given):
        name = "reader" if model is None else "model"
        raise TypeError(f"{name}: expected a model, or its folder or id, got {shown(given)}")
    if isinstance(given, str | os.PathLike):
        return SpanReader.from_pretrained(os.fspath(given), frozen=frozen)
    if not isinstance(given, SpanReader):
        own = tokenizer.tokenizer if isinstance(tokenizer, Detokenizer) else tokenizer
        return SpanReader(given, own, frozen=frozen)
    if frozen is not None:
        raise TypeError("frozen: expected None with a SpanReader, which takes its own")
    return given
