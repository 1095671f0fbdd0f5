"""Every entry point of the guard as a function of rows, without the trainer installed.

An entry takes a guard and rows (dicts with the entry's own fields) and returns one reward per row,
in order: 1.0 unless the row is vetoed.
"""

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace as Fields

import numpy as np
import torch

from grpo_guard.adapters.areal import ArealAdapter
from grpo_guard.adapters.atropos.groups import GroupGuard
from grpo_guard.adapters.ms_swift import MsSwiftAdapter
from grpo_guard.adapters.openrlhf.agent import GuardedAgent
from grpo_guard.adapters.openrlhf.reward import OpenRLHFAdapter
from grpo_guard.adapters.slime import SlimeAdapter
from grpo_guard.adapters.tinker import GuardedGroups
from grpo_guard.adapters.traces import review_all
from grpo_guard.adapters.trl.batch import MALFORMED, MASK
from grpo_guard.adapters.trl.peers import Sent, peer_rollouts
from grpo_guard.adapters.trl.reward import TRLAdapter
from grpo_guard.adapters.verifiers import VerifiersAdapter
from grpo_guard.adapters.verl.batch import HOOK_DATA, HookData, rows_from
from grpo_guard.adapters.verl.groups import SiblingCollector, Trajectory
from grpo_guard.adapters.verl.reward import VerlAdapter
from tests.adapters.hostile_tokenizers import Characters, Reasoning

CHAT = [{"role": "user", "content": "3+4?"}]
ANSWER = [{"role": "assistant", "content": "seven"}]


def sane(log_probs, length):
    """Whether a trainer may convert them to a tensor."""
    found = torch.as_tensor(log_probs, dtype=torch.float32)
    return found.shape == (length,) and bool(((found >= -80) & (found <= 0.01)).all())


@dataclass(frozen=True)
class Entry:
    """``own``: fields without which nothing can be judged if they hold neither text nor ids."""

    fields: dict
    run: object
    own: tuple = ()


def ones(completions, **kwargs):
    return [1.0] * len(completions)


def columns(rows):
    given = {name: [row[name] for row in rows] for name in rows[0]}
    return {**given, "trainer_state": Fields(global_step=3)}


def trl(guard, rows):
    return TRLAdapter().wrap(ones, guard)(**columns(rows))


def trl_reasoning(guard, rows):
    class Trainer:
        processing_class = Reasoning()
        reward_funcs = ()
        logged = ()

        def log(self, name, values):
            self.logged = values

    Trainer.__module__ = "trl.trainer"
    given = columns(rows)
    from grpo_guard.adapters.trl.batch import rows_from as batch_of
    from grpo_guard.adapters.trl.review import BatchReviewer

    batch = batch_of(given, tokenizer=Trainer.processing_class)
    return guard.settle([1.0] * len(rows), BatchReviewer(guard).review(batch))


def ms_swift(guard, rows):
    given = columns(rows)
    return MsSwiftAdapter().wrap(ones, guard)(**given)


def trl_peers(guard, rows):
    trainer = Fields(
        processing_class=Characters(),
        model=Fields(config=Fields(vocab_size=128)),
        accelerator=Fields(unwrap_model=lambda model: model),
        max_completion_length=64,
        state=Fields(global_step=5),
    )
    fields = ("node", "completion", "slot", "round", "given")
    sent = [Sent(**{name: row[name] for name in fields}) for row in rows]
    made = peer_rollouts(["3+4?"] * len(rows), sent, trainer)
    assert all(ids and all(type(i) is int for i in ids) for ids in made["completion_ids"])
    assert all(type(n) in (int, type(None)) for n in (*made["slot"], *made["round"]))
    for ids, mask in zip(made["completion_ids"], made.get("env_mask", ()), strict=False):
        assert len(ids) == len(mask)
        assert set(mask) <= {0, 1}
    texts = [Characters().decode(ids, True) for ids in made["completion_ids"]]
    given = {**made, "prompts": ["3+4?"] * len(rows), "completions": texts}
    return TRLAdapter().wrap(ones, guard)(**given)


def verl(guard, rows):
    def compute_score(data_source, solution_str, ground_truth, extra_info=None):
        return 1.0

    function = VerlAdapter().wrap(compute_score, guard)
    rewards = []
    for row in rows:
        extra = {k: row[k] for k in ("prompt", "node")} if "prompt" in row else row["extra_info"]
        rest = {k: row[k] for k in ("data_source", "solution_str", "ground_truth")}
        rewards.append(function(extra_info=extra, **rest))
    return rewards


class Rows:
    """The parts of verl's DataProto that the adapter reads."""

    def __init__(self, batch, non_tensor_batch, n=1):
        self.batch, self.non_tensor_batch, self.n = batch, non_tensor_batch, n

    def __len__(self):
        return self.n


def one(value):
    made = np.empty(1, dtype=object)
    made[0] = value
    return made


def verl_manager(guard, rows):
    async def go():
        collector = SiblingCollector(lambda: guard)
        calls = []
        for row in rows:
            prompt, ids = Characters().encode("3+4?"), [*Characters().encode("seven"), 3]
            data = Rows(
                {"prompts": torch.tensor([prompt]), "responses": torch.tensor([ids])},
                {
                    "prompt_len": np.array([len(prompt)]),
                    "response_len": np.array([len(ids)]),
                    **{k: one(row[k]) for k in row if k not in ("log_probs", "mask", "score")},
                    "uid": one("a"),
                    HOOK_DATA: one(
                        HookData(len(rows), False, ((1,) * len(ids),), (row["log_probs"],))
                    ),
                },
            )
            made = tuple(rows_from(data, Characters(), 64))
            calls.append(collector.settle(Trajectory("a", 1, len(rows), made, 1.0, 30.0)))
        return await asyncio.gather(*calls)

    return [0.0 if settled.left_out else settled.score for settled in asyncio.run(go())]


def openrlhf(guard, rows):
    function = OpenRLHFAdapter().wrap(lambda queries, prompts, labels: 1.0, guard)
    given = [([row["query"]], [row["prompt"]], [row["label"]]) for row in rows]
    return [function(*arguments)["rewards"] for arguments in given]


def openrlhf_agent(guard, rows):
    class Executor:
        async def execute(self, *, label, **_):
            given = {"prompt": "3+4?", "reward": 1.0, "scores": 1.0, "extra_logs": {}}
            return {**given, **label}

    class Agent(GuardedAgent, Executor):
        pass

    Agent.guard = guard

    async def go():
        agent, sampling = Agent(), object()
        calls = [agent.execute("3+4?", row, sampling, 64, Characters(), None) for row in rows]
        return await asyncio.gather(*calls)

    answers = asyncio.run(go())
    for answer in answers:
        ids = answer["observation_tokens"]
        assert all(0 <= int(i) < 128 for i in ids)
        assert all(0 <= a <= b for a, b in answer["action_ranges"])
        log_probs = answer["rollout_log_probs"]
        assert log_probs is None or sane(log_probs, len(ids))
    return [0.0 if answer["extra_logs"]["guard_reject"] else answer["reward"] for answer in answers]


def slime_samples(rows):
    return [Fields(**row, status=Fields(value="completed"), reward=None) for row in rows]


def slime(guard, rows):
    def rm(args, sample):
        return 1.0

    function = SlimeAdapter().wrap(rm, guard)
    samples = slime_samples(rows)
    rewards = [function(None, sample) for sample in samples]
    assert all(trainable(sample) for sample in samples)
    return rewards


def slime_group(guard, rows):
    def rm(args, samples):
        return [1.0] * len(samples)

    samples = slime_samples(rows)
    rewards = SlimeAdapter().wrap(rm, guard)(None, samples)
    assert all(trainable(sample) for sample in samples)
    return rewards


def trainable(sample):
    """Whether slime's own fields are valid, if slime could find the response at all."""
    n, log_probs = sample.response_length, sample.rollout_log_probs
    known = type(n) is int and isinstance(sample.tokens, list | tuple) and n > 0
    return not known or n > len(sample.tokens) or log_probs is None or sane(log_probs, n)


def trace(row):
    row = dict(row)
    asked = {k[6:]: row.pop(k) for k in list(row) if k.startswith("asked_")}
    said = {k[5:]: row.pop(k) for k in list(row) if k.startswith("said_")}
    nodes = [
        Fields(message=Fields(role="user", content=asked["content"]), sampled=False, parent=None,
               token_ids=asked["ids"], mask=[False], logprobs=[]),
        Fields(message=Fields(role="assistant", **said), sampled=True, parent=row["parent"],
               token_ids=row["ids"], mask=row["mask"], logprobs=row["logprobs"]),
    ]  # fmt: skip
    task = Fields(type="Sums", data=Fields(answer=row["answer"]))
    return Fields(nodes=nodes, info=row["info"], task=task)


def verifiers(guard, rows):
    def right(trace):
        return 1.0

    function = VerifiersAdapter().wrap(right, guard)
    return [function(trace=trace(row)) for row in rows]


def prime_rl(guard, rows):
    """The fields that its algorithm reads; its own types constrain the rest."""
    found = review_all(guard, [(trace(row), 3) for row in rows])
    return guard.settle([1.0] * len(rows), found)


def atropos(guard, rows):
    groups = GroupGuard(guard, Characters(), vocabulary=128, longest=64)
    group = {name: [row[name] for row in rows] for name in rows[0] if name != "node"}
    group["scores"] = [1.0] * len(rows)
    group["overrides"] = [{"node": row["node"]} for row in rows]
    made, _ = groups.settle(group)
    assert all(0 <= token < 128 for tokens in made["tokens"] for token in tokens)
    assert all(np.isfinite(made["scores"]))
    return [
        0.0 if overrides.get("set_advantage_to_zero") else score
        for overrides, score in zip(made["overrides"], made["scores"], strict=True)
    ]


def tinker(guard, rows):
    class Base:
        async def compute_group_rewards(self, trajectories, envs):
            return [(0.0, {}) for _ in trajectories]

    kind = type("Group", (GuardedGroups, Base), {"guard": guard, "tokenizer": Characters()})
    trajectories = [
        Fields(
            stop_reason=row["stop_reason"],
            transitions=[
                Fields(
                    ob=Fields(chunks=[Fields(tokens=row["asked"])]), reward=1.0, metrics={},
                    ac=Fields(tokens=row["tokens"], maybe_logprobs=row["logprobs"],
                              stop_reason=row["ended"]),
                )
            ],
        )
        for row in rows
    ]  # fmt: skip
    envs = [Fields(node=row["node"]) for row in rows]
    answers = asyncio.run(kind().compute_group_rewards(trajectories, envs))
    return [1.0 + final for final, _ in answers]


def areal(guard, rows):
    def right(prompt, completions, prompt_ids, completion_ids, **data):
        return 1.0

    function = ArealAdapter().wrap(right, guard)
    order = ("prompt", "completions", "prompt_ids", "completion_ids")
    return [
        function(*(row[name] for name in order), node=row["node"], answer=row["answer"])
        for row in rows
    ]


TRL = {
    "prompts": CHAT, "completions": "seven", "completion_ids": [5, 6], "node": "n",
    "answer": "7", "task": "sums", "round": 1, "slot": 1, "prompt_ids": [1, 2], MALFORMED: None,
    MASK: None,
}  # fmt: skip
SLIME = {
    "prompt": CHAT, "response": "seven", "tokens": [5, 6, 1, 2], "response_length": 2,
    "loss_mask": None, "rollout_log_probs": [-0.5, -0.1], "group_index": 0, "label": "7",
    "metadata": {"node": "n", "round": 1, "slot": 1, "task": "sums"},
}  # fmt: skip
TRACE = {
    "asked_content": "3+4?", "asked_ids": [5], "said_content": "seven", "said_tool_calls": None,
    "said_reasoning_content": None, "parent": 0, "ids": [6, 7], "mask": [False, True],
    "logprobs": [-0.5], "answer": "7", "info": {"node": "n"},
}  # fmt: skip
ENTRIES = {
    "trl": Entry(TRL, trl, ("completions", "completion_ids")),
    "trl_messages": Entry(
        {**TRL, "completions": ANSWER, "prompts": "3+4?"}, trl, ("completion_ids",)
    ),
    "trl_reasoning": Entry({**TRL, "completions": ANSWER}, trl_reasoning, ("completion_ids",)),
    "trl_peers": Entry(
        {"node": "n", "completion": [5, 6, 3], "slot": 0, "round": None, "given": ()}, trl_peers
    ),
    "ms_swift": Entry(
        {"completions": "seven", "messages": [*CHAT, *ANSWER], "node": "n", "answer": "7"},
        ms_swift,
        ("completions",),
    ),
    "verl": Entry(
        {"data_source": "sums", "solution_str": "seven", "ground_truth": "7", "prompt": CHAT,
         "node": "n"},
        verl,
        ("solution_str",),
    ),
    "verl_extra_info": Entry(
        {"data_source": "sums", "solution_str": "seven", "ground_truth": "7", "extra_info": {}},
        verl,
    ),
    "verl_manager": Entry(
        {"data_source": "sums", "extra_info": {"node": "n"}, "tool_extra_fields": {"node": "n"},
         "reward_model": {"ground_truth": "7"}, "raw_prompt": CHAT, "session_id": 1,
         "log_probs": (-0.5,) * 6},
        verl_manager,
    ),
    "openrlhf": Entry(
        {"query": "3+4?seven", "prompt": "3+4?", "label": "7"}, openrlhf, ("query",)
    ),
    "openrlhf_agent": Entry(
        {"observation_tokens": [51, 43, 52, 63, 55, 3], "action_ranges": [(4, 6)], "node": "n",
         "rollout_log_probs": [-0.5] * 6, "label": "7", "prompt": "3+4?", "truncated": False,
         "images": None},
        openrlhf_agent,
    ),
    "slime": Entry(SLIME, slime, ("response",)),
    "slime_group": Entry(SLIME, slime_group, ("response",)),
    "verifiers": Entry(TRACE, verifiers),
    "prime_rl": Entry(TRACE, prime_rl),
    "atropos": Entry(
        {"tokens": [51, 55, 3], "masks": [-100, 55, 3], "node": "n",
         "inference_logprobs": [1.0, -0.5, -0.5]},
        atropos,
        ("tokens", "masks"),
    ),
    "tinker": Entry(
        {"asked": [51], "tokens": [55, 3], "logprobs": [-0.5, -0.5], "ended": "stop",
         "stop_reason": "completed", "node": "n"},
        tinker,
        ("tokens",),
    ),
    "areal": Entry(
        {"prompt": "3+4?", "completions": "seven", "prompt_ids": [1], "completion_ids": [5, 6],
         "node": "n", "answer": "7"},
        areal,
        ("completions", "completion_ids"),
    ),
}  # fmt: skip
