"""How a judge says its verdict, and how the answer is read.

Three ways. `LogitMode` asks for one token and reads the probabilities of yes and no: nothing that
could be parsed wrongly, and the mass that is on neither tells of confusion. `JsonMode` is for
servers without log-probabilities, and makes the model commit itself to an answer of its own before
it judges. `CotMode` is the paper's: criticism, then a decision.

No answer is salvaged. A verdict that has to be searched for is one that the completion may have
written.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grpo_guard.judge.backends.base import Reply
from grpo_guard.judge.delimiters import read_back
from grpo_guard.judge.errors import JudgeSetupError
from grpo_guard.judge.prompt import MARK
from grpo_guard.verdict import Cause, Finding


@dataclass(frozen=True, slots=True)
class Ruling:
    """What an answer amounts to.

    Args:
        passed: Whether the judge accepts; None where it could not decide (``unsure``).
        cause: JUDGED, or MALFORMED or REFUSED: no verdict, and the completion may be why.
        p_yes: The judge's probability of accepting, where the mode has one.
        finding: What speaks against the completion, or for the judge's decision.
    """

    passed: bool | None
    cause: Cause = Cause.JUDGED
    p_yes: float | None = None
    finding: Finding | None = None


class VerdictMode(ABC):
    """One way of asking for a verdict.

    Attributes:
        name: In configurations and the cache.
        instructions: Take the place of ``{verdict}`` in the rubric.
        reminder: What is said when the answer was no verdict; None = asking again would not help.
        max_tokens: Longest answer.
        top_logprobs: Candidates of the first token that are needed; 0 = none.
        json_schema: What the answer must conform to; None = free text.
    """

    name: str
    instructions: str
    reminder: str | None = None
    max_tokens: int
    top_logprobs: int = 0
    json_schema: Mapping[str, Any] | None = None

    @abstractmethod
    def read(self, reply: Reply, text: str) -> Ruling:
        """The ruling in an answer that is no refusal.

        Args:
            reply: The model's answer.
            text: The whole completion, with our delimiters neutralised as the judge saw it.
        """


class LogitMode(VerdictMode):
    """One token, yes or no, and their probabilities.

    ``p_yes = yes / (yes + no)`` over all spellings with and without space and capitals. Where less
    than half of the probability is on either, the judge is answering something else than our
    question: malformed, and the author's doing.

    Args:
        threshold: Accept from this ``p_yes`` on, in (0, 1); `grpo-guard calibrate` measures one.
        least_mass: Probability that must be on yes and no together, in [0, 1].
    """

    name = "logit"
    instructions = (
        "Should the completion be accepted? Answer with one word and nothing else: yes or no."
    )
    max_tokens = 1
    top_logprobs = 20

    def __init__(self, threshold: float = 0.5, least_mass: float = 0.5) -> None:
        if not 0 < threshold < 1:
            raise ValueError(f"LogitMode.threshold: expected a number in (0, 1), got {threshold!r}")
        if not 0 <= least_mass <= 1:
            raise ValueError(
                f"LogitMode.least_mass: expected a number in [0, 1], got {least_mass!r}"
            )
        self.threshold = threshold
        self.least_mass = least_mass

    def read(self, reply: Reply, text: str) -> Ruling:
        if reply.first_token is None and not reply.text:
            # Some servers give no log-probabilities of an answer that ends at once, and a
            # completion can make it do that.
            return Ruling(None, Cause.MALFORMED, finding=Finding("no_verdict", "an empty answer"))
        if reply.first_token is None:
            raise JudgeSetupError(
                "the judge's backend returned no log-probabilities, which mode 'logit' needs; "
                "choose mode 'json', or a server and model that return them"
            )
        _require_probabilities(reply.first_token)
        yes, no = (mass_of(reply.first_token, word) for word in ("yes", "no"))
        if not yes + no >= self.least_mass or yes + no <= 0:
            message = f"{yes + no:.0%} of the answer's probability is on yes or no"
            return Ruling(None, Cause.MALFORMED, finding=Finding("no_verdict", message))
        p_yes = yes / (yes + no)
        message = f"the judge's probability of accepting is {p_yes:.3f}"
        return Ruling(p_yes >= self.threshold, p_yes=p_yes, finding=Finding("judge", message))


def _require_probabilities(candidates: tuple[tuple[str, float], ...]) -> None:
    """What no completion can make of log-probabilities is the server's doing, and no verdict.

    Raises:
        JudgeSetupError: they are none: one is above 0 or no number, or together they exceed 1.
    """
    logprobs = [logprob for _, logprob in candidates]
    # NaN fails each comparison. Rounding can lift a sure token's a little above 0.
    possible = all(logprob <= 1e-6 for logprob in logprobs)
    if not possible or math.fsum(map(math.exp, logprobs)) > 1.01:
        raise JudgeSetupError(
            "the judge's backend returned log-probabilities that cannot be (above 0, or above 1 "
            "together); have it return those of the model's distribution, no raw logits"
        )


def mass_of(candidates: tuple[tuple[str, float], ...], word: str) -> float:
    """Probability of a word over its spellings, with tokenizers' marks for a space taken off."""
    total = 0.0
    for text, logprob in candidates:
        # Capitals of the Latin alphabet alone: casefold would take a look-alike for the word.
        if text.strip(" \t\n▁ĠĊ").lower() == word:
            total += math.exp(logprob)
    return min(total, 1.0)


class _JsonVerdict(BaseModel):
    """In this order: an answer of its own first, before the candidate's can anchor it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    own_answer: str = Field(max_length=4000)
    evidence: str = Field(max_length=4000)
    verdict: Literal["pass", "fail", "unsure"]
    confidence: float = Field(ge=0, le=1)


class JsonMode(VerdictMode):
    """A JSON object: own answer, a quotation as evidence, verdict, confidence.

    Args:
        max_tokens: Longest answer; a longer one is no verdict.
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
            said = _JsonVerdict.model_validate_json(reply.text)
        except ValidationError as error:
            problem = error.errors(include_input=False, include_url=False)[0]
            # A field that it made up may be named by the completion, at any length.
            where = next(
                (str(f) for f in problem["loc"] if f in _JsonVerdict.model_fields), "answer"
            )
            message = f"the judge's answer is no verdict: {where}: {problem['msg']}"
            return Ruling(None, Cause.MALFORMED, finding=Finding("no_verdict", message))
        if _repeats_a_field(reply.text):
            message = "the judge's answer is no verdict: it has a field twice"
            return Ruling(None, Cause.MALFORMED, finding=Finding("no_verdict", message))
        # The judge saw marks for spaces and look-alikes for brackets, and may quote either.
        evidence, text = (read_back(t.replace(MARK, " ")) for t in (said.evidence, text))
        start = text.find(evidence) if evidence else -1
        quoted = _squeezed(evidence)
        if said.verdict == "pass" and not (quoted and quoted in _squeezed(text)):
            # Who quotes nothing, or what is not there, has not read what is.
            message = "the judge accepts on words that the completion does not contain"
            return Ruling(None, Cause.MALFORMED, finding=Finding("false_evidence", message))
        span = (start, start + len(evidence)) if start >= 0 else None
        message = f"the judge's verdict is {said.verdict}, confidence {said.confidence:.2f}"
        passed = None if said.verdict == "unsure" else said.verdict == "pass"
        return Ruling(passed, finding=Finding("judge", message, char_span=span))


def _repeats_a_field(text: str) -> bool:
    """Whether a flat JSON object names a field twice; the last would silently win."""
    pairs: list[tuple[str, Any]] = json.loads(text, object_pairs_hook=list)
    return len({name for name, _ in pairs}) < len(pairs)


def _squeezed(text: str) -> str:
    return " ".join(text.split())


class CotMode(VerdictMode):
    """The paper's form: criticism in free text, then one last line with the decision.

    Args:
        max_tokens: Longest answer; one that is cut off is no verdict.
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
            return Ruling(None, Cause.MALFORMED, finding=Finding("no_verdict", message))
        message = f"the judge decided to {match[1].lower()}"
        return Ruling(match[1] == "ACCEPT", finding=Finding("judge", message))


def mode_of(mode: str | VerdictMode) -> VerdictMode:
    """A mode by its name, with its defaults.

    Raises:
        ValueError: no such mode.
    """
    if isinstance(mode, VerdictMode):
        return mode
    modes: dict[str, Callable[[], VerdictMode]] = {
        "logit": LogitMode,
        "json": JsonMode,
        "cot": CotMode,
    }
    if mode not in modes:
        raise ValueError(f"mode: expected one of {', '.join(modes)}, got {mode!r}")
    return modes[mode]()
