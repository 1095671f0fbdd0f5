"""LogProbBoundVerifier: could the declared sampler have drawn these tokens from this policy?"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from grpo_guard.completion import Completion
from grpo_guard.logprob.encode import Encoded, EncodeError, Encoder
from grpo_guard.logprob.evidence import AMBIGUOUS, OUTSIDE, Evidence, heaviest_span, weigh
from grpo_guard.logprob.profile import BFLOAT16, TEXT, DriftProfile, profile_of
from grpo_guard.logprob.stats import TokenStats
from grpo_guard.sampling import SamplingSpec
from grpo_guard.verdict import AUTHOR_CAUSES, Cause, Finding, Verdict, abstain, accept, reject
from grpo_guard.verifier import CompletionVerifier


class LogProbBoundVerifier(CompletionVerifier):
    """Rejects completions whose tokens the shared policy would not have sampled.

    For homogeneous swarms, where every node holds the same weights. Sharpens the check of "Hail to
    the Thief" (arXiv 2511.09780, every token in the top-50) in three ways: a margin for numerical
    drift and a binomial test instead of zero tolerance, so that honest work passes at a stated
    rate; the support of the declared engine, not only top-k; and a test of how unlikely the tokens
    are together, so that text inside the support does not pass for free. See `evidence.py`.

    What it cannot see: poison that the policy finds likely, such as a single wrong digit where the
    model is unsure, and a choice among honest samples (the longest of eighty). Those need a shared
    seed.

    Args:
        model: The policy, a transformers causal language model. Pass the very object that is being
            trained: a verifier with older weights rejects honest work.
        tokenizer: Its tokenizer.
        sampling: What every node is declared to sample with.
        alpha: Highest share of honest completions that may be rejected, in (0, 1).
        profile: What numerical drift may do to honest tokens, or the name of a built-in profile:
            ``"bfloat16"`` (default), or the tighter ``"float32"`` where both sides compute in fp32.
        text_profile: The looser one for completions without token ids.
        trust_prompt_ids: Believe ``Completion.prompt_ids`` without comparing them with the prompt.
            Only when your own trainer fills them in.
        require_ids: Reject completions without token ids. Set it wherever honest nodes send ids:
            otherwise an attacker leaves them out and is judged under the looser profile.
        check_text: Compare the text with the decoded ids. Off only where your own trainer renders
            the text from ids that it has itself.
        chat_template_kwargs: For prompts that are messages, as the sampling side passed them.
        batch_tokens: Padded tokens per forward pass; bounds memory.

    Raises:
        ValueError: alpha out of range, or a model whose output head cannot be read by tiles.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        sampling: SamplingSpec,
        alpha: float = 1e-3,
        profile: DriftProfile | str = BFLOAT16,
        text_profile: DriftProfile | str = TEXT,
        trust_prompt_ids: bool = False,
        require_ids: bool = False,
        check_text: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        batch_tokens: int = 16_384,
        name: str = "logprob_bound",
    ) -> None:
        from grpo_guard.logprob.scorers.transformers import TransformersScorer

        if not 0 < alpha < 1:
            raise ValueError(f"alpha: expected a number in (0, 1), got {alpha!r}")
        if not isinstance(sampling, SamplingSpec):
            raise TypeError(f"sampling: expected a SamplingSpec, got {sampling!r}")
        self.name = name
        self.alpha = alpha
        self.sampling = sampling
        self.profile = profile_of(profile)
        self.text_profile = profile_of(text_profile)
        self.scorer = TransformersScorer(model)
        self.encoder = Encoder(
            tokenizer,
            sampling,
            vocab_size=self.scorer.vocab_size,
            window=self.scorer.window,
            trust_prompt_ids=trust_prompt_ids,
            require_ids=require_ids,
            check_text=check_text,
            chat_template_kwargs=chat_template_kwargs,
        )

    @classmethod
    def from_pretrained(
        cls,
        path_or_id: str,
        *,
        sampling: SamplingSpec,
        dtype: str | None = None,
        device: str | None = None,
        revision: str | None = None,
        **options: Any,
    ) -> LogProbBoundVerifier:
        """Load policy and tokenizer with transformers, weights from safetensors only.

        Args:
            path_or_id: A local folder or a model id.
            sampling: What every node is declared to sample with.
            dtype: ``"float32"``, ``"bfloat16"`` ...; default fp32 on a CPU, bf16 on a GPU.
            device: Default: the GPU if there is one.
            revision: Of a model id.
            **options: As for the constructor.

        Raises:
            ValueError: no model or no tokenizer there, with the folder or id in the message.
        """
        from grpo_guard.logprob.scorers.load import load_policy

        model, tokenizer = load_policy(path_or_id, dtype=dtype, device=device, revision=revision)
        return cls(model, tokenizer, sampling=sampling, **options)

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        started = time.monotonic()
        verdicts: dict[int, Verdict] = {}
        encoded: dict[int, Encoded] = {}
        for i, completion in enumerate(batch):
            try:
                encoded[i] = self.encoder.encode(completion)
            except EncodeError as error:
                blame = reject if error.cause in AUTHOR_CAUSES else abstain
                verdicts[i] = blame(self.name, error.cause, str(error))
        for from_text in (False, True):
            chosen = [i for i, e in encoded.items() if e.from_text is from_text]
            if not chosen:
                continue
            profile = self.text_profile if from_text else self.profile
            stats = self.scorer.score(
                [encoded[i] for i in chosen], self.sampling, mass_margin=profile.mass_margin
            )
            for i, s in zip(chosen, stats, strict=True):
                verdicts[i] = self._judge(batch[i], encoded[i], s, profile)
        share = (time.monotonic() - started) / max(1, len(batch))
        return [replace(verdicts[i], seconds=share) for i in range(len(batch))]

    def _judge(
        self, completion: Completion, encoded: Encoded, stats: TokenStats, profile: DriftProfile
    ) -> Verdict:
        if not stats.finite:
            return abstain(self.name, Cause.FAULT, "the model computed NaN")
        evidence = weigh(stats, profile)
        if evidence.p_value >= self.alpha:
            findings = self._notes(evidence, encoded)
            return accept(self.name, p_value=evidence.p_value, findings=findings)
        finding = self._finding(completion, encoded, stats, evidence)
        findings = (finding, *self._notes(evidence, encoded))
        return reject(self.name, p_value=evidence.p_value, findings=findings)

    def _finding(
        self, completion: Completion, encoded: Encoded, stats: TokenStats, evidence: Evidence
    ) -> Finding:
        """The stretch of tokens that speaks loudest, and what it says."""
        start, end = heaviest_span(evidence.weights)
        outside = int((evidence.zones == OUTSIDE).sum())
        support_decides = evidence.support_p <= min(evidence.surprise_p, evidence.floor_p)
        worst = int(stats.logprob[start:end].argmin()) + start
        about = (
            f"least likely here: token {worst} at log-prob {stats.logprob[worst]:.1f}, "
            f"rank {stats.rank[worst]}"
        )
        if support_decides:
            kind = "outside_support"
            message = (
                f"{outside} of {len(stats)} tokens lie outside the declared support by up to "
                f"{stats.edge_gap.max():.1f} logits ({about})"
            )
        else:
            kind = "improbable"
            message = f"too improbable for the declared sampler ({about})"
        message += f"; chance for honest work {evidence.p_value:.1e}"
        span = self.encoder.char_span(completion, encoded, start, end)
        return Finding(kind, message, char_span=span, token_span=(start, end))

    def _notes(self, evidence: Evidence, encoded: Encoded) -> tuple[Finding, ...]:
        notes = []
        ambiguous = int((evidence.zones == AMBIGUOUS).sum())
        if ambiguous:
            notes.append(Finding("ambiguous", f"{ambiguous} tokens lie at the edge of the support"))
        if encoded.from_text:
            notes.append(
                Finding(
                    "retokenised",
                    f"no token ids were given: scored from text under the looser profile "
                    f"{self.text_profile.name!r}",
                )
            )
        return tuple(notes)
