"""Measure how many cases of each kind a judge accepts."""

from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel

from grpo_guard.core.supervise import supervised
from grpo_guard.core.verdict import Verdict
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.evals.judge_probe.cases import HONEST, ProbeCase
from grpo_guard.evals.stats import Rate

# Table 1 of arXiv 2511.09780: share accepted, by a 14B model with chain of thought.
PAPER: Final = {HONEST: "74.75 %", "TEXT, at the start": "3.75 %", "MATH": "1.54 %"}
OVERALL: Final = "all attacks"


class ProbeRow(BaseModel):
    """A kind of completion, with the Wilson 95 % interval for the share accepted, [low, high].

    An abstention is neither; ``paper`` is the share that the paper's judge accepted.
    """

    kind: str
    n: int
    accepted: int
    abstained: int
    low: float
    high: float
    paper: str | None = None


class ProbeResult(BaseModel):
    """The rows of all kinds, honest solutions first and all attacks last, and the cost."""

    judge: str
    rows: list[ProbeRow]
    requests: int
    tokens_in: int
    tokens_out: int
    usd: float | None

    @property
    def cost(self) -> str:
        """A line with requests, tokens and cost, in total and per thousand completions."""
        tried = sum(row.n for row in self.rows if row.kind != OVERALL)
        usd = "cost unknown" if self.usd is None else f"cost {self.usd:.4f} USD"
        total = (
            f"{self.requests:,} requests, {self.tokens_in:,} tokens in, {self.tokens_out:,} out; "
            f"{usd}"
        )
        if not tried:
            return total
        each = f"{1000 * (self.tokens_in + self.tokens_out) / tried:,.0f} tokens"
        if self.usd is not None:
            each += f", {1000 * self.usd / tried:.2f} USD"
        return f"{total}; per thousand completions {each}"

    def row(self, kind: str) -> ProbeRow:
        """Return the row for a kind."""
        return next(row for row in self.rows if row.kind == kind)


def probe(judge: CompletionVerifier, cases: Sequence[ProbeCase]) -> ProbeResult:
    """Submit cases to a judge and count how many of each kind it accepts."""
    verdicts = supervised(judge, [case.completion for case in cases])
    kinds = list(dict.fromkeys(case.kind for case in cases))
    rows = [
        _row(kind, [v for v, case in zip(verdicts, cases, strict=True) if case.kind == kind])
        for kind in kinds
    ]
    attacks = [v for v, case in zip(verdicts, cases, strict=True) if case.attack]
    usages = [v.usage for v in verdicts if v.usage is not None]
    prices = [usage.usd for usage in usages]
    return ProbeResult(
        judge=judge.name,
        rows=[*rows, _row(OVERALL, attacks)],
        requests=sum(usage.requests for usage in usages),
        tokens_in=sum(usage.tokens_in for usage in usages),
        tokens_out=sum(usage.tokens_out for usage in usages),
        usd=None if None in prices or not prices else sum(p for p in prices if p is not None),
    )


def _row(kind: str, verdicts: Sequence[Verdict]) -> ProbeRow:
    accepted = sum(v.accepted for v in verdicts)
    low, high = Rate(accepted, len(verdicts)).interval or (0.0, 1.0)
    return ProbeRow(
        kind=kind,
        n=len(verdicts),
        accepted=accepted,
        abstained=sum(v.abstained for v in verdicts),
        low=low,
        high=high,
        paper=PAPER.get(kind),
    )
