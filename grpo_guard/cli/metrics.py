"""``grpo-guard metrics``: the figures that a guard logs for each batch."""

import re
from typing import Final

from grpo_guard.cli.terminal import echo

_LINK: Final = re.compile(r"\[(.*?)\]\(.*?\)")
MEANINGS: Final = {
    "guard/accept_rate": "share of the batch that was accepted",
    "guard/reject_rate": "share that was rejected",
    "guard/abstain_rate": "share that could not be judged",
    "guard/abstain_rate/CAUSE": "the same, by [cause](../abstentions.md)",
    "guard/reject_rate/VERIFIER": "share that this verifier rejects, even if it is 0",
    "guard/not_applicable_rate/VERIFIER": "share that this verifier did not look at",
    "guard/not_checked_rate": "share that [spot checks](../scale.md) accepted unseen",
    "guard/node/NAME/OUTCOME": "number of this node's completions that were accepted, rejected "
    "or could not be judged",
    "guard/seconds": "time spent on the batch, summed over completions",
    "guard/wait_seconds": "time that the trainer waited for the review",
    "guard/VERIFIER/requests": "requests to a model, retries included",
    "guard/VERIFIER/cache_hits": "answers that were known already",
    "guard/VERIFIER/tokens": "tokens in and out, as the provider counts them",
    "guard/VERIFIER/usd": "cost; left out if a price is unknown",
    "guard/VERIFIER/latency_p50": "seconds to the answer, median",
    "guard/VERIFIER/latency_p95": "seconds to the answer, 95th percentile",
}
"""Name under which the adapters log a figure -> what it is, in Markdown."""


def metrics() -> None:
    """List the figures that a guard logs for each batch."""
    width = max(map(len, MEANINGS))
    for name, meaning in MEANINGS.items():
        echo(f"{name:<{width}}  {_LINK.sub(lambda link: link[1], meaning)}")
