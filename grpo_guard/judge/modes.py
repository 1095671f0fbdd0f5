"""Verdict modes: how a judge gives its verdict, and how its answer is read.

There are three modes. `LogitMode` asks for one token and reads the probabilities of yes and no:
there is nothing to misparse, and probability on other tokens reveals confusion. `JsonMode` is for
servers without log-probabilities, and makes the model commit to its own answer before it judges.
`CotMode` is the paper's mode: criticism, then a decision.

No answer is salvaged. If a verdict has to be searched for, the completion may have planted it.
"""

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grpo_guard.core.arguments import require_choice, require_level
from grpo_guard.core.verdict import Cause, Finding
from grpo_guard.judge.backends.base import Reply
from grpo_guard.judge.delimiters import read_back
from grpo_guard.judge.errors import JudgeSetupError
from grpo_guard.judge.prompt import MARK

_MOST_REASON = 1_000  # characters of a judge's criticism that a verdict keeps


@dataclass(frozen=True, slots=True)
class Ruling:
    """The result of reading a judge's answer."""

    passed: bool | None  # None: the judge could not decide (``unsure``)
    cause: Cause = Cause.JUDGED  # MALFORMED or REFUSED if there is no verdict
    p_yes: float | None = None  # the judge's probability of accepting, if the mode gives one
    finding: Finding | None = None  # against the completion, or supporting the judge's decision

    @classmethod
    def none(cls, cause: Cause, kind: str, message: str) -> "Ruling":
        """Create a ruling without a verdict, for a reason that the completion may have caused."""
        return cls(None, cause, finding=Finding(kind, message))


class VerdictMode(ABC):
    """One way of asking for a verdict."""

    name: str  # in configurations and the cache
    instructions: str  # replace ``{verdict}`` in the rubric
    reminder: str | None = None  # sent after an answer without a verdict
    max_tokens: int  # maximum length of the answer
    top_logprobs: int = 0  # number of candidates needed for the first token
    json_schema: Mapping[str, Any] | None = None  # of the answer; None for free text

    @abstractmethod
    def read(self, reply: Reply, text: str) -> Ruling:
        """Read the ruling from an answer that is not a refusal; ``text`` is the whole completion,
        with delimiters neutralised as the judge saw it."""


class LogitMode(VerdictMode):
    """Asks for one token, yes or no, and reads the probabilities of both.

    ``p_yes = yes / (yes + no)``, each summed over all spellings with and without a space and
    capitals. If yes and no together have less probability than ``least_mass``, the judge is
    answering something other than our question. Such an answer counts as malformed, because the
    completion's author can cause it.

    Args:
        threshold: Minimum ``p_yes`` to accept, in (0, 1); measure it with
            ``grpo-guard judge calibrate``.
        least_mass: Minimum probability of yes and no together, in [0, 1].
    """

    name = "logit"
    instructions = (
        "Should the completion be accepted? Answer with one word and nothing else: yes or no."
    )
    max_tokens = 1
    top_logprobs = 20

    def __init__(self, threshold: float = 0.5, least_mass: float = 0.5) -> None:
        require_level("LogitMode.threshold", threshold)
        if not 0 <= least_mass <= 1:
            raise ValueError(
                f"LogitMode.least_mass: expected a number in [0, 1], got {least_mass!r}"
            )
        self.threshold = threshold
        self.least_mass = least_mass

    def read(self, reply: Reply, text: str) -> Ruling:
        if reply.first_token is None and not reply.text:
            # Some servers return no log-probabilities for an answer that ends immediately, which a
            # completion can provoke.
            return Ruling.none(Cause.MALFORMED, "no_verdict", "an empty answer")
        if reply.first_token is None:
            raise JudgeSetupError(
                "the judge's backend returned no log-probabilities, which mode 'logit' needs; "
                "choose mode 'json', or a server and model that return them"
            )
        _require_probabilities(reply.first_token)
        yes, no = (mass_of(reply.first_token, word) for word in ("yes", "no"))
        if not yes + no >= self.least_mass or yes + no <= 0:
            message = f"{yes + no:.0%} of the answer's probability is on yes or no"
            return Ruling.none(Cause.MALFORMED, "no_verdict", message)
        p_yes = yes / (yes + no)
        message = f"the judge's probability of accepting is {p_yes:.3f}"
        return Ruling(p_yes >= self.threshold, p_yes=p_yes, finding=Finding("judge", message))


def _require_probabilities(candidates: tuple[tuple[str, float], ...]) -> None:
    """Raise JudgeSetupError for values that only a faulty server, not a completion, can cause: NaN,
    above 0, or probabilities that sum to more than 1."""
    logprobs = [logprob for _, logprob in candidates]
    # NaN fails every comparison. Rounding can push a token that is certain slightly above 0.
    possible = all(logprob <= 1e-6 for logprob in logprobs)
    if not possible or math.fsum(map(math.exp, logprobs)) > 1.01:
        raise JudgeSetupError(
            "the judge's backend returned impossible log-probabilities (above 0, or summing to a "
            "probability above 1); have it return those of the model's distribution, not raw logits"
        )


def mass_of(candidates: tuple[tuple[str, float], ...], word: str) -> float:
    """Total probability of a word across its spellings, ignoring tokenizers' marks for a space."""
    total = 0.0
    for text, logprob in candidates:
        # lower() keeps other alphabets apart; casefold() would mistake a look-alike for the word.
        if text.strip(" \t\n▁ĠĊ").lower() == word:
            total += math.exp(logprob)
    return min(total, 1.0)


class _JsonVerdict(BaseModel):
    """Field order matters: the model gives its own answer before the completion can bias it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    own_answer: str = Field(max_length=4000)
    evidence: str = Field(max_length=4000)
    verdict: Literal["pass", "fail", "unsure"]
    confidence: float = Field(ge=0, le=1)


class JsonMode(VerdictMode):
    """Asks for a JSON object: the judge's own answer, a quotation as evidence, verdict, confidence.

    Args:
        max_tokens: Maximum length of the answer, in tokens; a longer answer counts as malformed.
    """

    name = "json"
    instructions = (
        "Answer with a JSON object and nothing else. Its fields, in this order: own_answer, the "
        "answer to the task as you work it out yourself; evidence, the words of the completion "
        "that decide, copied letter by letter and without dots; verdict, one of pass, fail and "
        "unsure; confidence, a number from 0 to 1."
    )
    reminder = "That was no JSON object of the form asked for. Answer again, with the object alone."

    def __init__(self, max_tokens: int = 512) -> None:
        self.max_tokens = max_tokens
        schema = _JsonVerdict.model_json_schema()
        schema.pop("description", None)
        self.json_schema = schema

    def read(self, reply: Reply, text: str) -> Ruling:
        try:
            answer = _JsonVerdict.model_validate_json(reply.text)
        except ValidationError as error:
            problem = error.errors(include_input=False, include_url=False)[0]
            # Name known fields only: a completion could choose the name and length of others.
            where = next(
                (str(f) for f in problem["loc"] if f in _JsonVerdict.model_fields), "answer"
            )
            message = f"the judge's answer is not a verdict: {where}: {problem['msg']}"
            return Ruling.none(Cause.MALFORMED, "no_verdict", message)
        if _repeats_a_field(reply.text):
            message = "the judge's answer is not a verdict: a field occurs twice"
            return Ruling.none(Cause.MALFORMED, "no_verdict", message)
        # The judge saw marks for spaces and look-alikes for brackets, and can quote either form.
        evidence, text = (read_back(t.replace(MARK, " ")) for t in (answer.evidence, text))
        start = text.find(evidence) if evidence else -1
        quoted = _squeezed(evidence)
        if answer.verdict == "pass" and not (quoted and quoted in _squeezed(text)):
            # A judge that quotes nothing, or something made up, has not read the completion.
            message = "the judge accepts on words that the completion does not contain"
            return Ruling.none(Cause.MALFORMED, "false_evidence", message)
        span = (start, start + len(evidence)) if start >= 0 else None
        message = f"the judge's verdict is {answer.verdict}, confidence {answer.confidence:.2f}"
        passed = None if answer.verdict == "unsure" else answer.verdict == "pass"
        return Ruling(passed, finding=Finding("judge", message, char_span=span))


def _repeats_a_field(text: str) -> bool:
    """Whether a flat JSON object names a field twice; the last one would silently win."""
    pairs: list[tuple[str, Any]] = json.loads(text, object_pairs_hook=list)
    return len({name for name, _ in pairs}) < len(pairs)


def _squeezed(text: str) -> str:
    return " ".join(text.split())


class CotMode(VerdictMode):
    """Asks, as in the paper, for free-text criticism followed by a final line with the decision.

    Args:
        max_tokens: Maximum length of the answer, in tokens; an answer that is cut off counts as
            malformed.
    """

    name = "cot"
    instructions = (
        "First criticise the completion step by step. Then end with one line of its own, "
        "which is either\nVERDICT: ACCEPT\nor\nVERDICT: REJECT"
    )
    reminder = (
        "The last line was no verdict. Criticise again, in five sentences at most, and end with "
        "that line."
    )
    _LINE = re.compile(r"VERDICT: (ACCEPT|REJECT)\.?")

    def __init__(self, max_tokens: int = 1024) -> None:
        self.max_tokens = max_tokens

    def read(self, reply: Reply, text: str) -> Ruling:
        *_, last = ["", *(line for line in reply.text.splitlines() if line.strip())]
        match = self._LINE.fullmatch(last.strip().strip("*"))
        if match is None or reply.finish_reason == "length":
            message = "the judge's answer does not end with a verdict"
            return Ruling.none(Cause.MALFORMED, "no_verdict", message)
        message = f"the judge decided to {match[1].lower()}"
        reason = reply.text.strip().rpartition("\n")[0].strip()
        if reason:  # the end of a long criticism is its conclusion
            cut = "..." if len(reason) > _MOST_REASON else ""
            message += f": {cut}{reason[-_MOST_REASON:]}"
        return Ruling(match[1] == "ACCEPT", finding=Finding("judge", message))


def mode_of(mode: str | VerdictMode, threshold: float | None = None) -> VerdictMode:
    """Return the named mode with default settings; a mode object is returned unchanged. Raises
    ValueError for an unknown name, or a threshold with a mode other than ``"logit"``."""
    if threshold is not None:
        if mode != "logit":
            raise ValueError(
                f"JudgeVerifier.threshold: expected mode 'logit' with it, got {mode!r}"
            )
        return LogitMode(threshold)
    if isinstance(mode, VerdictMode):
        return mode
    modes: dict[str, Callable[[], VerdictMode]] = {
        "logit": LogitMode,
        "json": JsonMode,
        "cot": CotMode,
    }
    require_choice("mode", mode, modes)
    return modes[mode]()
