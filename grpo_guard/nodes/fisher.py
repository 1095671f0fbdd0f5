"""Fisher's exact test, one-sided: could a node that behaves like the others show this count?"""

from math import exp, inf, lgamma, log


def log_choose(n: int, k: int) -> float:
    """Natural logarithm of the binomial coefficient."""
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def log_tail(hits: int, total: int, other_hits: int, other_total: int) -> float:
    """Natural logarithm of the hypergeometric tail P(count >= ``hits``) under the null; at most 0.

    ``hits`` of the node's ``total`` items (e.g. prompts) show the feature (e.g. a phrase), and so
    do ``other_hits`` of the other nodes' ``other_total``. Raises ValueError if the counts are
    inconsistent.
    """
    if not (0 <= hits <= total and 0 <= other_hits <= other_total):
        raise ValueError(
            f"log_tail: expected 0 <= hits <= total, got {hits}/{total}, {other_hits}/{other_total}"
        )
    marked, everything = hits + other_hits, total + other_total
    largest, sum_ = -inf, 0.0
    for count in range(hits, min(marked, total) + 1):
        rest = marked - count
        if rest > other_total:
            continue
        term = log_choose(total, count) + log_choose(other_total, rest)
        if term > largest:
            sum_, largest = sum_ * exp(largest - term) + 1.0, term
        else:
            sum_ += exp(term - largest)
            if term < largest - 40:
                break
    return min(0.0, largest + log(sum_) - log_choose(everything, marked))
