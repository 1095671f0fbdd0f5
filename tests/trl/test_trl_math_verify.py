"""Real TRL runs with math-verify and `trl.rewards`: without failures, a guard changes nothing.

The tiny model cannot write mathematics, so a rollout function sends answers in its place; rewards,
advantages and the weights after training are compared bit for bit.
"""

import functools
import threading
import time

import pytest
import torch

from tests.trl import tiny_trl

pytest.importorskip("math_verify", reason="needs math-verify")
if not hasattr(pytest.importorskip("trl.rewards"), "get_cosine_scaled_reward"):
    pytest.skip("needs the rewards of a newer TRL", allow_module_level=True)

from grpo_guard import AbstainError, Guard, presets
from grpo_guard.adapters.trl.trainer import GuardedTrainer
from grpo_guard.guard.framework import FrameworkError
from grpo_guard.guard.graders import GraderFailures
from tests.adapters.math_graders import FUNCTIONS, FailsOn, accuracy_reward, gone, length, stuck

SENT = (r"\boxed{2}", r"so $1+1$", "<think>\n2</think>\\boxed{3}", "no")


class Guarded(tiny_trl.Captures, GuardedTrainer, tiny_trl.GRPOTrainer):
    pass


GUARDS = {
    "no_limit": lambda: presets.failures_only(truncated=False),
    "limit": lambda: presets.failures_only(timeout=60, truncated=False),
    "each": lambda: presets.failures_only(timeout=60, each=True, truncated=False),
    "each_no_limit": lambda: presets.failures_only(each=True, truncated=False),
}


FAST = {("trl_rewards", "limit"), ("math_verify", "each_no_limit")}


def guard_with(**failures):
    plain = presets.failures_only(truncated=False)
    return Guard(plain.verifier, policy=plain.policy, failures=GraderFailures(**failures))


def trained(folder, functions, kind=tiny_trl.CapturingTrainer, **settings):
    made = tiny_trl.trainer(
        folder,
        functions,
        rollout=tiny_trl.peers(*SENT),
        kind=kind,
        max_completion_length=64,
        **settings,
    )
    made.train()
    return made


def seen(made):
    """Everything that must be equal: rewards, their logged values, advantages and weights."""
    logs = made._logs
    rewards = {name: torch.tensor(list(values)) for name, values in logs["rewards"].items()}
    return {
        "rewards": {name: values.numpy().tobytes() for name, values in rewards.items()},
        "extra": {k: list(v) for k, v in logs["extra"].items() if not k.startswith("guard")},
        "advantages": [torch.tensor(batch).numpy().tobytes() for batch in made.captured],
        "weights": [p.detach().numpy().tobytes() for p in made.model.parameters()],
    }


@pytest.fixture(scope="module")
def unguarded(tmp_path_factory):
    @functools.cache
    def run(functions):
        made = trained(tmp_path_factory.mktemp("unguarded"), FUNCTIONS[functions])
        assert len(set(made.captured[0])) > 1  # it has something to learn
        return seen(made)

    return run


# One of each kind at once in the fast tests: in this process or others, whole batches or each.
PAIRS = [
    pytest.param(f, g, marks=[] if (f, g) in FAST else pytest.mark.slow)
    for f in FUNCTIONS
    for g in GUARDS
]


@pytest.mark.parametrize(("functions", "guard"), PAIRS)
def test_decorated_functions_earn_the_same(tmp_path, unguarded, functions, guard):
    made = trained(tmp_path, GUARDS[guard]()(FUNCTIONS[functions]))
    assert seen(made) == unguarded(functions)


@pytest.mark.parametrize("guard", ["no_limit", pytest.param("each", marks=pytest.mark.slow)])
def test_guarded_trainer_earns_the_same(tmp_path, unguarded, guard):
    made = trained(tmp_path, FUNCTIONS["trl_rewards"], Guarded, extra={"guard": GUARDS[guard]()})
    assert seen(made) == unguarded("trl_rewards")


@pytest.mark.parametrize("guard", ["no_limit", pytest.param("each", marks=pytest.mark.slow)])
def test_trl_reward_function_by_its_import(tmp_path, guard):
    """By its name, from conversations, with the columns that it logs."""

    def run(where, functions):
        made = tiny_trl.trainer(where, functions, conversational=True, max_completion_length=16)
        made.train_dataset = made.train_dataset.rename_column("answer", "solution")
        made.train()
        return seen(made)

    alone = run(tmp_path / "alone", [accuracy_reward])
    assert alone["extra"].keys() == {"solution", "gold_parsed", "answer_parsed"}
    assert run(tmp_path / "guarded", GUARDS[guard]()([accuracy_reward])) == alone


def length_of(completions, **kwargs):
    return [float(len(text)) for text in completions]


def advantages_of(rewards):
    """GRPO's advantages over one group; NaN leaves the baseline and gets 0."""
    kept = rewards[~rewards.isnan()]
    return torch.nan_to_num((rewards - kept.mean()) / (kept.std() + 1e-4)).tolist()


@pytest.mark.parametrize(
    ("how", "limit", "way"),
    [
        (gone, None, "trainer"),
        (gone, 30.0, "decorated"),
        pytest.param(gone, None, "decorated", marks=pytest.mark.slow),
        pytest.param(gone, 30.0, "trainer", marks=pytest.mark.slow),
        pytest.param(stuck, 4.0, "decorated", marks=pytest.mark.slow),
        pytest.param(stuck, 4.0, "trainer", marks=pytest.mark.slow),
    ],
)
def test_ungradable_completion_is_left_out_and_the_others_stay(tmp_path, way, how, limit):
    guard = guard_with(timeout=limit, each=True)
    functions = [FailsOn(SENT[2], how)]
    settings = {"max_steps": 1, "log_completions": True}
    if way == "decorated":
        made = trained(tmp_path, guard(functions), **settings)
    else:  # here another function's reward does not keep it in
        functions.append(length)
        made = trained(tmp_path, functions, Guarded, extra={"guard": guard}, **settings)
    assert list(made._logs["extra"]["length"]) == [len(SENT[0]), len(SENT[1]), None, len(SENT[3])]
    assert made.state.log_history[0]["calls"] == 1.0
    earned = torch.tensor(list(made._logs["rewards"]["fails"]))
    assert earned.isnan().tolist() == [False, False, True, False]
    lengths = torch.tensor([float(len(text)) for text in SENT])
    totals = earned if way == "decorated" else earned + lengths
    (group,) = made.captured
    if way == "trainer":
        assert group == pytest.approx(advantages_of(totals), abs=1e-3)
    assert group[2] == 0.0


def test_failed_batch_leaves_no_stale_column_in_the_table(tmp_path):
    calls = []

    def reward(completions, log_extra, **kwargs):
        calls.append(1)
        log_extra("length", [len(c) for c in completions])
        if len(calls) == 2:
            raise ConnectionError("no sandbox")
        return [float(len(c)) for c in completions]

    guarded = GUARDS["no_limit"]()(reward)
    made = trained(tmp_path, [guarded], max_steps=2, log_completions=True)
    assert list(made._logs["extra"]["length"]) == [None] * 4
    assert made.captured[1] == [0.0] * 4


@pytest.mark.slow
def test_function_that_always_hangs_stops_the_run(tmp_path):
    def hangs(completions, **kwargs):
        time.sleep(60)

    guard = guard_with(timeout=0.2, window=2, max_rate=0.5)
    with pytest.raises(AbstainError, match=r"hangs: 2 of the last 2 .* no answer within 0.2 s"):
        trained(tmp_path, [guard(hangs)])


def test_inner_guard_sees_the_trainer_and_inherits_no_limit(tmp_path):
    inner = presets.failures_only()  # learns from the trainer what was truncated
    guarded = inner(length_of)
    made = trained(tmp_path, [presets.failures_only(truncated=False)(guarded)], max_steps=1)
    alone = trained(tmp_path, [inner(length_of)], max_steps=1)
    assert made.captured == alone.captured
    assert list(made._logs["extra"]) == ["guard", "guard_2"]
    with pytest.raises(FrameworkError, match="already guarded"):
        presets.failures_only(timeout=60)(guarded)


@pytest.mark.parametrize("way", ["decorated", "trainer"])
def test_unpicklable_function_is_refused_at_the_start(tmp_path, way):
    lock = threading.Lock()

    def reward(completions, **kwargs):
        with lock:
            return [0.0] * len(completions)

    def start():
        guard = presets.failures_only(timeout=60)
        if way == "decorated":
            guard(reward)
        else:
            trained(tmp_path, [reward], Guarded, extra={"guard": guard})

    with pytest.raises(FrameworkError, match=r"reward: timeout=60 .* Create what cannot be sent"):
        start()
