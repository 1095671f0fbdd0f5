"""The TRL adapter called as the trainer calls it, without the trainer."""

import functools
import inspect
import pickle
from collections import defaultdict

import numpy as np
import pytest
import torch

from grpo_guard import AbstainError, Completion, Policy, guard, presets
from grpo_guard.adapters.trl.reward import rows_from
from grpo_guard.content.length.scaling import LengthScaling
from grpo_guard.evals.policies.bundled import WORD_PROBLEMS
from grpo_guard.guard.framework import FrameworkError
from tests.helpers.characters import Characters
from tests.helpers.rule_verifiers import Broken, NoWord
from tests.trl.trl_calls import TEXTS, AsyncObject, CallableObject, call, ones, run, threes, twos


def completions_from(*given, **more):
    return [row.completion for row in rows_from(*given, **more)]


@guard(NoWord())
def guarded_at_module_level(completions, **kwargs):
    return [1.0] * len(completions)


@pytest.mark.parametrize(
    ("reward", "name", "is_async"),
    [
        (ones, "ones", False),
        (threes, "threes", True),
        (functools.partial(ones, scale=2), "ones", False),
        (functools.partial(threes, scale=2), "threes", True),
        (CallableObject(), "CallableObject", False),
        (AsyncObject(), "AsyncObject", True),
        (functools.partial(AsyncObject()), "AsyncObject", True),
    ],
)
def test_name_and_async_kind_are_kept(reward, name, is_async):
    wrapped = guard(NoWord())(reward)
    assert wrapped.__name__ == name
    assert inspect.iscoroutinefunction(wrapped) is is_async
    values = run(wrapped, **call())
    assert values[1] is None
    assert values[0] == values[2] > 0


def test_sender_under_another_column_name_is_said_once(caplog):
    for more in ({"node": ["a"] * 3}, {}, {}):
        rows_from(call() | {"client": ["ann"] * 3} | more)
    assert caplog.text.count("the column 'client' is not read") == 1
    assert "dataset.rename_column('client', 'node')" in caplog.text


def test_custom_name_distinguishes_two_partials():
    a, b = functools.partial(ones, scale=1), functools.partial(ones, scale=2)
    with pytest.raises(FrameworkError, match="2 functions are named 'ones'"):
        guard(NoWord())([a, b])
    b.__name__ = "ones_twice"
    assert [f.__name__ for f in guard(NoWord())([a, b])] == ["ones", "ones_twice"]


@pytest.mark.parametrize("reward", [torch.nn.Linear(2, 2), "org/reward-model", CallableObject])
def test_models_names_and_classes_are_refused(reward):
    with pytest.raises(FrameworkError, match=r"expected a (function|callable)"):
        guard(NoWord(), framework="trl")([reward])


def test_list_of_a_guard_within_a_list_is_explained():
    def one(completions, **kwargs):
        return [1.0] * len(completions)

    trl = pytest.importorskip("trl")
    wrapped = presets.different_weights()([one])
    assert isinstance(wrapped, list)
    with pytest.raises(TypeError, match="got a guard's list within a list; pass the list that the"):
        trl.GRPOTrainer(
            str(WORD_PROBLEMS), [wrapped], trl.GRPOConfig(use_cpu=True, bf16=False, report_to=[])
        )
    for nested in ([wrapped], [[one]]):
        with pytest.raises(FrameworkError, match="one flat list of functions, got a list within a"):
            presets.different_weights()(nested)


def test_strict_signature_gets_only_its_own_arguments():
    @guard(NoWord())
    def strict(completions, answer):
        return [float(a) for a in answer]

    assert strict(**call(answer=["1", "2", "3"], other=[0, 0, 0])) == [1.0, None, 3.0]


def test_nested_guard_still_sees_the_ids():
    inner, outer = NoWord("a"), NoWord("c")

    @guard(outer)
    @guard(inner)
    def strict(completions):
        return [1.0] * len(completions)

    assert strict(**call(["a", "b", "c"])) == [None, 1.0, None]
    assert inner.batches[0][0].completion_ids == (97,)


@pytest.mark.parametrize(
    "make",
    [list, tuple, np.array, torch.tensor, iter, lambda v: [torch.tensor(x) for x in v]],
)
def test_results_of_common_types_become_floats(make):
    def reward(completions, **kwargs):
        return make([1.0, 2.0, 3.0])

    rewards = guard(NoWord(), policy=Policy(on_reject="zero"))(reward)(**call())
    assert rewards == [1.0, 0.0, 3.0]
    assert all(type(r) is float for r in rewards)


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        ([1.0], ValueError, "grade: expected 3 rewards, one per completion, got 1"),
        (np.ones((3, 1)), TypeError, r"grade: .*got an array of shape \(3, 1\)"),
        (1.0, TypeError, "grade: expected a list of 3 rewards, got 1.0"),
        ({"a": 1}, TypeError, "grade: expected a list of 3 rewards"),
        (["1", "2", "3"], TypeError, "grade: expected a number or None as reward 0, got '1'"),
    ],
)
def test_invalid_results_are_errors_naming_the_function(result, error, message):
    def grade(completions, **kwargs):
        return result

    with pytest.raises(error, match=message):
        guard(NoWord())(grade)(**call())


def test_coroutine_from_a_sync_function_is_reported_as_such():
    def grade(completions, **kwargs):
        return threes(completions)

    with pytest.raises(TypeError, match="grade: returned an awaitable"):
        guard(NoWord())(grade)(**call())


@pytest.mark.parametrize(
    ("on_reject", "first", "second"),
    [
        ("zero", [1.0, 0.0, 1.0], [2.0, 0.0, 2.0]),
        ("drop", [1.0, None, 1.0], [2.0, None, 2.0]),
        (-0.5, [1.0, -0.5, 1.0], [2.0, 0.0, 2.0]),
    ],
)
def test_policies_over_two_functions(on_reject, first, second):
    f, g = guard(NoWord(), policy=Policy(on_reject=on_reject))([ones, twos])
    for step in range(2):
        assert f(**call(step=step)) == first
        assert g(**call(step=step)) == second


def by_length(tolerance, longest, **how):
    """Two functions, and TRL's keywords for a group whose last answer is long."""
    scaling = LengthScaling(tolerance=tolerance)
    both = guard(NoWord(), policy=Policy(on_long="scale"), length_scaling=scaling)([ones, twos])
    texts = ["word " * 40] * 7 + ["word " * longest]
    nodes = [f"n{i // 2}" for i in range(8)]
    return both, call(prompts=["Q"] * 8, completions=texts, completion_ids=None, node=nodes, **how)


def test_length_scales_every_function_equally():
    columns, figures = {}, {}
    (f, g), arguments = by_length(
        0.5, 58, log_extra=columns.__setitem__, log_metric=figures.__setitem__
    )
    first, second = f(**arguments), g(**arguments)
    assert first[:7] == [1.0] * 7
    assert 0 < first[7] < 0.5
    assert second == [2 * reward for reward in first]
    assert columns["guard"] == ["accept"] * 7 + [f"accept, length x {first[7]:.2f}"]
    assert figures["guard/length_factor"] == pytest.approx((7 + first[7]) / 8)
    assert figures["guard/length_dropped"] == 0


def test_row_with_length_factor_0_gets_the_mean():
    columns, figures = {}, {}
    (f, g), arguments = by_length(
        0.5, 400, log_extra=columns.__setitem__, log_metric=figures.__setitem__
    )
    assert (f(**arguments), g(**arguments)) == ([1.0] * 8, [2.0] * 8)
    assert columns["guard"][7] == "accept, length x 0.00"
    assert figures["guard/length_dropped"] == 1
    # A row for which a function returned None stays None.
    scaling = LengthScaling(tolerance=0.5)
    wrap = guard(NoWord(), policy=Policy(on_long="scale"), length_scaling=scaling)
    assert wrap(silent)(**arguments) == [None] * 8


def silent(completions, **kwargs):
    return [None] * len(completions)


def test_none_stays_none_and_the_other_function_is_zeroed():
    def not_my_task(completions, **kwargs):
        return [None] * len(completions)

    f, g = guard(NoWord(), policy=Policy(on_reject="zero"))([not_my_task, ones])
    assert f(**call()) == [None, None, None]
    assert g(**call()) == [1.0, 0.0, 1.0]


@pytest.mark.parametrize(("on_abstain", "expected"), [("skip", None), ("pass", 1.0), ("zero", 0.0)])
def test_abstentions_follow_the_policy(on_abstain, expected):
    reward = guard(Broken(), policy=Policy(on_abstain=on_abstain))(ones)
    assert reward(**call()) == [expected] * 3


def test_raise_policy_raises_in_every_function():
    functions = guard(Broken(), policy=Policy(on_abstain="raise"))([ones, twos])
    for function in functions:
        with pytest.raises(AbstainError, match="broken abstained"):
            function(**call())


def test_reward_function_gets_the_identical_inputs():
    seen = {}

    def spy(completions, **kwargs):
        seen.update(kwargs, completions=completions)
        return [1.0] * len(completions)

    given = call(answer=["1", "2", "3"])
    before = {name: list(v) for name, v in given.items() if isinstance(v, list)}
    guard(NoWord())(spy)(**given)
    for name, value in given.items():
        assert seen[name] is value
    assert before == {name: v for name, v in given.items() if isinstance(v, list)}


def test_older_releases_without_logging_are_supported():
    batch = call()
    del batch["trainer_state"]
    assert guard(NoWord())(ones)(**batch) == [1.0, None, 1.0]


def test_extra_column_gives_the_reason():
    columns = {}
    guard(NoWord())(ones)(**call(log_extra=columns.__setitem__))
    assert columns == {"guard": ["accept", "reject: says Hail", "accept"]}


def test_nodes_are_counted_in_the_trainer_log():
    logged = {}
    guard(NoWord(), tokenizer=Characters())(ones)(
        **call(node=["ann", "eve", "eve"], log_metric=logged.__setitem__)
    )
    nodes = {name: value for name, value in logged.items() if "/node/" in name and value}
    assert nodes == {
        "guard/node/ann/accept": 1, "guard/node/eve/reject": 1, "guard/node/eve/accept": 1
    }  # fmt: skip


class Table:
    """The part of a trainer that collects what is logged."""

    def __init__(self):
        self.columns, self.metrics = defaultdict(list), defaultdict(list)

    def log_extra(self, column, values):
        self.columns[column].extend(values)

    def log_metric(self, name, value):
        self.metrics[name].append(value)


def test_two_guards_of_one_trainer_have_separate_columns():
    table, other = Table(), Table()
    first, second = guard(NoWord()), guard(NoWord("c"))
    # One inside the other, and a third function of the first guard.
    functions = [first(ones), second(threes), second(guard(NoWord("a"))(twos)), first(twos)]
    for step in (0, 1):
        for function in functions:
            run(function, **call(step=step, log_extra=table.log_extra, log_metric=table.log_metric))
    assert sorted(table.columns) == ["guard", "guard_2", "guard_3"]
    assert {len(rows) for rows in table.columns.values()} == {2 * len(TEXTS)}
    assert table.columns["guard"][:3] == ["accept", "reject: says Hail", "accept"]
    assert table.columns["guard_2"][:3] == ["accept", "accept", "reject: says c"]
    assert len(table.metrics["guard/reject_rate"]) == len(table.metrics["guard_3/reject_rate"]) == 2
    run(functions[1], **call(log_extra=other.log_extra))
    assert list(other.columns) == ["guard"]  # the first one of its trainer


def test_completions_from_columns():
    batch = completions_from(
        call(
            ["a", "b", "c", "d"],
            step=7,
            node=[1, "n", None, "m"],
            solution=["s", 2, None, "t"],
            task=["code", None, "math", 3],
            prompt_ids=[[1, 2], ["x"], None, np.array([3])],
        )
        | {"prompts": ["p", "q", "p", "p"]}
    )
    assert [c.node for c in batch] == ["1", "n", None, "m"]
    assert [c.reference for c in batch] == ["s", "2", None, "t"]
    assert [c.task for c in batch] == ["code", None, "math", None]
    assert [c.prompt_ids for c in batch] == [(1, 2), None, None, (3,)]
    assert [(c.group, c.slot) for c in batch] == [(0, 0), (1, 0), (0, 1), (0, 2)]
    assert {c.round for c in batch} == {7}


ARGUMENTS = {"query": "Hail\nto", "n": [3, True, None, 10**30], "type": {"all": 0.5}}
CALL = {"type": "function", "function": {"name": "search", "arguments": ARGUMENTS}}
SAID = "\nsearch\nquery\nHail\nto\nn\n3\n1000000000000000000000000000000\nall\n0.5"
DEEP = functools.reduce(lambda inner, _: [inner], range(10_000), "end")


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([{"role": "assistant", "content": "hi"}], "hi"),
        ([{"role": "assistant", "content": None}], ""),
        ([{"role": "assistant"}], ""),
        ({"role": "assistant", "content": "hi"}, "hi"),
        (
            [
                {"role": "assistant", "content": "a", "tool_calls": []},
                {"role": "tool", "content": "42"},
                {
                    "role": "assistant",
                    "content": [{"type": "text", "text": "b"}, {"type": "image"}],
                },
            ],
            "ab",
        ),
        ([{"role": "assistant", "reasoning_content": "hm ", "content": "yes"}], "hm yes"),
        ([{"role": "assistant", "content": "so", "tool_calls": [CALL, CALL]}], "so" + SAID * 2),
        ([{"role": "assistant", "tool_calls": DEEP}], "\nend"),
        ([], ""),
    ],
)
def test_text_of_a_conversation(messages, text):
    prompt = [{"role": "user", "content": "?"}]
    (completion,) = completions_from({"prompts": [prompt], "completions": [messages]})
    assert completion == Completion(prompt, text, group=0, slot=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": None}, "prompts: expected 3, one per completion, got nothing"),
        ({"prompts": ["p"]}, "prompts: expected 3, one per completion, got 1"),
        ({"completion_ids": [[1]]}, "completion_ids: expected 3, one per completion, got 1"),
    ],
)
def test_malformed_batches_are_errors_naming_the_argument(change, message):
    with pytest.raises(ValueError, match=message):
        guard(NoWord())(ones)(**{**call(), **change})


def test_row_that_is_not_text_is_rejected_in_place():
    table = Table()
    given = call(log_extra=table.log_extra) | {"completions": ["a", 3, "c"]}
    assert guard(NoWord())(ones)(**given) == [1.0, None, 1.0]
    assert table.columns["guard"][1] == "reject: text: expected a string, got 3"


@pytest.mark.parametrize(
    ("version", "policy", "refused"),
    [
        ("1.5.2", Policy(on_reject="drop", on_abstain="zero"), True),
        ("0.29.0", Policy(), True),
        ("1.5.2", Policy(on_abstain="zero"), True),
        ("1.6.0", Policy(on_reject="drop"), False),
        ("1.10.0.dev0", Policy(on_reject="drop"), False),
    ],
)
def test_too_old_trl_is_refused_at_decoration(tmp_path, monkeypatch, version, policy, refused):
    folder = tmp_path / f"trl-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: trl\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
    if refused:
        with pytest.raises(FrameworkError, match=rf"trl {version} .* need trl >= 1\.6"):
            guard(NoWord(), policy=policy)(ones)
    else:
        guard(NoWord(), policy=policy)(ones)


def test_decorated_function_is_pickled_by_name():
    # Trainers that spawn workers pickle the reward function; the worker imports it, guard included.
    assert pickle.loads(pickle.dumps(guarded_at_module_level)) is guarded_at_module_level
