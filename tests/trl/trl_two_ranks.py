"""Run by test_trl_ranks.py in two processes: a group of four, two rows per rank."""

import json
import os
import sys
from pathlib import Path

from grpo_guard import AbstainError, CompletionVerifier, Guard, Policy, guard
from grpo_guard.adapters.trl.peers import Sent, peer_rollouts
from grpo_guard.adapters.trl.trainer import GuardedTrainer
from grpo_guard.core.verdict import accept, reject
from tests.helpers.rule_verifiers import NoWord
from tests.trl import tiny_trl


class Longest(CompletionVerifier):
    """Rejects the longest in each group, which can only be found by seeing the whole group."""

    name = "longest"

    def __init__(self):
        self.batches = []

    def verify(self, batch):
        self.batches.append([(c.node, c.group, c.slot) for c in batch])
        longest = {}
        for c in batch:
            longest[c.group] = max(longest.get(c.group, 0), len(c.text))
        return [
            reject(self.name, message="longest")
            if len(c.text) == longest[c.group]
            else accept(self.name)
            for c in batch
        ]


class Guarded(tiny_trl.Captures, GuardedTrainer, tiny_trl.GRPOTrainer):
    pass


def rollout(prompts, trainer):
    """Each rank's rows: rank 0 has the first two of the group, rank 1 the rest."""
    rank = trainer.accelerator.process_index
    texts = [["1", "22"], ["333", "4444"]][rank]
    tok = trainer.processing_class
    return {
        "prompt_ids": [tok(text=p)["input_ids"] for p in prompts],
        "completion_ids": [tok(text=t)["input_ids"] + [tok.eos_token_id] for t in texts],
        "logprobs": None,
        "peer": [f"peer{2 * rank + i}" for i in range(2)],
    }


def one_missing(prompts, trainer):
    """The same rows for the swarm's nodes, the third of which sent nothing; its row is rank 1's."""
    rank = trainer.accelerator.process_index
    texts = [["1", "22"], [None, "4444"]][rank]
    return peer_rollouts(prompts, [Sent(f"peer{t}", t) for t in texts], trainer)


def length(completions, **kwargs):
    return [float(len(text)) for text in completions]


SIGNED = {"1": 5.0, "22": 3.0, "333": -1.0, "4444": 2.0}
RULES = ["zero", "drop", "no_gain", -2.0]


def signed(completions, **kwargs):
    return [SIGNED[text] for text in completions]


async def one(completions, **kwargs):
    return [1.0] * len(completions)


def train(folder, functions, rows=rollout, **settings):
    made = tiny_trl.trainer(
        folder,
        functions,
        rollout=rows,
        per_device_train_batch_size=2,
        ddp_backend="gloo",
        max_steps=1,
        **settings,
    )
    made.train()
    return made


def dying(completions, **kwargs):
    if os.environ["RANK"] == "1":
        os._exit(3)
    return [1.0] * len(completions)


def main(folder, *case):
    rank = int(os.environ["RANK"])
    if case == ("dies",):
        made = train(folder, [dying], kind=Guarded, extra={"guard": Guard(NoWord())})
        Path(folder, f"rank{rank}.json").write_text(json.dumps(made.captured))
        return
    found = {}
    verifier, policy = Longest(), Policy(on_reject="drop")
    made = train(folder, guard(verifier, policy=policy)([length, one]))
    found["decorated"] = [made.captured, verifier.batches]

    verifier = Longest()
    extra = {"guard": Guard(verifier, policy=policy)}
    made = train(folder, [length, one], kind=Guarded, extra=extra)
    found["trainer"] = [made.captured, verifier.batches]
    found["items"] = int(made.outputs[0]["num_items_in_batch"])

    verifier = NoWord("4444")
    made = train(folder, guard(verifier, policy=Policy(on_reject="zero"))([one]))
    found["async"] = [made.captured, [[c.node for c in b] for b in verifier.batches]]

    # The honest answer that is wrong is on the other rank.
    for rule in RULES:
        extra = {"guard": Guard(NoWord("22"), policy=Policy(on_reject=rule))}
        found[f"rule {rule}"] = train(folder, [signed], kind=Guarded, extra=extra).captured

    verifier = NoWord()
    extra = {"guard": Guard(verifier, policy=Policy(on_reject="no_gain"))}
    made = train(folder, [length], one_missing, kind=Guarded, extra=extra)
    found["missing"] = [made.captured, [[c.node for c in b] for b in verifier.batches]]

    class Failing(Guard):
        def review(self, batch, given=None, decoded=None):
            raise AbstainError("nothing can be looked at")

    try:
        train(folder, [length], kind=Guarded, extra={"guard": Failing(NoWord())})
    except AbstainError as error:
        found["error"] = str(error)
    Path(folder, f"rank{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
