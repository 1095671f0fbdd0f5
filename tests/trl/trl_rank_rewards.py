"""Run by test_trl_ranks.py in two processes: guarded reward functions on one batch, half on each.

    trl_rank_rewards.py FOLDER

Each rank must match the same functions on the whole batch in one process: `earned`.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import torch.distributed as distributed

from grpo_guard import Policy, guard
from tests.helpers.rule_verifiers import NoWord

# (prompts, texts, the function's rewards): which rows form a group, which are poisoned.
CASES = {
    "one group": ("pppp", ["Hail", "b", "c", "d"], [5.0, 1.0, -3.0, 1.0]),
    "two groups, both over both ranks": ("pqpq", ["Hail", "b", "c", "d"], [5.0, 1.0, -3.0, 1.0]),
    "the penalty is another group's": ("pqqp", ["Hail", "b", "c", "d"], [5.0, 1.0, -3.0, 1.0]),
    "no group over two ranks": ("ppqq", ["Hail", "b", "c", "d"], [5.0, 1.0, -3.0, 1.0]),
    "poison on both": ("pqqqpp", ["Hail", "b", "Hail", "d", "Hail", "f"], [1, -1, 2, -2, 3, -3]),
    "a function that says nothing": ("pppp", ["a", "Hail", "c", "d"], [-1.0, None, None, -2.0]),
    "all rejected": ("pqpq", ["Hail"] * 4, [1.0, -1.0, -2.0, 2.0]),
}
RULES = ["zero", "drop", -1.0, 0.5]
LONG = ["a", "b" * 40, "c", "Hail", "e" * 40, "f"]


class Halves:
    """Halves the reward of a long completion."""

    past = None

    def factors(self, batch):
        return [0.5 if len(c.text) > 20 else 1.0 for c in batch]


def call(functions, prompts, texts, rewards):
    """As TRL does: sync functions in order, then the async ones concurrently."""
    batch = {"prompts": list(prompts), "completions": texts, "given": rewards}
    found = [None if asyncio.iscoroutinefunction(f) else f(**batch) for f in functions]

    async def others():
        places = [i for i, row in enumerate(found) if row is None]
        rows = await asyncio.gather(*(functions[i](**batch) for i in places))
        for i, row in zip(places, rows, strict=True):
            found[i] = row

    asyncio.run(others())
    return found


def functions(rank=0):
    """Two async functions that finish in a different order on each rank, and a sync one."""

    def plain(completions, given, **kwargs):
        return given

    async def doubled(completions, given, **kwargs):
        await asyncio.sleep(0.05 * rank)
        return [None if value is None else 2 * value for value in given]

    async def turned(completions, given, **kwargs):
        await asyncio.sleep(0.05 * (1 - rank))
        return [None if value is None else -value for value in given]

    return [plain, doubled, turned]


def earned(rank=None):
    """By case and rule, [functions, rows]; for half of each batch or for all of it."""
    found = {}
    for rule in RULES:
        for name, case in CASES.items():
            half = len(case[0]) // 2
            part = slice(None) if rank is None else slice(rank * half, rank * half + half)
            guarded = guard(NoWord(), policy=Policy(on_reject=rule))(functions(rank or 0))
            found[f"{name}, {rule}"] = call(guarded, *(column[part] for column in case))
    part = slice(None) if rank is None else slice(rank * 3, rank * 3 + 3)
    policy = Policy(on_reject="zero", on_long="scale")
    guarded = guard(NoWord(), policy=policy, length_scaling=Halves())(functions(rank or 0))
    found["lengths"] = call(guarded, "pppppp"[part], LONG[part], [1.0] * len(LONG[part]))
    return found


def raised(rank):
    """What each rank learns of a function that fails on one of them."""

    def fails(completions, given, **kwargs):
        if rank == 1:
            raise ValueError("no reward today")
        return given

    async def fails_too(completions, given, **kwargs):
        await asyncio.sleep(0)
        return fails(completions, given)

    said = []
    for function in (fails, fails_too):
        try:
            call(guard(NoWord())([function]), "pp", ["a", "b"], [1.0, 1.0])
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def main(folder):
    rank = int(os.environ["RANK"])
    distributed.init_process_group("gloo")
    found = {"earned": earned(rank), "raised": raised(rank)}
    Path(folder, f"rank{rank}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
