"""A verifier's verdict on one completion, and the error model behind it.

A failure is a third state, never a score. Four rules, enforced by `Verdict` itself:

1. A verdict is ACCEPT, REJECT or ABSTAIN. There is no number that could be averaged into a reward.
2. What the *author* of a completion can cause (ids that do not decode to the text, an unparsable
   answer, text past the limit) REJECTS. If it led to an abstention, an attacker would write
   completions that break the check, and earn whatever an abstention earns.
3. What the author *cannot* cause (a time-out, an outage, lack of memory, a bug in the verifier)
   ABSTAINS. If it led to a rejection, honest work would be punished for our own failures; if it led
   to an acceptance, an outage would be a silent reward.
4. Nothing is lost or reordered: one verdict per completion, in the order of the completions.

`Cause` says what happened; outcome and cause are checked against each other.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from grpo_guard.core.arguments import real, require_type, span
from grpo_guard.core.quoting import printable, shown

SPOT_CHECKS: Final = "spot_checks"
NOT_CHECKED: Final = "not_checked"
"""Finding kind and verifier name of a verdict on a completion that was not drawn for a check. The
completion is accepted because the operator chose that risk, and is evidence for nothing."""


_LINE: Final = 300
"""Maximum length of a verdict's one-line form, in characters."""


class Outcome(StrEnum):
    """Whether a completion may earn its reward."""

    ACCEPT = "accept"
    REJECT = "reject"
    ABSTAIN = "abstain"


class Cause(StrEnum):
    """The reason for a verdict's outcome. Each cause allows certain outcomes, see `outcomes`."""

    # The verifier looked at the completion and decided on the evidence, either way.
    JUDGED = "judged"
    # Caused by the author: rejects.
    SCREENED = "screened"  # a deterministic screen found what honest text never has
    MALFORMED = "malformed"  # ids outside the vocabulary, ids and text that disagree, empty text
    REFUSED = "refused"
    OVERLONG = "overlong"
    # Not signed by a known node, see `grpo_guard.nodes.identity`: rejects, but counts against no
    # node.
    UNAUTHENTICATED = "unauthenticated"
    # The reference answer that came with the completion is wrong: rejects, but counts against no
    # node, because the author may have received that answer from someone else.
    FALSE_REFERENCE = "false_reference"
    # The completion's round is over: rejects, but counts against no node, because a relay can delay
    # a completion.
    LATE = "late"
    # Not caused by the author: abstains.
    TIMEOUT = "timeout"
    RATE_LIMITED = "rate_limited"
    PROVIDER = "provider"
    CIRCUIT_OPEN = "circuit_open"
    BUDGET = "budget"  # the operator's spending limit is reached
    OUT_OF_MEMORY = "out_of_memory"
    FAULT = "fault"  # the verifier raised, returned nonsense, or computed NaN
    UNSUPPORTED = "unsupported"  # outside what this verifier can judge, e.g. an overlong prompt
    UNINFORMATIVE = "uninformative"  # too little evidence for either side
    NOT_APPLICABLE = "not_applicable"  # `only(...)` excluded this completion; combinators skip it

    @property
    def outcomes(self) -> frozenset[Outcome]:
        """The outcomes allowed for a verdict with this cause."""
        return _OUTCOMES[self]


AUTHOR_CAUSES = frozenset(
    {
        Cause.SCREENED,
        Cause.MALFORMED,
        Cause.REFUSED,
        Cause.OVERLONG,
        Cause.UNAUTHENTICATED,
        Cause.FALSE_REFERENCE,
        Cause.LATE,
    }
)
BARRING_CAUSES = frozenset({Cause.UNAUTHENTICATED, Cause.FALSE_REFERENCE, Cause.LATE})
"""Causes that someone other than the author can bring about. They count neither for nor against a
node, and the completion must not even get a low reward: training would learn the opposite of what
an impostor wrote, or unlearn correct work."""
_OUTCOMES = {
    cause: frozenset({Outcome.REJECT if cause in AUTHOR_CAUSES else Outcome.ABSTAIN})
    for cause in Cause
} | {Cause.JUDGED: frozenset({Outcome.ACCEPT, Outcome.REJECT})}


@dataclass(frozen=True, slots=True)
class Finding:
    """A piece of evidence, with its location if it has one.

    Args:
        kind: Short machine-readable name, e.g. ``"outside_support"``.
        message: One sentence for a human reader.
        char_span: Location as a half-open span [start, end) in characters of ``Completion.text``.
        token_span: Location as a half-open span [start, end) in tokens of the completion, counted
            from 0.

    Raises:
        TypeError: ``kind`` or ``message`` is not a str, or a span not a pair of integers.
        ValueError: a span begins before 0 or ends before its start.
    """

    kind: str
    message: str
    char_span: tuple[int, int] | None = None
    token_span: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        # Checked here, because a log or a page would fail without naming the verifier.
        if not isinstance(self.kind, str):
            raise TypeError(f"Finding.kind: expected a str, got {shown(self.kind)}")
        if not isinstance(self.message, str):
            raise TypeError(f"Finding.message: expected a str, got {shown(self.message)}")
        for name, given in (("char_span", self.char_span), ("token_span", self.token_span)):
            if given is not None and (kept := span(f"Finding.{name}", given)) is not given:
                object.__setattr__(self, name, kept)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "message": self.message,
            "char_span": list(self.char_span) if self.char_span else None,
            "token_span": list(self.token_span) if self.token_span else None,
        }


@dataclass(frozen=True, slots=True)
class Usage:
    """The cost of reaching a verdict, even an abstention.

    Args:
        requests: Number of requests to a model, including retries.
        tokens_in, tokens_out: Number of input and output tokens, as counted by the provider.
        cache_hits: Number of answers taken from the cache.
        usd: Price in US dollars; None, rather than 0, if the price is unknown.
        latency: Seconds from the first request to the answer, excluding time in our own queue.
    """

    requests: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cache_hits: int = 0
    usd: float | None = None
    latency: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """One verifier's decision on one completion.

    Args:
        outcome: ACCEPT, REJECT or ABSTAIN.
        cause: Reason for the outcome; must be a cause that allows it (see `Cause.outcomes`).
        verifier: Name of the verifier that decided.
        p_value: Probability, if the completion were honest, of evidence at least this strong; in
            [0, 1], or None if the verifier does not compute a p-value.
        findings: Evidence with spans, strongest first.
        usage: Cost of the verdict, if known.
        seconds: Wall time spent on this completion (a batch's time is shared out evenly).
        members: The verdicts that an ensemble combined into this verdict.

    Raises:
        ValueError: the cause does not allow the outcome, or ``p_value`` is outside [0, 1].
        TypeError: another argument has the wrong type.
    """

    outcome: Outcome
    cause: Cause
    verifier: str
    p_value: float | None = None
    findings: tuple[Finding, ...] = ()
    usage: Usage | None = None
    seconds: float = 0.0
    members: tuple["Verdict", ...] = field(default=())

    def __post_init__(self) -> None:
        if not isinstance(self.cause, Cause):
            raise _not_a_cause(self.cause)
        if type(self.outcome) is not Outcome:
            got = shown(self.outcome)
            raise TypeError(f"Verdict.outcome: expected Outcome.ACCEPT or another, got {got}")
        if self.outcome not in self.cause.outcomes:
            allowed = " or ".join(sorted(self.cause.outcomes))
            raise ValueError(
                f"Verdict.outcome: cause {self.cause.value!r} expects {allowed}, "
                f"got {self.outcome.value!r}"
            )
        if self.findings != ():
            object.__setattr__(self, "findings", _checked_findings(self.findings))
        if self.usage is not None:
            require_type("Verdict.usage", self.usage, Usage, "a Usage")
        if self.members != ():
            object.__setattr__(self, "members", _checked_members(self.members))
        # As Python's floats, because JSON knows no others, such as NumPy's float32.
        if type(self.seconds) is not float:
            object.__setattr__(self, "seconds", real("Verdict.seconds", self.seconds))
        if self.p_value is not None:
            if type(self.p_value) is not float:
                object.__setattr__(self, "p_value", real("Verdict.p_value", self.p_value))
            if not 0.0 <= self.p_value <= 1.0:
                got = f"got {self.p_value!r}"
                raise ValueError(f"Verdict.p_value: expected a number in [0, 1], {got}")

    def __bool__(self) -> bool:
        raise TypeError(
            "Verdict: expected .accepted, .rejected or .abstained, got the verdict itself as a "
            "condition; it has three outcomes"
        )

    def __str__(self) -> str:
        """One line with the outcome, who decided and, unless the completion is accepted, why."""
        by = "" if self.accepted else ", ".join(self.deciding)
        line = f"{self.outcome.value} ({by or self.verifier})"
        if not self.accepted:
            line += f": {self.reason}"
        return printable(" ".join(line.split()))[:_LINE]

    @property
    def accepted(self) -> bool:
        return self.outcome is Outcome.ACCEPT

    @property
    def rejected(self) -> bool:
        return self.outcome is Outcome.REJECT

    @property
    def abstained(self) -> bool:
        return self.outcome is Outcome.ABSTAIN

    @property
    def reason(self) -> str:
        """One line for humans: the strongest finding or, failing that, the cause or who
        rejected."""
        if self.findings:
            return self.findings[0].message
        if self.cause is not Cause.JUDGED or not self.rejected:
            return self.cause.value
        return f"rejected by {', '.join(self.deciding) or self.verifier}"

    @property
    def deciding(self) -> tuple[str, ...]:
        """Names of the innermost members with the same outcome; () if there are no members."""
        found: dict[str, None] = {}
        for member in self.members:
            if member.outcome is self.outcome:
                found.update(dict.fromkeys(member.deciding or (member.verifier,)))
        return tuple(found)

    def taking(self, seconds: float) -> "Verdict":
        """Return a copy of the verdict with this wall time."""
        return replace(self, seconds=seconds)

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict in the JSON form used in OUT.jsonl (without the index)."""
        return {
            "outcome": self.outcome.value,
            "cause": self.cause.value,
            "p_value": self.p_value,
            "findings": [f.to_dict() for f in self.findings],
            "verifier": self.verifier,
            "seconds": self.seconds,
            "members": [m.to_dict() for m in self.members],
        }


_FIELDS: Final = frozenset({"p_value", "findings", "usage", "seconds", "members"})
"""Additional verdict fields that `accept`, `reject` and `abstain` take."""


def accept(verifier: str, **fields: Any) -> Verdict:
    """Build an ACCEPT with cause JUDGED. Calls without extra fields share one object per name."""
    if all(isinstance(value, tuple) and not value for value in fields.values()):
        return _accepted(verifier)
    return Verdict(Outcome.ACCEPT, Cause.JUDGED, verifier, **_known("accept", fields))


@lru_cache(maxsize=256)
def _accepted(verifier: str) -> Verdict:
    return Verdict(Outcome.ACCEPT, Cause.JUDGED, verifier)


def reject(verifier: str, cause: Cause = Cause.JUDGED, message: str = "", **fields: Any) -> Verdict:
    """Build a REJECT verdict; ``message`` becomes a finding named after the cause."""
    fields = _with_message(cause, message, _known("reject", fields))
    return Verdict(Outcome.REJECT, cause, verifier, **fields)


def abstain(verifier: str, cause: Cause, message: str = "", **fields: Any) -> Verdict:
    """Build an ABSTAIN verdict; ``message`` becomes a finding named after the cause."""
    fields = _with_message(cause, message, _known("abstain", fields))
    return Verdict(Outcome.ABSTAIN, cause, verifier, **fields)


def _with_message(cause: Cause, message: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    fields = dict(fields)
    if message:
        given = _checked_findings(fields.get("findings", ()))
        fields["findings"] = (Finding(cause.value, message), *given)
    return fields


def _known(maker: str, fields: dict[str, Any]) -> dict[str, Any]:
    if unknown := fields.keys() - _FIELDS:
        words = "" if maker == "accept" else "; put explanations into message="
        raise TypeError(
            f"{maker}: expected {', '.join(sorted(_FIELDS))}, got {min(unknown)!r}{words}"
        )
    return fields


def _not_a_cause(got: Any) -> TypeError:
    first = got[0] if isinstance(got, list | tuple) and got else got
    found = isinstance(first, Finding)
    remedy = "write findings=(...)" if found else "put explanations into message="
    expected = "Verdict.cause: expected a Cause such as Cause.JUDGED"
    return TypeError(f"{expected}, got {got!r:.80}; {remedy}")


def _checked_findings(given: Any) -> tuple[Finding, ...]:
    """Return findings as a tuple; for anything else, raise TypeError with the remedy."""
    found = given
    if isinstance(given, Iterable) and not isinstance(given, str):
        findings = tuple(given)
        found = next((one for one in findings if not isinstance(one, Finding)), None)
        if found is None:
            return findings
    hint = ""
    if isinstance(found, Finding):
        hint = "; write findings=(finding,)"
    elif isinstance(found, str):
        text = shown(found)
        hint = f"; write message={text}, or findings=(Finding(kind, {text}),)"
    raise TypeError(f"Verdict.findings: expected several Finding objects, got {shown(found)}{hint}")


def _checked_members(given: Any) -> tuple[Verdict, ...]:
    """Return members as a tuple; raise TypeError for anything but a tuple or list of verdicts."""
    found = given
    if isinstance(given, tuple | list):
        if all(isinstance(one, Verdict) for one in given):
            return tuple(given)
        found = next(one for one in given if not isinstance(one, Verdict))
    raise TypeError(f"Verdict.members: expected a tuple of Verdict, got {shown(found)}")


def noted(verdict: Verdict, note: Finding | None) -> Verdict:
    """Return a verdict with one more finding, which does not affect the outcome."""
    return verdict if note is None else replace(verdict, findings=(*verdict.findings, note))


def negated(verdict: Verdict, verifier: str) -> Verdict:
    """Swap acceptance and rejection, under the name ``verifier``. Verdicts with a cause other than
    JUDGED keep their outcome, as do those on completions that a spot check skipped."""
    outcome = verdict.outcome
    unseen = any(finding.kind == NOT_CHECKED for finding in verdict.findings)
    if verdict.cause is Cause.JUDGED and not unseen:
        outcome = Outcome.REJECT if verdict.accepted else Outcome.ACCEPT
    # The p-value tests the member's hypothesis, not its opposite.
    return replace(verdict, outcome=outcome, verifier=verifier, p_value=None, members=(verdict,))


def merged_findings(verdicts: Sequence[Verdict]) -> tuple[Finding, ...]:
    """Merge the findings of several verdicts; equal findings are reported once, with the first
    message.

    Findings are equal if their kinds and locations are equal. If they have no location, their
    messages must be equal too.
    """
    if not any(v.findings for v in verdicts):
        return ()
    merged: dict[object, Finding] = {}
    for finding in (f for v in verdicts for f in v.findings):
        places = (finding.char_span, finding.token_span)
        words = finding.message if places == (None, None) else ""
        merged.setdefault((finding.kind, *places, words), finding)
    return tuple(merged.values())


def applicable_of(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the verdicts whose cause is not NOT_APPLICABLE."""
    aside = Cause.NOT_APPLICABLE  # an enum's attribute is slow to look up
    return [v for v in verdicts if v.cause is not aside]
