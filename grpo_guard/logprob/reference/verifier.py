"""ReferenceLikelihoodVerifier: is there a span that does not belong in this text?"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from grpo_guard.core.arguments import require_choice, require_level
from grpo_guard.core.completion import Completion
from grpo_guard.core.p_values import p_text
from grpo_guard.core.scope import Scope
from grpo_guard.core.verdict import Cause, Finding, Verdict, abstain, accept, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.logprob.encoded import encode_batch, memory_without_limit
from grpo_guard.logprob.reference.group import peers_of, relative
from grpo_guard.logprob.reference.null import conformal
from grpo_guard.logprob.reference.profile import (
    BUILT_IN,
    ReferenceProfile,
    needed_for,
    read_profile,
    token_scores,
)
from grpo_guard.logprob.reference.reading import LEAST_TOKENS, Reader, Reading
from grpo_guard.logprob.scorers.base import OutOfMemoryError, Scorer, plain_stats
from grpo_guard.logprob.scorers.load import FromPretrained
from grpo_guard.logprob.verifier import scorer_of

Tail: TypeAlias = Literal["count", "exponential"]


class ReferenceLikelihoodVerifier(FromPretrained, CompletionVerifier):
    """Rejects text with a run of tokens that a small local model finds foreign to its context.

    For heterogeneous swarms, where one node's log-probs mean nothing to another: the reference can
    be any causal language model of your own, whether or not the swarm trains it. The reference
    reads the text with its own tokenizer; token ids from other models are ignored.

    A token's strangeness combines its surprisal and the reference's entropy at that position. The
    strangest run of tokens (CUSUM) is tested and reported as the span.

    The p-value is conformal: counted on n honest completions, and never below 1 / (n + 1). A
    smaller ``alpha`` is refused, because nothing could ever be rejected at that level. With
    ``tail="exponential"``, an exponential fit extends the p-value beyond the calibration set, and
    an ``extrapolated`` finding marks such p-values.

    The group can only excuse: if other nodes' answers to the same prompt are just as foreign, the
    prompt is the reason, not the completion. Runs of three words that also occur in the prompt are
    excused.

    The verifier cannot see poison in words that fit the context (MATH, a bland sentence on the
    subject), text that the attacker's own prompt asks for, or anything in a completion of fewer
    than eight tokens: such completions are accepted with a ``too_short`` finding, because honest
    answers can be that short. For figures, see ``docs/reference-likelihood.md``.

    Args:
        model: The reference, a transformers causal language model; in a guard file its folder or
            id, such as ``org/reference``. Omit it if ``scorer`` is given.
        tokenizer: The tokenizer of the reference; always needed.
        scorer: Computes the statistics in place of ``model``.
        alpha: Maximum share of honest completions that may be rejected, in (0, 1). The built-in
            profile supports 1/240.
        profile: The scores of honest completions: a `ReferenceProfile`, the path of its JSON file
            (`calibrate.calibrated`), or the name of a built-in profile. A profile is valid only for
            the kind of text it was measured on.
        tail: How far p-values reach: ``"count"`` only counts honest completions; ``"exponential"``
            extrapolates beyond them.
        max_new_tokens: Maximum text length in the reference's tokens, or None for the length of its
            context window; longer texts are rejected as OVERLONG. Bounds the cost per completion.
            Tokenizers count differently, so allow 1.5 times what the nodes may send.
        chat_template_kwargs: Arguments for the chat template, for prompts that are messages.
        memory_budget: Maximum memory for scoring on top of the weights, in bytes; only with
            ``model``.
        name: The verifier's name in verdicts, or None for the registered name.

    Raises:
        ValueError: an argument is out of range, not exactly one of model and scorer is given, the
            profile belongs to another reference, or it has too few completions for ``alpha``.
        TypeError: no tokenizer is given.
    """

    name = "reference_likelihood"
    scope: Scope = "batch"  # other nodes' answers to the prompt can excuse a completion
    needs = "a small language model; pip install 'grpo-guard[torch]'"

    def __init__(
        self,
        model: Any | None = None,
        tokenizer: Any = None,
        *,
        scorer: Scorer | None = None,
        alpha: float = 0.01,
        profile: ReferenceProfile | str | Path = BUILT_IN,
        tail: Tail = "count",
        max_new_tokens: int | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        memory_budget: int | None = None,
        name: str | None = None,
    ) -> None:
        require_level("alpha", alpha)
        require_choice("tail", tail, get_args(Tail))
        if tokenizer is None:
            raise TypeError("tokenizer: expected the reference's tokenizer, got None")
        self.name = name or type(self).name
        self.alpha = alpha
        self.tail = tail
        self.reader = Reader(
            tokenizer,
            scorer_of(model, scorer, memory_budget),
            max_new_tokens=max_new_tokens,
            chat_template_kwargs=dict(chat_template_kwargs or {}),
        )
        loaded = profile if isinstance(profile, ReferenceProfile) else read_profile(profile)
        loaded.require_match(self.reader.scorer.identity())
        if loaded.least_p > alpha and (tail == "count" or loaded.tail is None):
            # The verifier would have to abstain whenever it finds anything, and authors could
            # trigger that at will.
            raise ValueError(
                f"alpha: expected at least {loaded.least_p:.2g}, the smallest p-value that the "
                f"{len(loaded.scores)} honest completions of profile {loaded.name!r} can give, got "
                f"{alpha:g}; calibrate on {needed_for(alpha)} of them, raise alpha, or choose "
                "tail='exponential'"
            )
        self.profile = loaded

    @property
    def author_can_abstain(self) -> str | None:
        return memory_without_limit(self.name, self.reader.encoder.sampling.max_new_tokens)

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        started = time.monotonic()
        verdicts, readings = self._readings(batch)
        rate = self.profile.rate
        scores = {i: reading.score(rate) for i, reading in readings.items()}
        peers = peers_of(batch, scores)
        for i, reading in readings.items():
            verdicts[i] = self._judge(reading, relative(scores[i], peers[i], self.profile.usual))
        share = (time.monotonic() - started) / max(1, len(batch))
        return [replace(verdicts[i], seconds=share) for i in range(len(batch))]

    def _readings(
        self, batch: Sequence[Completion]
    ) -> tuple[dict[int, Verdict], dict[int, Reading]]:
        """Return verdicts on completions that cannot be read and readings of the rest, both by
        index in the batch."""
        encoded, verdicts = encode_batch(self.name, self.reader.encode, batch)
        readings = dict[int, Reading]()
        scored = plain_stats(self.reader.scorer, list(encoded.values()))
        for i, stats in zip(encoded, scored, strict=True):
            if isinstance(stats, OutOfMemoryError):
                verdicts[i] = abstain(self.name, Cause.OUT_OF_MEMORY, str(stats))
            elif not stats.finite:
                verdicts[i] = abstain(self.name, Cause.FAULT, "the reference computed NaN")
            elif len(stats) < LEAST_TOKENS:
                message = f"{len(stats)} tokens, too few to find a span in"
                verdicts[i] = accept(self.name, findings=(Finding("too_short", message),))
            else:
                scores = token_scores(stats, self.profile.settings, self.profile.tokens)
                readings[i] = self.reader.read(batch[i], encoded[i], stats, scores)
        return verdicts, readings

    def _judge(self, reading: Reading, score: float) -> Verdict:
        profile = self.profile
        p_value, notes = conformal(score, profile.scores), list[Finding]()
        beyond = score > profile.scores[-1]
        if self.tail == "exponential" and beyond and profile.tail is not None:
            # Never above the counted p-value, which is valid without the fit.
            p_value = min(p_value, profile.tail.p_value(score))
            message = f"p beyond {profile.least_p:.1e} comes from an exponential fit, not a count"
            notes.append(Finding("extrapolated", message))
        if p_value <= self.alpha:
            findings = (self._finding(reading, p_value), *notes)
            return reject(self.name, p_value=p_value, findings=findings)
        return accept(self.name, p_value=p_value, findings=tuple(notes))

    def _finding(self, reading: Reading, p_value: float) -> Finding:
        run = reading.run
        count = run.end - run.start
        message = (
            f"tokens {run.start} to {run.end - 1} are foreign to their context: together log-prob "
            f"{reading.logprob:.1f}, excess {run.value:.1f} standard deviations in {count} tokens; "
            f"chance of such a run in honest work {p_text(p_value)}"
        )
        span = (run.start, run.end)
        return Finding("foreign_span", message, char_span=reading.char_span, token_span=span)
