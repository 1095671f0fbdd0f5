"""SpanReader: one or two models that estimate what share of honest text is as foreign as a span."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo_guard.core.quoting import shown
from grpo_guard.logprob.reader.foreignness import Foreignness, SpanScorer, UnreadError
from grpo_guard.logprob.reader.honest import (
    HonestSpans,
    Vote,
    column_of,
    column_scores,
    start_profile,
)
from grpo_guard.logprob.reader.spans import TextSpan
from grpo_guard.logprob.reference.null import conformal
from grpo_guard.logprob.scorers.base import Scorer
from grpo_guard.logprob.scorers.load import FromPretrained
from grpo_guard.logprob.verifier import scorer_of

logger = logging.getLogger("grpo_guard")


@dataclass(frozen=True, slots=True)
class Opinion:
    """A reader's result for one span."""

    p_value: float  # share of honest spans that are at least as foreign, in (0, 1]
    excused: Vote | None
    """With the node's style excused, for accumulating evidence; None if the p-value comes from the
    start profile, which is no evidence against a node."""


class SpanReader(FromPretrained):
    """Reads spans in context and compares them with what other nodes write.

    Any causal language model will do: the policy in training (the same object, so that it reads
    with its current weights), a small model, or both. A policy that has picked up a little poison
    finds that poison likely. A ``frozen`` model, such as the reference model for the KL term or the
    first checkpoint, never learns it. A span is foreign if either model finds it foreign.

    Args:
        model: A transformers causal language model. Omit it if ``scorer`` is given.
        tokenizer: The model's tokenizer, which must be a fast one.
        frozen: A second model with the same tokenizer, whose weights do not change, or None.
        scorer: Computes log-probs in place of ``model``.
        trust_prompt: Whether the prompt is part of the context. Set this to False if strangers
            write prompts: a prompt that contains the poison would explain it.
        context: Number of tokens read before a span.
        memory_budget: Maximum memory for scoring on top of the weights, in bytes; only with
            ``model``.

    Attributes:
        tokenizer: The tokenizer that was given or loaded with the model.

    Raises:
        ValueError: an argument is out of range, not exactly one of model and scorer is given, or
            the same model is given twice.
        TypeError: a model is not a causal language model, or the tokenizer is missing or cannot
            provide token offsets.

    Examples:
        >>> guard = presets.different_weights(reader=SpanReader(model, tokenizer))
    """

    def __init__(
        self,
        model: Any | None = None,
        tokenizer: Any = None,
        *,
        frozen: Any | None = None,
        scorer: Scorer | None = None,
        trust_prompt: bool = True,
        context: int = 96,
        memory_budget: int | None = None,
    ) -> None:
        if tokenizer is None:
            raise TypeError("tokenizer: expected the reader's tokenizer, got None")
        self.tokenizer = tokenizer
        scorers = [scorer_of(model, scorer, memory_budget)]
        if frozen is not None:
            if not hasattr(frozen, "get_output_embeddings"):
                raise TypeError(f"frozen: expected a causal language model, got {shown(frozen)}")
            scorers.append(scorer_of(frozen, None, memory_budget))
            # A PEFT model and its base model count as the same model, because the base model's
            # layers contain the adapters.
            if getattr(scorers[0], "model", None) is getattr(scorers[1], "model", frozen):
                raise ValueError(
                    "frozen: expected another object than model, got the same one, which learns "
                    "the poison in training; pass a copy from before the first step"
                )
        self.trust_prompt = trust_prompt
        self._models = [
            (SpanScorer(one, tokenizer, context=context), HonestSpans()) for one in scorers
        ]
        self._warned = False

    def read(
        self, spans: Sequence[TextSpan], honest: Sequence[bool]
    ) -> list[Opinion | UnreadError]:
        """Return one opinion per span, in order, or an error for any span a model could not read.

        Spans marked ``honest``, in which nothing was found, are remembered first, so that they are
        part of the measure that all spans are compared with.
        """
        if not spans:
            return []
        if not self.trust_prompt:
            spans = [TextSpan("", s.text, s.start, s.end, s.node) for s in spans]
        columns = [self._column(*model, spans, honest) for model in self._models]
        return [self._either(row) for row in zip(*columns, strict=True)]

    def wanted(self, node: str | None) -> int:
        """Return how many more honest sentences from a node the measure needs."""
        return max(known.wanted(node) for _, known in self._models)

    def _column(
        self,
        scorer: SpanScorer,
        known: HonestSpans,
        spans: Sequence[TextSpan],
        honest: Sequence[bool],
    ) -> list[Opinion | UnreadError]:
        found: list[Foreignness | UnreadError]
        try:
            found = scorer.score(spans)
        except Exception as error:  # a broken model must not abort the batch
            found = [UnreadError(f"{type(error).__name__}: {error!s:.200}")] * len(spans)
        for span, one, clean in zip(spans, found, honest, strict=True):
            if clean and isinstance(one, Foreignness):
                known.add(span.node, one)
        return [
            one if isinstance(one, UnreadError) else _opinion(known, span.node, one)
            for span, one in zip(spans, found, strict=True)
        ]

    def _either(self, row: Sequence[Opinion | UnreadError]) -> Opinion | UnreadError:
        """Return the smaller p-value times the number of models; log the first error."""
        for one in row:
            if isinstance(one, UnreadError):
                if not self._warned:
                    self._warned = True
                    logger.warning("the reader could not read a span: %s", one)
                return one
        known = [one for one in row if isinstance(one, Opinion)]
        excused = [one.excused for one in known if one.excused is not None]
        most = min(excused, key=lambda vote: (not vote.beyond, vote.p_value), default=None)
        return Opinion(
            min(1.0, len(row) * min(one.p_value for one in known)),
            most and Vote(min(1.0, len(row) * most.p_value), most.beyond),
        )


def _opinion(known: HonestSpans, node: str | None, found: Foreignness) -> Opinion:
    vote = known.vote(node, found)
    if vote is None:
        return Opinion(conformal(column_scores(found)[-1], start_profile()[column_of(found)]), None)
    return Opinion(vote.p_value, known.vote(node, found, excused=True))
