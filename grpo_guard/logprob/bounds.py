"""LogProbBoundVerifier: could the declared sampler have drawn these tokens from this policy?"""

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from grpo_guard.core.completion import Completion
from grpo_guard.core.p_values import p_text
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.core.verdict import Finding, Verdict, accept, reject
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.evidence import AMBIGUOUS, OUTSIDE, Evidence, heaviest_span, weigh
from grpo_guard.logprob.node_evidence import NodeEvidence
from grpo_guard.logprob.profile import DriftProfile
from grpo_guard.logprob.sampler_mismatch import TemperatureCheck, unlimited_warning
from grpo_guard.logprob.scan import keyed_shares
from grpo_guard.logprob.shares import Places
from grpo_guard.logprob.stats import TokenStats
from grpo_guard.logprob.verifier import LogProbVerifier, Scored
from grpo_guard.nodes.store import NodeStore

logger = logging.getLogger("grpo_guard")


class LogProbBoundVerifier(LogProbVerifier):
    """Rejects completions whose tokens the shared policy would not have sampled.

    For homogeneous swarms, where every node holds the same weights. Sharpens the check in "Hail to
    the Thief" (arXiv 2511.09780: every token in the top-50) in three ways: a margin for numerical
    drift and a binomial test instead of zero tolerance, so that honest work passes at a stated
    rate; the declared engine's actual support rather than top-k alone; and a test of how unlikely
    the tokens are jointly, so that text inside the support is tested too. See `evidence.py`.

    The verifier also tests each node's completions jointly: a batch can reveal what no single
    completion does, and evidence against the node accumulates over batches. See `batch_evidence.py`
    and `nodes/e_process.py`. Once a node is convicted, its completions are rejected if they contain
    a stretch the node repeats or are improbable at the 5 % level; such verdicts have no p-value.
    Completions without a node are treated as coming from a single node, but are tested only for
    repeated stretches, which cannot be found in text without token ids.

    The verifier cannot see poison that the policy finds likely, such as a single wrong digit where
    the model is unsure, or cherry-picking among honest samples (the longest of eighty). Detecting
    either takes a shared seed. Nodes must not use one seed for all prompts or reuse a seed in every
    batch, because their answers would look alike.

    Args:
        model, tokenizer, sampling, options: As for `LogProbVerifier`.
        node_alpha: Probability that an honest node is ever convicted, in addition to ``alpha`` for
            each of its completions, in [0, 1); 0 turns the test of nodes off.
        key: Secret of 1 to 64 bytes, unknown to authors, that makes tail masses uniform. If None, a
            random key is used, so p-values near alpha vary slightly between processes.
        store: Keeps the evidence across processes and restarts, or None to keep it in this object.

    Raises:
        ValueError, TypeError: as for `LogProbVerifier`; or ``node_alpha`` or ``key`` is out of
            range.
    """

    name = "logprob_bound"

    def __init__(
        self,
        model: Any | None = None,
        tokenizer: Any = None,
        *,
        sampling: SamplingSpec,
        node_alpha: float = 1e-3,
        key: bytes | None = None,
        store: NodeStore | None = None,
        **options: Any,
    ) -> None:
        if not 0 <= node_alpha < 1:
            raise ValueError(f"node_alpha: expected a number in [0, 1), got {node_alpha!r}")
        if key is not None and not (isinstance(key, bytes) and 1 <= len(key) <= 64):
            raise ValueError("key: expected 1 to 64 bytes, or None")
        super().__init__(model, tokenizer, sampling=sampling, **options)
        self.nodes = NodeEvidence(self.name, sampling, node_alpha, store, Places(tokenizer))
        self._node_alpha = node_alpha
        if node_alpha:
            self.scope = "history"
        self._key = secrets.token_bytes(16) if key is None else key
        self._temperature = TemperatureCheck(self.name, sampling)
        if warning := unlimited_warning(self.name, sampling):
            logger.warning("%s", warning)

    @property
    def idle_without(self) -> Mapping[str, str]:
        if not self._node_alpha:
            return {}
        return {"node": "treats all completions as one node's"}

    def state_dict(self) -> dict[str, Any]:
        """Return the accumulated evidence about nodes, as plain JSON values."""
        return self.nodes.e_processes.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `state_dict`; raises ValueError for anything else."""
        self.nodes.e_processes.load_state_dict(state)

    def judge_together(
        self, batch: Sequence[Completion], scored: Mapping[int, Scored]
    ) -> dict[int, Verdict]:
        weighed: dict[int, Evidence] = {}
        verdicts: dict[int, Verdict] = {}
        for i, s in scored.items():
            unable = self._cannot_judge(s.stats, s.profile)
            if unable is not None:
                verdicts[i] = unable
            else:
                weighed[i] = self.weigh(s.encoded, s.stats, s.profile)
                verdicts[i] = self._verdict(batch[i], s.encoded, s.stats, weighed[i])
        sampled = {i: s.stats for i, s in scored.items() if not s.encoded.from_text}
        self._temperature.observe(sampled, {i: batch[i].node for i in sampled})
        for i, (finding, token_span) in self.nodes.convicted(batch, scored, weighed).items():
            if verdicts[i].accepted:
                encoded = scored[i].encoded
                span = self.encoder.char_span(batch[i], encoded, *token_span)
                placed = replace(finding, char_span=span, token_span=encoded.span(*token_span))
                # No p-value: the node's says nothing about this completion, whose own p-value did
                # not reject.
                verdicts[i] = reject(self.name, findings=(placed, *verdicts[i].findings))
        return verdicts

    def weigh(self, encoded: Encoded, stats: TokenStats, profile: DriftProfile) -> Evidence:
        """Weigh the evidence in one completion's tokens, whose statistics must be free of NaN."""
        ids = (*encoded.prompt_ids, -1, *encoded.completion_ids)
        shares = keyed_shares(self._key, ids, len(stats))
        return weigh(stats, profile, self.sampling, shares=shares)

    def _judge(
        self, completion: Completion, encoded: Encoded, stats: TokenStats, profile: DriftProfile
    ) -> Verdict:
        return self._verdict(completion, encoded, stats, self.weigh(encoded, stats, profile))

    def _verdict(
        self, completion: Completion, encoded: Encoded, stats: TokenStats, evidence: Evidence
    ) -> Verdict:
        notes = self._notes(encoded)
        if ambiguous := int((evidence.zones == AMBIGUOUS).sum()):
            lie = "token lies" if ambiguous == 1 else "tokens lie"
            message = f"{ambiguous} {lie} at the edge of the support"
            notes = (Finding("ambiguous", message), *notes)
        if evidence.p_value >= self.alpha:
            return accept(self.name, p_value=evidence.p_value, findings=notes)
        finding = self._finding(completion, encoded, stats, evidence)
        return reject(self.name, p_value=evidence.p_value, findings=(finding, *notes))

    def _finding(
        self, completion: Completion, encoded: Encoded, stats: TokenStats, evidence: Evidence
    ) -> Finding:
        """Describe the most incriminating stretch of tokens."""
        others = min(evidence.surprise_p, evidence.floor_p)
        support_decides = evidence.support_p <= min(others, evidence.scan_p)
        scan_decides = not support_decides and evidence.scan_p <= others
        start, end = evidence.window if scan_decides else heaviest_span(evidence.weights)
        outside = int((evidence.zones == OUTSIDE).sum())
        worst = int(stats.logprob[start:end].argmin()) + start
        token, _ = encoded.span(worst, worst + 1)
        first, end_of = encoded.span(start, end)
        about = (
            f"least likely here: token {token} at log-prob {stats.logprob[worst]:.1f}, "
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
            what = f"tokens {first} to {end_of} are" if scan_decides else "it is"
            message = f"{what} too improbable for the declared sampler ({about})"
        message += f"; chance for honest work {p_text(evidence.p_value)}"
        span = self.encoder.char_span(completion, encoded, start, end)
        return Finding(kind, message, char_span=span, token_span=(first, end_of))
