"""P-values for a verifier that has none, calibrated on honest completions.

A rule only accepts or rejects, so how often it rejects honest work has to be measured. `Calibrated`
ranks each verdict among the verifier's verdicts on n honest completions (conformal prediction, Vovk
et al. 2005): ``p = (1 + number of honest completions judged at least as badly) / (n + 1)``. This
p-value is super-uniform as long as future honest completions resemble the calibration set. Its
resolution is limited by the size of that set: n completions give no p-value below 1 / (n + 1).
"""

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from grpo_guard.core.completion import Completion
from grpo_guard.core.files import write_whole
from grpo_guard.core.p_values import decided_by_p
from grpo_guard.core.supervise import supervised, supervised_each
from grpo_guard.core.verdict import Cause, Verdict
from grpo_guard.core.verifier import ByRow, CompletionVerifier

FORMAT = "grpo-guard calibration 1"
# Only the smallest scores lead to rejections. A completion scoring above all of them gets p = 1.
KEPT_SCORES = 10_000


class CalibrationFileError(ValueError):
    """A calibration file is malformed, or has no entry for this verifier."""


@dataclass(frozen=True, slots=True)
class HonestScores:
    """Scores that a verifier gave to honest completions.

    Args:
        completions: Number of completions judged, not counting abstentions.
        rejected: Number of judged completions that were rejected.
        abstained: Number of additional completions on which the verifier abstained.
        scores: The smallest scores in ascending order, at most `KEPT_SCORES`; see `score`.
    """

    completions: int
    rejected: int
    abstained: int
    scores: tuple[float, ...]

    def __post_init__(self) -> None:
        ordered = all(a <= b for a, b in zip(self.scores, self.scores[1:], strict=False))
        in_range = all(0.0 <= s <= 1.0 for s in self.scores)
        counts = 0 <= self.rejected <= self.completions and self.abstained >= 0
        if not (ordered and in_range and counts and len(self.scores) <= self.completions):
            raise ValueError("HonestScores: expected ascending scores in [0, 1] and their counts")
        if self.completions < 1:
            raise ValueError("HonestScores.completions: expected at least 1 judged, got 0")

    @classmethod
    def of(cls, verdicts: Sequence[Verdict]) -> "HonestScores":
        """Collect the scores of verdicts on honest completions, at least one of them judged."""
        judged = [v for v in verdicts if not v.abstained]
        return cls(
            len(judged),
            sum(v.rejected for v in judged),
            len(verdicts) - len(judged),
            tuple(sorted(score(v) for v in judged)[:KEPT_SCORES]),
        )

    @property
    def smallest_p(self) -> float:
        """The smallest p-value that any verdict can get.

        This is ``1 / (n + 1)``, or more if honest completions got the worst possible score: a rule
        that rejected k honest completions gives ``(1 + k) / (n + 1)`` to all its later rejections.
        """
        return self.p_of(0.0)

    def p_of(self, score: float) -> float:
        """Return the conformal p-value of a `score`."""
        at_most = bisect_right(self.scores, score)
        if at_most == len(self.scores) < self.completions or score >= 1.0:
            return 1.0
        return (1 + at_most) / (self.completions + 1)


def score(verdict: Verdict) -> float:
    """Score how favourable a verdict is, in [0, 1]: a judgement's p-value if it has one.

    Without a p-value, a rejection scores 0 and an acceptance 1, so rules are ranked by the only two
    answers they give.
    """
    if verdict.p_value is not None and verdict.cause is Cause.JUDGED:
        return verdict.p_value
    return 0.0 if verdict.rejected else 1.0


class Calibrated(ByRow):
    """A verifier whose verdicts carry a conformal p-value.

    Args:
        verifier: The verifier to calibrate.
        honest: The verifier's scores on honest completions, or the path of a file that
            ``grpo-guard calibrate`` wrote.
        alpha: Reject exactly the completions with ``p <= alpha``. None keeps the verifier's own
            outcome and only adds the p-value, for use in a combination. Rejections for something
            the author caused (malformed, overlong, screened) stand either way.

    Raises:
        ValueError: ``alpha`` is so small that no completion could ever be rejected.
        CalibrationFileError: the calibration file cannot be used.
    """

    def __init__(
        self,
        verifier: CompletionVerifier,
        honest: HonestScores | str | Path,
        *,
        alpha: float | None = None,
    ) -> None:
        super().__init__(verifier)
        self.name = verifier.name
        if not isinstance(honest, HonestScores):
            honest = read_calibration(honest, verifier.name)
        self.honest = honest
        if alpha is not None and alpha < honest.smallest_p:
            raise ValueError(
                f"Calibrated.alpha: expected at least {honest.smallest_p:.2g}, the smallest "
                f"p-value that {honest.completions} honest completions give, of which "
                f"{honest.rejected} were rejected, got {alpha!r}"
            )
        self.alpha = alpha

    @classmethod
    def on(
        cls,
        verifier: CompletionVerifier,
        honest: Sequence[Completion],
        *,
        alpha: float | None = None,
    ) -> "Calibrated":
        """Calibrate a verifier on honest completions, judged as one batch in the given order.

        Sample these completions yourself: any fault among them will be tolerated from then on.
        """
        return cls(verifier, HonestScores.of(supervised(verifier, honest)), alpha=alpha)

    @property
    def smallest_p(self) -> float:
        """The smallest p-value that any verdict can get; see `HonestScores.smallest_p`."""
        return self.honest.smallest_p

    def verify_each(self, batches: Sequence[Sequence[Completion]]) -> list[list[Verdict]]:
        each = supervised_each(self.members[0], batches)
        return [[self._with_p(verdict) for verdict in verdicts] for verdicts in each]

    def _with_p(self, verdict: Verdict) -> Verdict:
        if verdict.abstained:
            return verdict
        p = self.honest.p_of(score(verdict))
        if self.alpha is None or verdict.cause is not Cause.JUDGED:
            return replace(verdict, p_value=p)
        return decided_by_p(replace(verdict, p_value=p), self.alpha)


def write_calibration(path: str | Path, honest: Mapping[str, HonestScores]) -> None:
    """Write honest scores, keyed by verifier name, to a file atomically."""
    data = {"format": FORMAT, "verifiers": {name: asdict(h) for name, h in honest.items()}}
    write_whole(Path(path), json.dumps(data, indent=1) + "\n")


def read_calibration(path: str | Path, name: str) -> HonestScores:
    """Read a verifier's honest scores from a file; raise CalibrationFileError if there are none."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CalibrationFileError(f"{path}: expected a calibration file, got {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise CalibrationFileError(f"{path}: expected format {FORMAT!r}")
    verifiers = data.get("verifiers")
    if not isinstance(verifiers, dict) or name not in verifiers:
        known = ", ".join(verifiers) if isinstance(verifiers, dict) else "nothing"
        raise CalibrationFileError(f"{path}: expected {name!r} among the verifiers, got {known}")
    try:
        fields = dict(verifiers[name])
        fields["scores"] = tuple(float(s) for s in fields["scores"])
        return HonestScores(**fields)
    except (TypeError, ValueError, KeyError) as error:
        raise CalibrationFileError(f"{path}: {name}: {error}") from None
