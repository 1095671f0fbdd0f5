"""Compute advantages with prime-rl behind a guarded algorithm; runs in the verifiers environment.

Uses prime-rl's own files if a checkout is on the path (see tests/verifiers/prime_rl_parts.py),
otherwise the reimplementation in that module.
"""

import verifiers.v1 as vf

from grpo_guard import Guard
from grpo_guard.adapters.prime_rl import GuardedScoring
from tests.across.same_rows import SIZE, TEXTS, print_advantages, reward_of
from tests.helpers.characters import Characters
from tests.verifiers import prime_rl_parts as parts

WORDS = Characters()
TASK = vf.Task(vf.TaskData(idx=0, prompt="2+2?"))


def trace(text):
    recorded = vf.TraceTask(type="Sums", data=TASK.data, key=TASK.key, hash=TASK.hash)
    said = vf.MessageNode(
        message=vf.AssistantMessage(content=text), sampled=True,
        token_ids=WORDS.encode(text), mask=[True] * len(text), logprobs=[-0.5] * len(text),
    )  # fmt: skip
    return vf.Trace(
        task=recorded, agent=vf.AgentInfo(config=vf.AgentConfig()), nodes=[said], ok=True,
        rewards={"right": vf.Reward(score=reward_of(text))},
    )  # fmt: skip


def advantages(folder, guard, scaled):
    algorithm = parts.algorithm()
    if guard is not None:
        guard = Guard(guard.verifier, policy=guard.policy, tokenizer=WORDS)
        kind = type("Guarded", (GuardedScoring, type(algorithm)), {"guard": guard})
        algorithm.__class__ = kind
    found = []
    for start in range(0, len(TEXTS), SIZE):
        group = [parts.episode(TASK, trace(text)) for text in TEXTS[start : start + SIZE]]
        shipped = parts.shipped(algorithm, parts.curriculum(TASK), group)
        found += [shipped.get(episode.traces[0].id, 0.0) for episode in group]
    return found


print_advantages(advantages, scales=(False,))
