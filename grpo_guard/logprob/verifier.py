"""Common base class of the verifiers that use the shared policy's log-probs."""

import time
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch  # noqa: F401  # fail on import, with a hint, if torch is missing

from grpo_guard.core.arguments import require_level
from grpo_guard.core.completion import Completion
from grpo_guard.core.quoting import shown
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.core.sampling_mask import SamplingMask, claimed_mask
from grpo_guard.core.scope import Scope
from grpo_guard.core.verdict import Cause, Finding, Verdict, abstain, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.logprob.encode import Encoded, Encoder
from grpo_guard.logprob.encoded import encode_batch, memory_without_limit
from grpo_guard.logprob.masks import false_places, rows_scorer
from grpo_guard.logprob.profile import BFLOAT16, TEXT, DriftProfile
from grpo_guard.logprob.profile_file import profile_of
from grpo_guard.logprob.scorers.base import OutOfMemoryError, Scorer, score_apart
from grpo_guard.logprob.scorers.load import FromPretrained
from grpo_guard.logprob.stats import TokenStats


@dataclass(frozen=True, slots=True)
class Scored:
    """The statistics of the tokens that a completion's author drew, with the profile under which
    they are judged."""

    encoded: Encoded
    stats: TokenStats
    profile: DriftProfile


class LogProbVerifier(FromPretrained, CompletionVerifier):
    """Encodes and scores completions under the shared policy; subclasses judge the statistics.

    For homogeneous swarms, where every node holds the same weights. A sampling mask sent with a
    completion is checked as well (see `grpo_guard.core.sampling_mask`): if the mask is not the
    declared sampler's, or cannot be checked, the completion is rejected.

    Args:
        model: The policy, a transformers causal language model; in a guard file its folder or id,
            such as ``org/policy``. Pass the object being trained: a verifier with older weights
            rejects honest work. Omit it if ``scorer`` is given.
        tokenizer: The tokenizer of the policy; always needed.
        sampling: The declared sampler of every node, such as engine ``"vllm"``, temperature 1.0,
            top_k 50 and top_p 1.0.
        scorer: Computes the statistics in place of ``model``, e.g. with another engine:
            ``LogProbBoundVerifier(tokenizer=tokenizer, scorer=scorer, sampling=spec)``.
        alpha: Maximum share of honest completions that may be rejected, in (0, 1).
        profile: Bounds on numerical drift of honest tokens: the name of a built-in profile
            (``"bfloat16"``, the default, or the tighter ``"float32"`` if both sides compute in
            fp32), or the path of a JSON file from ``grpo-guard calibrate``.
        text_profile: The looser profile for completions without token ids.
        trust_prompt_ids: Accept ``Completion.prompt_ids`` without comparing them with the prompt.
            Use this only if your own trainer fills them in.
        require_ids: Reject completions without token ids. Set this whenever honest nodes send ids;
            otherwise attackers can omit them to be judged under the looser profile.
        check_text: Compare the text with the decoded ids. Turn it off only if your own trainer
            renders the text from its own ids.
        check_end: Reject ids that end neither with an EOS nor at ``max_new_tokens``: the declared
            sampler cannot have stopped there. Turn it off only if the sampler has stop strings.
        special: Ids of special tokens that a completion may contain, for policies that use them for
            thinking or tool calls; any other special token, except for one closing EOS, is
            malformed.
        chat_template_kwargs: Arguments for the chat template, as passed on the sampling side, for
            prompts that are messages.
        memory_budget: Maximum memory for scoring on top of the weights, in bytes; only with
            ``model``.
        threads: Maximum number of CPU threads, or None for torch's own setting; only with
            ``model``.
        strict: Raise an error instead of logging a warning if an adapter finds that the trainer
            does not sample as declared or is not training this model.
        name: The verifier's name in verdicts, or None for the registered name.

    Raises:
        ValueError: alpha is out of range, not exactly one of model and scorer is given, the scorer
            does not support the sampler, a profile was calibrated for something else, or the
            model's output head cannot be read by tiles.
        TypeError: no tokenizer is given, or ``sampling`` is not a `SamplingSpec`.
    """

    needs = "the policy that the nodes sample from; pip install 'grpo-guard[torch]'"
    scope: Scope = "completion"
    shares_calls = True
    most_characters = None  # the scorer packs batches according to available memory
    replays = False
    """Whether the verifier scores with the seeds of a coin."""

    def __init__(
        self,
        model: Any | None = None,
        tokenizer: Any = None,
        *,
        sampling: SamplingSpec,
        scorer: Scorer | None = None,
        alpha: float = 1e-3,
        profile: DriftProfile | str | Path = BFLOAT16,
        text_profile: DriftProfile | str | Path = TEXT,
        trust_prompt_ids: bool = False,
        require_ids: bool = False,
        check_text: bool = True,
        check_end: bool = True,
        special: Collection[int] = (),
        chat_template_kwargs: Mapping[str, Any] | None = None,
        memory_budget: int | None = None,
        threads: int | None = None,
        strict: bool = False,
        name: str | None = None,
    ) -> None:
        require_level("alpha", alpha)
        _require_sampling(sampling)
        _require_tokenizer(tokenizer)
        self.name = name or type(self).name
        self.alpha = alpha
        self.strict = strict
        self.sampling = sampling
        self.scorer: Any = scorer_of(model, scorer, memory_budget, threads)
        # Found by name rather than isinstance, so that a scorer that wraps another is checked too.
        if check := getattr(self.scorer, "check", None):
            check(sampling)
        self.profile = profile_of(profile)
        self.text_profile = profile_of(text_profile)
        for used in (self.profile, self.text_profile):
            used.require_match(sampling, self.scorer)
        self.encoder = Encoder(
            tokenizer,
            sampling,
            vocab_size=self.scorer.vocab_size,
            window=self.scorer.window,
            trust_prompt_ids=trust_prompt_ids,
            require_ids=require_ids,
            check_text=check_text,
            check_end=check_end,
            special=special,
            chat_template_kwargs=chat_template_kwargs,
        )

    @property
    def author_can_abstain(self) -> str | None:
        return memory_without_limit(self.name, self.sampling.max_new_tokens)

    @property
    def steps_aside(self) -> bool:
        return not self.encoder.require_ids and self._unable(self.text_profile) is not None

    @property
    def compares_ids(self) -> bool:
        """Always true: with ``check_text=False`` the caller vouches for the text."""
        return True

    @property
    def own_tokenizer(self) -> Any:
        return self.encoder.tokenizer

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        return self.verify_each([batch])[0]

    def verify_each(self, batches: Sequence[Sequence[Completion]]) -> list[list[Verdict]]:
        """Verify batches as `verify` does, scoring them together but judging each separately."""
        started = time.monotonic()
        everything = [completion for batch in batches for completion in batch]
        verdicts, scored = self._scored(everything)
        start = 0
        for batch in batches:
            own = range(start, start + len(batch))
            here = {i - start: scored[i] for i in own if i in scored}
            judged = self.judge_together(batch, here)
            verdicts.update((start + i, verdict) for i, verdict in judged.items())
            start += len(batch)
        for i, completion in enumerate(everything):
            if claimed_mask(completion) is not None and not verdicts[i].rejected:
                verdicts[i] = self._of_mask(completion, scored.get(i), verdicts[i])
        share = (time.monotonic() - started) / max(1, len(everything))
        found = iter([replace(verdicts[i], seconds=share) for i in range(len(everything))])
        return [list(islice(found, len(batch))) for batch in batches]

    def _of_mask(self, completion: Completion, one: Scored | None, verdict: Verdict) -> Verdict:
        """Return the verdict on a completion with a sampling mask: a rejection unless the mask is
        the declared sampler's. An unchecked mask would still be used in training."""
        try:
            mask = SamplingMask.of(completion)
            if mask is None:
                return verdict
            if any(not self.encoder.known_ids.issuperset(kept) for kept in mask.kept):
                raise ValueError("sampling_mask: expected ids of the vocabulary, got others")
        except ValueError as error:
            return reject(self.name, Cause.MALFORMED, str(error))
        rows = rows_scorer(self.scorer)
        if rows is None or one is None:
            return reject(
                self.name, Cause.MALFORMED,
                "sampling_mask: nothing here can check it; leave it out, or score with a model",
            )  # fmt: skip
        whole = one.encoded.whole or one.encoded
        found = tuple(islice(false_places(rows, whole, mask, self.sampling, one.profile), 9))
        return reject(self.name, findings=found) if found else verdict

    def _scored(self, batch: Sequence[Completion]) -> tuple[dict[int, Verdict], dict[int, Scored]]:
        """Return verdicts on completions that cannot be scored, plus statistics for all the others,
        both by index."""
        encoded, verdicts = encode_batch(self.name, self.encode, batch)
        scored: dict[int, Scored] = {}
        for from_text in (False, True):
            profile = self.text_profile if from_text else self.profile
            chosen = [i for i, e in encoded.items() if e.from_text is from_text]
            if reason := self._unable(profile):
                # With require_ids=False, ids are not mandatory, and other verifiers judge the text.
                cause = Cause.NOT_APPLICABLE if from_text else Cause.UNINFORMATIVE
                unable = abstain(self.name, cause, reason)
                verdicts.update((i, unable) for i in chosen)
                continue
            score = partial(self.score, profile=profile)
            stats = score_apart(score, [encoded[i] for i in chosen])
            for i, s in zip(chosen, stats, strict=True):
                if isinstance(s, OutOfMemoryError):
                    verdicts[i] = abstain(self.name, Cause.OUT_OF_MEMORY, str(s))
                    continue
                if encoded[i].given:  # these tokens served as context and are not judged
                    s = s.at(encoded[i].places)
                scored[i] = Scored(encoded[i].drawn(), s, profile)
        return verdicts, scored

    def judge_together(
        self, batch: Sequence[Completion], scored: Mapping[int, Scored]
    ) -> dict[int, Verdict]:
        """Return verdicts on a batch's scored completions, by index."""
        return {i: self.judge(batch[i], s.encoded, s.stats, s.profile) for i, s in scored.items()}

    def judge(
        self, completion: Completion, encoded: Encoded, stats: TokenStats, profile: DriftProfile
    ) -> Verdict:
        """Return the verdict on one completion, based on its token statistics."""
        unable = self._cannot_judge(stats, profile)
        if unable is not None:
            return unable
        return self._judge(completion, encoded, stats, profile)

    def _cannot_judge(self, stats: TokenStats, profile: DriftProfile) -> Verdict | None:
        """Return an abstention if the statistics are no evidence either way."""
        if reason := self._unable(profile):
            return abstain(self.name, Cause.UNINFORMATIVE, reason)
        if not stats.finite:
            return abstain(self.name, Cause.FAULT, "the model computed NaN")
        return None

    @abstractmethod
    def _judge(
        self, completion: Completion, encoded: Encoded, stats: TokenStats, profile: DriftProfile
    ) -> Verdict:
        """Judge one completion, given statistics without NaN."""

    def _unable(self, profile: DriftProfile) -> str | None:
        """Return why no completion can be judged under this profile; None if it can."""
        return None

    def encode(self, completion: Completion) -> Encoded:
        """Encode a completion; raises EncodeError if it cannot be scored."""
        return self.encoder.encode(completion)

    def score(self, sequences: Sequence[Encoded], profile: DriftProfile) -> list[TokenStats]:
        """Return the statistics of each sequence, in order; raises the errors of `Scorer.score`."""
        scorer: Scorer = self.scorer
        return scorer.score(sequences, self.sampling, mass_margin=profile.mass_margin)

    def _notes(self, encoded: Encoded) -> tuple[Finding, ...]:
        if not encoded.from_text:
            return ()
        message = (
            "no token ids were given: scored from text under the looser profile "
            f"{self.text_profile.name!r}"
        )
        return (Finding("retokenised", message),)


def _require_sampling(sampling: Any) -> None:
    if not isinstance(sampling, SamplingSpec):
        remedy = "; write SamplingSpec(**...)" if isinstance(sampling, dict) else ""
        raise TypeError(f"sampling: expected a SamplingSpec, got {shown(sampling)}{remedy}")


def _require_tokenizer(tokenizer: Any) -> None:
    if isinstance(tokenizer, type) or not hasattr(tokenizer, "get_vocab"):
        name = isinstance(tokenizer, str | Path)
        remedy = "; write AutoTokenizer.from_pretrained(...)" if name else ""
        raise TypeError(
            f"tokenizer: expected the policy's tokenizer, got {shown(tokenizer)}{remedy}"
        )


def scorer_of(
    model: Any | None,
    scorer: Scorer | None,
    memory_budget: int | None = None,
    threads: int | None = None,
) -> Scorer:
    """Return the given scorer, or build one for a transformers model; raises ValueError unless
    exactly one of them is given, or if there are options with a scorer."""
    if (model is None) is (scorer is None):
        got = "neither" if model is None else "both"
        raise ValueError(f"model, scorer: expected exactly one of them, got {got}")
    if scorer is not None:
        for name, value in (("memory_budget", memory_budget), ("threads", threads)):
            if value is not None:
                raise ValueError(f"{name}: expected None with a scorer of your own")
        return scorer
    if isinstance(model, type) or not hasattr(model, "get_output_embeddings"):
        raise TypeError(f"model: expected a causal language model, got {shown(model)}")
    from grpo_guard.logprob.scorers.transformers import TransformersScorer

    return TransformersScorer(model, memory_budget=memory_budget, threads=threads)
