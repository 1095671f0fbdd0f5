"""LogProbBoundVerifier: could the declared sampler have drawn these tokens from this policy?"""

from __future__ import annotations

from grpo_guard.completion import Completion
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.evidence import AMBIGUOUS, OUTSIDE, Evidence, heaviest_span, weigh
from grpo_guard.logprob.profile import DriftProfile
from grpo_guard.logprob.stats import TokenStats
from grpo_guard.logprob.verifier import LogProbVerifier
from grpo_guard.verdict import Finding, Verdict, accept, reject


class LogProbBoundVerifier(LogProbVerifier):
    """Rejects completions whose tokens the shared policy would not have sampled.

    For homogeneous swarms, where every node holds the same weights. Sharpens the check of "Hail to
    the Thief" (arXiv 2511.09780, every token in the top-50) in three ways: a margin for numerical
    drift and a binomial test instead of zero tolerance, so that honest work passes at a stated
    rate; the support of the declared engine, not only top-k; and a test of how unlikely the tokens
    are together, so that text inside the support does not pass for free. See `evidence.py`.

    What it cannot see: poison that the policy finds likely, such as a single wrong digit where the
    model is unsure, and a choice among honest samples (the longest of eighty). Those need a shared
    seed.

    Arguments and errors are those of `LogProbVerifier`.
    """

    name = "logprob_bound"

    def _judge(
        self, completion: Completion, encoded: Encoded, stats: TokenStats, profile: DriftProfile
    ) -> Verdict:
        evidence = weigh(stats, profile)
        notes = (*_at_the_edge(evidence), *self._notes(encoded))
        if evidence.p_value >= self.alpha:
            return accept(self.name, p_value=evidence.p_value, findings=notes)
        finding = self._finding(completion, encoded, stats, evidence)
        return reject(self.name, p_value=evidence.p_value, findings=(finding, *notes))

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


def _at_the_edge(evidence: Evidence) -> tuple[Finding, ...]:
    ambiguous = int((evidence.zones == AMBIGUOUS).sum())
    if not ambiguous:
        return ()
    return (Finding("ambiguous", f"{ambiguous} tokens lie at the edge of the support"),)
