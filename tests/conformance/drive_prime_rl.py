"""Run the cases through prime-rl behind a guarded algorithm; runs in the verifiers environment.

Uses prime-rl's own files if a checkout is on the path, otherwise the reimplementation in
tests/verifiers/prime_rl_parts.py; the page says which.
"""

import verifiers.v1 as vf

from grpo_guard.adapters.prime_rl import GuardedScoring, GuardGate
from tests.conformance.conformance_cases import (
    FANNED_OUT,
    JUDGED,
    MASKED,
    OF_A_GROUP,
    SCAFFOLD,
    SCAFFOLDED,
    SIBLING,
    print_cells,
    reward_of,
)
from tests.helpers.characters import END, Characters
from tests.verifiers import prime_rl_parts as parts

WORDS = Characters()
TASK = vf.Task(vf.TaskData(idx=0, prompt="2+2?"))


def node(text, *, before="", masked=False, longer=0, parent=None):
    ids = [*WORDS.encode(before + text), END]
    mask = [not masked and i >= len(before) for i in range(len(ids))] + [True] * longer
    return vf.MessageNode(
        message=vf.AssistantMessage(content=text), sampled=True, token_ids=ids, mask=mask,
        logprobs=[-0.5] * sum(mask), parent=parent,
    )  # fmt: skip


def trace(*nodes, reward):
    recorded = vf.TraceTask(type="Sums", data=TASK.data, key=TASK.key, hash=TASK.hash)
    return vf.Trace(
        task=recorded, agent=vf.AgentInfo(config=vf.AgentConfig()), nodes=list(nodes), ok=True,
        rewards={"right": vf.Reward(score=reward)},
    )  # fmt: skip


def shipped(traces, guard):
    """Return the advantages of a group's traces and the gate's metrics.

    There is one advantage per node that trains; None for a trace that trains nothing.
    """
    algorithm, gates = parts.algorithm(), []
    if guard is not None:
        kind = type("Guarded", (GuardedScoring, type(algorithm)), {"guard": guard})
        algorithm.__class__ = kind
        gates = [GuardGate(guard)]
    episodes = [parts.episode(TASK, one) for one in traces]
    curriculum = parts.curriculum(TASK)
    for gate in gates:
        curriculum.gates["guard"] = gate
    parts.shipped(algorithm, curriculum, episodes)
    found = []
    for episode in episodes:
        kept = [n for n in episode.traces[0].nodes if n.advantages and any(n.mask)]
        found += [n.advantages[0] for n in kept] or [None]
    return found, gates[0].metrics() if gates else {}


def plain(texts, guard):
    return shipped([trace(node(text), reward=reward_of(text)) for text in texts], guard)


def cell(texts):
    return lambda guard: {"advantages": plain(texts, guard)[0]}


def judged(guard):
    found = {"advantages": plain(JUDGED, guard)[0]}
    return found if guard is None else found | {"verdicts": guard.ledger.verdicts}


def group(guard):
    return {"advantages": plain(OF_A_GROUP, guard)[0] + plain(SIBLING, guard)[0]}


def batch(guard):
    found, figures = plain(OF_A_GROUP, guard)
    return {"advantages": found, "reject_rate": figures.get("reject_rate")}


def fanned_out(guard):
    traces = [trace(*map(node, texts), reward=reward_of(texts[0])) for texts in FANNED_OUT]
    return {"advantages": shipped(traces, guard)[0]}


def masked(guard):
    rows = [trace(node(t, masked=i == 1), reward=reward_of(t)) for i, t in enumerate(MASKED)]
    return {"advantages": shipped(rows, guard)[0]}


def scaffolded(guard):
    rows = [
        trace(node(t, before=SCAFFOLD, longer=int(i == 2)), reward=reward_of(t))
        for i, t in enumerate(SCAFFOLDED)
    ]
    found = {"advantages": shipped(rows, guard)[0]}
    return found if guard is None else found | {"verdicts": guard.ledger.verdicts}


CASES = {
    "rejected_sibling": cell(SIBLING),
    "fan_out": fanned_out,
    "masked_row": masked,
    "rejected_group": group,
    "rejected_batch": batch,
    "judges_zero": judged,
    "scaffold": scaffolded,
}
ABSENT = {
    "wrong_count": "each trace brings its reward",
    "final_token": "rewards are of traces; no token has one",
}
source = "its own files" if parts.real else "a model of its files"
print_cells(f"prime-rl ({source})", CASES, ABSENT, tokenizer=WORDS)
