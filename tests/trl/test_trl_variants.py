"""Callers that resemble TRL: its asynchronous worker, ms-swift, and rows with images."""

import asyncio
import multiprocessing
import pickle
from types import SimpleNamespace

import pytest
import torch
from accelerate import PartialState

from grpo_guard import Guard, Policy, guard
from grpo_guard.adapters.ms_swift import MsSwiftAdapter
from grpo_guard.adapters.trl.batch import rows_from
from grpo_guard.core.prompts import prompt_key
from grpo_guard.guard.framework import FrameworkError
from tests.helpers.rule_verifiers import NoWord
from tests.trl.trl_calls import TEXTS, AsyncObject, CallableObject, call, ones, threes, twos

PLAIN = Policy(on_abstain="zero")


def swift(reward, verifier=None, policy=PLAIN):
    return MsSwiftAdapter().wrap(reward, Guard(verifier or NoWord(), policy=policy))


def swift_calls(functions, rows):
    """As ms-swift 4 does: completions by position, the rows' columns as keywords."""
    completions = [row["messages"][-1]["content"] for row in rows]
    columns = {"trainer_state": SimpleNamespace(global_step=3)}
    columns |= {key: [row[key] for row in rows] for key in rows[0]}
    asynchronous = [asyncio.iscoroutinefunction(f) for f in functions]

    async def gathered():
        coroutines = [
            f(completions, **columns) for f, a in zip(functions, asynchronous, strict=True) if a
        ]
        return await asyncio.gather(*coroutines)

    answers = iter(asyncio.run(gathered()))
    return [
        next(answers) if a else f(completions, **columns)
        for f, a in zip(functions, asynchronous, strict=True)
    ]


def row(text, **columns):
    question = {"role": "user", "content": "3+4?"}
    return {"messages": [question, {"role": "assistant", "content": text}], **columns}


def test_ms_swift_gets_rewards_from_guarded_functions():
    verifier = NoWord()
    functions = swift([ones, threes, CallableObject(), AsyncObject()], verifier)
    rows = [row(text, solution=str(i)) for i, text in enumerate(TEXTS)]
    assert swift_calls(functions, rows) == [[v, 0.0, v] for v in (1.0, 3.0, 4.0, 5.0)]
    assert [f.__name__ for f in functions] == ["ones", "threes", "CallableObject", "AsyncObject"]
    assert all(type(f).__name__ == "function" for f in functions)  # otherwise named by their class
    assert len(verifier.batches) == 1
    first = verifier.batches[0][0]
    assert (first.text, first.reference, first.round) == ("a", "0", 3)
    assert list(first.prompt) == [{"role": "user", "content": "3+4?"}]
    assert [c.group for c in verifier.batches[0]] == [0, 0, 0]


def test_ms_swift_functions_get_their_usual_arguments():
    seen = {}

    def reward(completions, solution, **kwargs):
        seen.update(kwargs, completions=completions, solution=solution)
        return [1.0] * len(completions)

    swift_calls([swift(reward)], [row("a", solution="1")])
    assert seen.keys() == {"completions", "solution", "messages", "trainer_state"}


@pytest.mark.parametrize("policy", [Policy("zero", "skip"), Policy("drop", "zero")])
def test_ms_swift_cannot_leave_completions_out(policy):
    with pytest.raises(FrameworkError, match="ms-swift cannot leave one completion out of its"):
        swift(ones, policy=policy)


def test_ms_swift_without_messages_is_an_error_that_says_so():
    with pytest.raises(ValueError, match="prompts: expected 3, one per completion, got nothing"):
        swift(ones)(TEXTS)


def rewarded(functions, kwargs):
    """In the worker's process, as its scoring does: sync functions in threads, all concurrently."""

    async def score():
        return await asyncio.gather(
            *[
                f(**kwargs) if asyncio.iscoroutinefunction(f) else asyncio.to_thread(f, **kwargs)
                for f in functions
            ]
        )

    return asyncio.run(score())


@guard(NoWord(), policy=Policy(on_reject="drop"))
async def guarded_async_at_module_level(completions, **kwargs):
    return [9.0] * len(completions)


@pytest.mark.slow
def test_guarded_functions_work_in_the_asynchronous_worker():
    functions = guard(NoWord(), policy=Policy(on_reject="drop"))([ones, twos, CallableObject()])
    kwargs = call()
    del kwargs["trainer_state"]  # and it offers no logging
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(rewarded, ([*functions, guarded_async_at_module_level], kwargs))
    assert found == [[v, None, v] for v in (1.0, 2.0, 4.0, 9.0)]


def test_functions_of_one_guard_still_share_it_after_pickling():
    verifier = NoWord()
    travelled = pickle.loads(pickle.dumps(guard(verifier)([ones, twos])))
    assert [f.__name__ for f in travelled] == ["ones", "twos"]
    for function in travelled:
        assert function(**call())[1] is None
    (mine,) = {id(f.guard): f.guard for f in travelled}.values()
    assert len(mine.verifier.batches) == 1
    assert not verifier.batches


def test_trl_asynchronous_scoring_leaves_out_rejected_rows():
    worker = pytest.importorskip("trl.experimental.async_grpo.async_rollout_worker")
    scorers = [c for c in vars(worker).values() if hasattr(c, "_score_group")]
    if not scorers:
        pytest.skip("this release scores groups elsewhere")

    def rising(completions, **kwargs):
        return [1.0 + i for i in range(len(completions))]

    PartialState(cpu=True)  # TRL's logger refuses to work without it
    functions = guard(NoWord(), policy=Policy(on_reject="drop"))([rising, threes])
    tokens = SimpleNamespace(input_ids=[1], completion_mask=[1], old_log_probs=[0.0])
    group = worker.RolloutGroup(
        prompts=["p"] * 3,
        completions=TEXTS,
        completions_ids=[[1], [2], [3]],
        completions_sequences=[[tokens]] * 3,
        reward_kwargs={"answer": ["1", "2", "3"]},
        env_rewards=[None] * 3,
        rollout_rewards=[None] * 3,
        tool_call_counts=[0] * 3,
        tool_failure_counts=[0] * 3,
        model_version=0,
        group_id=0,
    )
    owner = SimpleNamespace(
        reward_funcs=functions,
        reward_func_names=["rising", "threes"],
        _env_reward_types=[],
        _provides_rollout_reward=False,
    )
    samples = asyncio.run(scorers[0]._score_group(owner, group))
    assert [round(s.advantage, 4) for s in samples] == [-1.0, 0.0, 1.0]


class Picture:
    """Like PIL's: each row of a group has its own object."""

    def __init__(self, pixels):
        self.pixels, self.size = pixels, (2, 2)

    def tobytes(self):
        return self.pixels


def asked(pixels):
    parts = [{"type": "image", "image": Picture(pixels)}, {"type": "text", "text": "Which?"}]
    return [{"role": "user", "content": parts}]


def test_rows_with_images_are_judged_by_text():
    verifier = NoWord()
    prompts = [asked(b"cats"), asked(b"cats"), asked(b"dogs")]
    answers = [
        [{"role": "assistant", "content": [{"type": "text", "text": text}]}] for text in TEXTS
    ]
    seen = []

    def reward(prompts, completions, **kwargs):
        seen.extend(prompts)
        return [1.0] * len(prompts)

    given = call(prompts=prompts, completions=answers, images=[[p] for p in prompts])
    assert guard(verifier)(reward)(**given) == [1.0, None, 1.0]
    assert all(a is b for a, b in zip(seen, prompts, strict=True))
    batch = verifier.batches[0]
    assert [c.text for c in batch] == TEXTS
    assert [c.prompt_text for c in batch] == ["Which?"] * 3
    assert [(c.group, c.slot) for c in batch] == [(0, 0), (0, 1), (1, 0)]


def test_groups_are_recognised():
    same = [asked(b"a"), asked(b"a")]
    assert prompt_key(same[0]) == prompt_key(same[1]) != prompt_key(asked(b"b"))
    assert prompt_key("p") == "p"
    tensors = [[{"role": "user", "content": [{"image": torch.ones(2)}]}] for _ in range(2)]
    assert len({prompt_key(t) for t in tensors}) in (1, 2)  # and no error
    rows = rows_from({"prompts": ["p", "q", "p"], "completions": ["a", "b", "c"]})
    assert [row.completion.group for row in rows] == [0, 1, 0]
