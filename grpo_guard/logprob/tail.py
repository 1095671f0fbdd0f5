"""TailProbabilityVerifier: is there a token that the policy would hardly ever have drawn?

Let p be the policy's distribution at the declared temperature and u the total probability of all
tokens no likelier than the chosen token. An honest token is drawn from p restricted to a top set of
tokens and renormalised. The set of tokens with tail mass <= a is a bottom set of mass at most a,
and restricting p to a top set removes at least as large a share of that bottom set as of the rest.
So P(u <= a) <= a under top-k, top-p and min-p in any order, or no truncation at all: no calibration
set is needed.

Token t is tested at level alpha * s_t. The share s_t depends only on the text before the token, and
the shares of all tokens that could occur add up to at most 1 (`shares.py`), so
P(some u_t <= alpha * s_t) <= E[sum of alpha * s_t] <= alpha, however the length comes about.
The p-value is the smallest u_t / s_t, enlarged by e^d for numerical drift, d = tau / T: if no
token's probability under the sampler exceeds e^d times its probability under the verifier, the same
holds for sets of tokens, so P(u <= a) <= e^d a. Under truncation the two sides may order tokens
differently near the edge. At worst that costs another factor of 1 / (probability kept by the
sampler), 1.25 for top-p 0.8; choose ``tau`` large enough to leave room for that. If drift exceeds
that, the bound does not hold.
"""

from typing import Any

import numpy as np

from grpo_guard.core.arguments import require_count
from grpo_guard.core.completion import Completion
from grpo_guard.core.p_values import p_text
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.core.verdict import Finding, Verdict, accept, reject
from grpo_guard.logprob.encode import Encoded
from grpo_guard.logprob.profile import TEXT, DriftProfile
from grpo_guard.logprob.profile_file import profile_of
from grpo_guard.logprob.shares import Place, Places, shares_of
from grpo_guard.logprob.stats import Floats, TokenStats
from grpo_guard.logprob.verifier import LogProbVerifier

MOST_FINDINGS = 3
_LEAST_MASS = 1e-38  # the smallest mass float32 holds at full precision: 0 means at most this
_PLACE_NAMES = {
    Place.ELSEWHERE: "not a number position",
    Place.NUMBER: "a number position",
    Place.ANSWER: "an answer position",
}


class TailProbabilityVerifier(LogProbVerifier):
    """Rejects completions containing a token that honest sampling would hardly ever have drawn.

    Closes a gap that a top-k check leaves where the policy is sure: the top-50 can include 49
    tokens whose combined probability is one in a million. Run this verifier together with
    `LogProbBoundVerifier`, which detects more where the policy is less sure; see
    ``docs/calibration.md`` for measured figures. The test is stricter after text that calls for a
    number or an answer (after ``=``, an operator, a digit, ``####``, ``\\boxed{`` ...).

    Declare ``max_new_tokens``: without it, later tokens get smaller shares of alpha, and padding
    before the poison slightly dilutes the test. With it, neither length nor padding changes any
    share; all an attacker can do is use up the extra shares by writing many numbers first.

    Completions without token ids are rejected as MALFORMED: a retokenised token was never drawn, so
    its tail mass alone means nothing, and the sender chose to omit the ids. If your nodes never
    send ids, pass ``require_ids=False``: text is then NOT_APPLICABLE and judged only by the other
    verifiers in an ensemble. If ``text_profile`` has a finite ``tau``, this verifier judges text
    itself.

    The verifier cannot see poison that the policy finds likely, many tokens that are each slightly
    improbable (`LogProbBoundVerifier` bets on those), or cherry-picking among honest samples.

    Args:
        number_positions: How many number positions, counted from the start of a completion, share a
            quarter of alpha on top of their general share; 0 for none. Default: an eighth of
            ``max_new_tokens``, at least 8, or 64 if no length is declared.
        answer_positions: How many answer positions share another quarter of alpha; 0 for none.
        require_ids: Reject completions without token ids. By default they are rejected unless
            ``text_profile`` has a finite ``tau``.
        **options: Further arguments of `LogProbVerifier`.

    Raises:
        ValueError: a number of positions is negative; also the errors of `LogProbVerifier`.
    """

    name = "tail_probability"

    def __init__(
        self,
        model: Any | None = None,
        tokenizer: Any = None,
        *,
        sampling: SamplingSpec,
        alpha: float = 1e-3,
        number_positions: int | None = None,
        answer_positions: int = 8,
        require_ids: bool | None = None,
        **options: Any,
    ) -> None:
        if require_ids is None:
            require_ids = not np.isfinite(profile_of(options.get("text_profile", TEXT)).tau)
        super().__init__(
            model, tokenizer, sampling=sampling, alpha=alpha, require_ids=require_ids, **options
        )
        if number_positions is None:
            number_positions = max(8, (sampling.max_new_tokens or 512) // 8)
        require_count("number_positions", number_positions, least=0)
        require_count("answer_positions", answer_positions, least=0)
        self.number_positions = number_positions
        self.answer_positions = answer_positions
        self.places = Places(tokenizer)

    def _unable(self, profile: DriftProfile) -> str | None:
        if np.isfinite(profile.tau):
            return None
        return (
            f"profile {profile.name!r} does not cover single tokens (tau is infinite); "
            "send completion_ids"
        )

    def _judge(
        self, completion: Completion, encoded: Encoded, stats: TokenStats, profile: DriftProfile
    ) -> Verdict:
        kinds = self.places((encoded.whole or encoded).completion_ids)
        places = [kinds[i] for i in encoded.places]
        # Retokenised text can have more tokens than were sampled.
        longest = None if encoded.from_text else self.sampling.max_new_tokens
        shares = shares_of(
            places, longest, numbers=self.number_positions, answers=self.answer_positions
        )
        p = token_p_values(stats.tail_mass, shares, profile.tau / self.sampling.temperature)
        notes = self._notes(encoded)
        p_value = float(p.min())
        if p_value >= self.alpha:
            return accept(self.name, p_value=p_value, findings=notes)
        worst = [int(t) for t in np.argsort(p, kind="stable")[:MOST_FINDINGS] if p[t] < self.alpha]
        findings = [
            self._finding(completion, encoded, stats, t, places[t], float(p[t])) for t in worst
        ]
        return reject(self.name, p_value=p_value, findings=(*findings, *notes))

    def _finding(
        self,
        completion: Completion,
        encoded: Encoded,
        stats: TokenStats,
        t: int,
        place: Place,
        p_value: float,
    ) -> Finding:
        token, token_span = encoded.completion_ids[t], encoded.span(t, t + 1)
        message = (
            f"token {token_span[0]} (id {token}, {self.places.piece(token)[:40]!r}, "
            f"{_PLACE_NAMES[place]}): log-prob {stats.logprob[t]:.1f}, rank {stats.rank[t]}; all "
            "tokens no likelier have a total probability of at most "
            f"{max(float(stats.tail_mass[t]), _LEAST_MASS):.1e}; "
            f"chance of such a token in honest work at most {p_text(p_value)}, allowing for drift"
        )
        span = self.encoder.char_span(completion, encoded, t, t + 1)
        return Finding("improbable_token", message, char_span=span, token_span=token_span)


def token_p_values(tail_mass: Floats, shares: Floats, drift: float) -> Floats:
    """Return the completion's p-value based on each token alone, allowing for a finite ``drift`` in
    nats at the declared temperature: [n], [n] -> [n]."""
    mass = np.maximum(tail_mass, _LEAST_MASS)
    with np.errstate(divide="ignore"):  # a token without a share is not tested
        log_p = np.where(shares > 0, np.log(mass) + drift - np.log(shares), 0.0)
    p: Floats = np.exp(np.minimum(log_p, 0.0))
    return p
