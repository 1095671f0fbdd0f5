"""Write rounds to a ledger: ``worker_ledger.py PATH PART FROM TO``; prints each round once written.

PART is "even", "odd" or "all": the completions of a round that this process has.
"""

import sys

from grpo_guard.nodes.ledger import EvidenceLedger
from tests.nodes.swarm_ledger import played

if __name__ == "__main__":
    path, part, first, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    ledger = EvidenceLedger(path)
    mine = {"even": slice(0, None, 2), "odd": slice(1, None, 2), "all": slice(None)}[part]
    for t in range(first, last):
        batch, verdicts = played(t, {("mal", t % 24), ("mal", (t + 7) % 24)})
        ledger.record(batch[mine], verdicts[mine])
        print(t if ledger.degraded is None else f"degraded {ledger.degraded}", flush=True)
    ledger.close()
