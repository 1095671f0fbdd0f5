"""What verifiers that read the shared policy's log-probs have in common."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch  # noqa: F401  # whoever asks for one of these verifiers is told at once what is missing

from grpo_guard.completion import Completion
from grpo_guard.logprob.encode import Encoded, Encoder, encode_batch, memory_without_limit
from grpo_guard.logprob.masks import FalsePlace, false_places, rows_scorer
from grpo_guard.logprob.profile import BFLOAT16, TEXT, DriftProfile
from grpo_guard.logprob.profile_file import profile_of
from grpo_guard.logprob.scorers.base import OutOfMemoryError, Scorer, score_apart
from grpo_guard.logprob.scorers.load import FromPretrained
from grpo_guard.logprob.stats import TokenStats
from grpo_guard.sampling import SamplingSpec
from grpo_guard.sampling_mask import SamplingMask, claimed_mask
from grpo_guard.verdict import Cause, Finding, Verdict, abstain, reject
from grpo_guard.verifier import CompletionVerifier


@dataclass(frozen=True, slots=True)
class Scored:
    """What was scored of one completion, and under which profile it is judged.

    Of several turns the tokens that its author drew; `Encoded.whole` is all of it.
    """

    encoded: Encoded
    stats: TokenStats
    profile: DriftProfile


def _of_drawn(encoded: Encoded, stats: TokenStats, profile: DriftProfile) -> Scored:
    """What was sampled of it; what was given has been context and is not judged."""
    if encoded.given:
        stats = stats.at(encoded.places)
    return Scored(encoded.drawn(), stats, profile)


class LogProbVerifier(FromPretrained, CompletionVerifier):
    """Encodes and scores completions under the shared policy; subclasses judge the statistics.

    For homogeneous swarms, where every node holds the same weights. A sampling mask that comes with
    a completion is checked as well, see `grpo_guard.sampling_mask`: one that is not the declared
    sampler's, or that cannot be checked, rejects the completion.

    Args:
        model: The policy, a transformers causal language model. Pass the very object that is being
            trained: a verifier with older weights rejects honest work. Left out with ``scorer``.
        tokenizer: Its tokenizer; always needed.
        sampling: What every node is declared to sample with.
        scorer: Computes the statistics in place of ``model``, e.g. with another engine:
            ``LogProbBoundVerifier(tokenizer=tokenizer, scorer=scorer, sampling=spec)``.
        alpha: Highest share of honest completions that may be rejected, in (0, 1).
        profile: What numerical drift may do to honest tokens: the name of a built-in profile
            (``"bfloat16"``, the default, or the tighter ``"float32"`` where both sides compute in
            fp32), or the path of a JSON file from ``grpo-guard calibrate``.
        text_profile: The looser one for completions without token ids.
        trust_prompt_ids: Believe ``Completion.prompt_ids`` without comparing them with the prompt.
            Only when your own trainer fills them in.
        require_ids: Reject completions without token ids. Set it wherever honest nodes send ids:
            otherwise an attacker leaves them out and is judged under the looser profile.
        check_text: Compare the text with the decoded ids. Off only where your own trainer renders
            the text from ids that it has itself.
        check_end: Reject ids that end neither with an EOS nor at ``max_new_tokens``: the declared
            sampler cannot have stopped there. Off only where it has stop strings.
        special: Ids of special tokens that a completion may hold, for policies that think or call
            tools in such; any others but one closing EOS are malformed.
        chat_template_kwargs: For prompts that are messages, as the sampling side passed them.
        memory_budget: Bytes that scoring may use beside the weights; only with ``model``.
        threads: Of a CPU, at most; only with ``model``. None = torch's own number.
        strict: Where an adapter finds that the trainer samples otherwise than declared, or trains
            another model than this one: an error, and no warning.
        name: Stands in verdicts; None = the verifier's registered name.

    Raises:
        ValueError: alpha out of range, not exactly one of model and scorer, a sampler that the
            scorer does not support, a profile that was calibrated for something else, or a model
            whose output head cannot be read by tiles.
        TypeError: no tokenizer, or ``sampling`` is no `SamplingSpec`.
    """

    needs = "the policy that the nodes sample from; pip install 'grpo-guard[torch]'"
    replays = False
    """Whether it scores with a coin's seeds."""

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
        if not 0 < alpha < 1:
            raise ValueError(f"alpha: expected a number in (0, 1), got {alpha!r}")
        if not isinstance(sampling, SamplingSpec):
            raise TypeError(f"sampling: expected a SamplingSpec, got {sampling!r}")
        if tokenizer is None:
            raise TypeError("tokenizer: expected the policy's tokenizer, got None")
        self.name = name or type(self).name
        self.alpha = alpha
        self.strict = strict
        self.sampling = sampling
        self.scorer: Any = scorer_of(model, scorer, memory_budget, threads)
        # By name and not by isinstance, so that a scorer which delegates to another is asked too.
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
    def compares(self) -> str | None:
        """See `grpo_guard.distributed.worker.compares`."""
        return None

    @property
    def author_can_abstain(self) -> str | None:
        return memory_without_limit(self.name, self.sampling.max_new_tokens)

    @property
    def steps_aside(self) -> bool:
        return not self.encoder.require_ids and self._unable(self.text_profile) is not None

    @property
    def joins(self) -> bool:
        return True

    @property
    def compares_ids(self) -> bool:
        """Also with ``check_text=False``, by which you vouch for the text."""
        return True

    @property
    def own_tokenizer(self) -> Any:
        return self.encoder.tokenizer

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        return self.verify_each([batch])[0]

    def verify_each(self, batches: Sequence[Sequence[Completion]]) -> list[list[Verdict]]:
        """As `verify` says of each: they are scored together, and judged apart."""
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
        """The verdict of a completion that brings a sampling mask: a rejection unless the mask is
        the declared sampler's. One that nobody can check would be trained by unseen."""
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
        found = list(islice(false_places(rows, whole, mask, self.sampling, one.profile), 9))
        if not found:
            return verdict
        return reject(self.name, findings=tuple(map(self._false_place, found)))

    def _false_place(self, found: FalsePlace) -> Finding:
        does, how = "names", "never draws"
        if found.probability:
            does, how = "leaves out", f"draws with probability {found.probability:.3g}"
        message = f"its sampling mask {does} token {found.token}, which the declared sampler {how}"
        return Finding("claimed_mask", message, token_span=(found.place, found.place + 1))

    def _scored(self, batch: Sequence[Completion]) -> tuple[dict[int, Verdict], dict[int, Scored]]:
        """Verdicts on what cannot be scored, and the statistics of all else, by place."""
        encoded, verdicts = encode_batch(self.name, self.encode, batch)
        scored: dict[int, Scored] = {}
        for from_text in (False, True):
            profile = self.text_profile if from_text else self.profile
            chosen = [i for i, e in encoded.items() if e.from_text is from_text]
            if reason := self._unable(profile):
                # Only where require_ids=False says that ids are not owed: then the others judge.
                cause = Cause.NOT_APPLICABLE if from_text else Cause.UNINFORMATIVE
                unable = abstain(self.name, cause, reason)
                verdicts.update((i, unable) for i in chosen)
                continue
            score = partial(self.score, profile=profile)
            stats = score_apart(score, [encoded[i] for i in chosen])
            for i, s in zip(chosen, stats, strict=True):
                if isinstance(s, OutOfMemoryError):
                    verdicts[i] = abstain(self.name, Cause.OUT_OF_MEMORY, str(s))
                else:
                    scored[i] = _of_drawn(encoded[i], s, profile)
        return verdicts, scored

    def judge_together(
        self, batch: Sequence[Completion], scored: Mapping[int, Scored]
    ) -> dict[int, Verdict]:
        """Verdicts on what was scored of a batch, by its place in it."""
        return {i: self.judge(batch[i], s.encoded, s.stats, s.profile) for i, s in scored.items()}

    def judge(
        self, completion: Completion, encoded: Encoded, stats: TokenStats, profile: DriftProfile
    ) -> Verdict:
        """The verdict that the statistics of one completion's tokens lead to."""
        unable = self._cannot_judge(stats, profile)
        return unable or self._judge(completion, encoded, stats, profile)

    def _cannot_judge(self, stats: TokenStats, profile: DriftProfile) -> Verdict | None:
        """The abstention where these statistics say nothing."""
        if reason := self._unable(profile):
            return abstain(self.name, Cause.UNINFORMATIVE, reason)
        if not stats.finite:
            return abstain(self.name, Cause.FAULT, "the model computed NaN")
        return None

    @abstractmethod
    def _judge(
        self, completion: Completion, encoded: Encoded, stats: TokenStats, profile: DriftProfile
    ) -> Verdict:
        """`judge` for statistics without NaN."""

    def _unable(self, profile: DriftProfile) -> str | None:
        """Why nothing can be said of any completion under this profile, before it is scored."""
        return None

    def encode(self, completion: Completion) -> Encoded:
        """What is scored of a completion.

        Raises:
            EncodeError: it cannot be scored, with the cause that its verdict gets.
        """
        return self.encoder.encode(completion)

    def score(self, sequences: Sequence[Encoded], profile: DriftProfile) -> list[TokenStats]:
        """Statistics of each of them, in order; errors as `Scorer.score`."""
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


def scorer_of(
    model: Any | None,
    scorer: Scorer | None,
    memory_budget: int | None = None,
    threads: int | None = None,
) -> Scorer:
    """A scorer of one's own, or one on a transformers model.

    Raises:
        ValueError: not exactly one of the two is given, or options of the model beside the scorer.
    """
    if (model is None) is (scorer is None):
        got = "neither" if model is None else "both"
        raise ValueError(f"model, scorer: expected exactly one of them, got {got}")
    if scorer is not None:
        for name, value in (("memory_budget", memory_budget), ("threads", threads)):
            if value is not None:
                raise ValueError(f"{name}: expected None beside a scorer of your own")
        return scorer
    from grpo_guard.logprob.scorers.transformers import TransformersScorer

    return TransformersScorer(model, memory_budget=memory_budget, threads=threads)
