"""`Policy(on_reject="keep")` through every adapter: results must equal those without a guard."""

import asyncio
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs torch")


from grpo_guard import Guard, Policy  # noqa: E402
from grpo_guard.adapters.atropos.groups import GroupGuard  # noqa: E402
from grpo_guard.adapters.genrl.game import GuardedGame  # noqa: E402
from grpo_guard.adapters.openrlhf.agent import GuardedAgent  # noqa: E402
from grpo_guard.adapters.received import received  # noqa: E402
from grpo_guard.adapters.verl.groups import SiblingCollector, Trajectory  # noqa: E402
from grpo_guard.guard.framework import FrameworkError  # noqa: E402
from tests.adapters.contract.contract_trainers import TRAINERS, Words  # noqa: E402
from tests.adapters.test_group_adapters import Tokenizer, areal, ids, nearly, tinker  # noqa: E402
from tests.helpers import published  # noqa: E402

# What the trainer could not otherwise support does not matter: nothing is enforced.
WATCH = [
    Policy("keep"),
    Policy("keep", "skip", "scale", max_abstain_rate=0.0, abstain_window=1),
]
TEXTS = ["one", "Hail", "unseen", "two"]
UNGUARDED = [0.25, -0.75, 0.25, 0.25]
ROWS = [("one", 1.0), ("Hail", 0.0), ("unseen", 1.0), ("two", 1.0)]


@pytest.fixture(autouse=True)
def areal_is_there(monkeypatch):
    published.areal_modules(monkeypatch)


@pytest.mark.parametrize("policy", WATCH, ids=["alone", "with the rest"])
@pytest.mark.parametrize("name", TRAINERS)
@pytest.mark.parametrize("reward", [0.1 + 0.2, 3, float("nan"), float("inf"), None])
def test_reward_function_returns_the_identical_object(name, policy, reward):
    trainer = TRAINERS[name]
    answers = []

    def grade(*args, **kwargs):
        answers.append([reward] * len(TEXTS) if trainer.batch else reward)
        return answers[-1]

    grade.__name__ = "grade"
    guarded = trainer.wrap(signed_like(trainer, grade), policy=policy)
    for call in trainer.calls(TEXTS):
        answer = trainer.call(guarded, call)
        if isinstance(answer, dict):  # of OpenRLHF's protocol: the guard's metrics are included
            answer = answer["rewards"]
        answer = getattr(answer, "reward", answer)
        # The example printed in docs/new-adapter.md reads numbers; it changes none of them.
        assert answer is answers[-1] or (name == "rllm" and answer == answers[-1])


def signed_like(trainer, function):
    """The same function with a signature that the adapter can read."""
    names = list(trainer.arguments(["x"] if trainer.batch else "x"))
    made = {}
    exec(  # noqa: S102 (of names in this file)
        f"def grade({', '.join(names)}, **more): return inner()", {"inner": function}, made
    )
    return made["grade"]


def verl(guard):
    async def settled():
        collector = SiblingCollector(lambda: guard)
        waiting = [
            collector.settle(Trajectory("u", 1, 4, (received("3+4?", text),), reward, 10.0))
            for text, reward in ROWS
        ]
        return await asyncio.gather(*waiting)

    found = asyncio.run(settled())
    assert [s.outcome.value for s in found] == ["accept", "reject", "abstain", "accept"]
    mean = sum(settled.score for settled in found) / 4
    return [None if settled.left_out else settled.score - mean for settled in found]


def atropos(guard):
    group = {
        "tokens": [[1, *ids(text)] for text in TEXTS],
        "masks": [[-100, *ids(text)] for text in TEXTS],
        "scores": [reward for _, reward in ROWS],
        "advantages": [[0.5] * 3] * 4,
    }
    made, review = GroupGuard(guard, Tokenizer()).settle(group)
    assert made == group
    assert made["scores"] is group["scores"]
    assert review.metrics["guard/reject_rate"] == 0.25
    mean = sum(made["scores"]) / 4
    return [score - mean for score in made["scores"]]


def genrl(guard):
    node = SimpleNamespace(world_state=None, actions=list(TEXTS), metadata=None)
    state = SimpleNamespace(round=0, stage=1, trees={"me": {"b": [[node]]}})
    given = {"me": {"b": [[reward for _, reward in ROWS]]}}
    store = SimpleNamespace(reward_fns=[lambda state: given])
    trainer = SimpleNamespace(global_step=0, log=lambda *logged: None)
    (reward,) = GuardedGame(guard, state, trainer).rewards(store).reward_fns
    found = reward(state)
    assert found is given
    (earned,) = found["me"]["b"]
    return [value - sum(earned) / 4 for value in earned]


GROUPS = {
    "verl": verl,
    "atropos": atropos,
    "genrl": genrl,
    "tinker": lambda guard: tinker(ROWS, guard),
    "areal": lambda guard: areal(ROWS, guard),
}


@pytest.mark.parametrize("policy", WATCH[:1])
@pytest.mark.parametrize("way", GROUPS)
def test_group_advantages_equal_those_without_a_guard(way, policy):
    guard = Guard(Words(), policy=policy, tokenizer=Tokenizer())
    assert GROUPS[way](guard) == nearly(UNGUARDED)


def test_foreign_group_keeps_its_scores_but_its_form_is_checked():
    group = {
        "tokens": [[1, *ids(text)] for text in TEXTS],
        "masks": [[-100, *ids(text)] for text in TEXTS],
        "scores": [reward for _, reward in ROWS],
    }
    guard = GroupGuard(Guard(Words(), policy=WATCH[0]), Tokenizer(), own=False)
    made, _ = guard.settle(group, node="peer")
    assert made["scores"] == group["scores"]
    assert made["masks"] == group["masks"]
    group["masks"][3] = [7, 7]  # one mask value per token, for three tokens
    made, _ = guard.settle(group, node="peer")
    assert made["scores"][:3] == group["scores"][:3]
    assert set(made["masks"][3][:-1]) == {-100}


class Executor:
    """OpenRLHF's executor with canned answers."""

    def __init__(self, response):
        self.response = response

    async def execute(self, **given):
        return self.response


def agent(response, monkeypatch, **more):
    monkeypatch.setattr("grpo_guard.adapters.openrlhf.agent.require_release", lambda name: None)
    guard = Guard(Words(), policy=WATCH[0], tokenizer=Tokenizer())
    kind = type("Mine", (GuardedAgent, Executor), {"guard": guard, **more})
    return kind(response)


@pytest.mark.parametrize("reward", [1.0, None, float("nan")])
def test_openrlhf_agent_returns_its_executors_answer(monkeypatch, reward):
    response = {
        "prompt": "3+4?", "observation_tokens": [1, *ids("Hail")], "action_ranges": [(1, 3)],
        "reward": reward, "scores": None, "extra_logs": {"mine": 2.0}, "truncated": True,
    }  # fmt: skip
    given = dict(response)
    executor = agent(response, monkeypatch)
    answer = asyncio.run(executor.execute("3+4?", "7", object(), 64, Vocabulary(), None))
    logs = answer.pop("extra_logs")
    assert logs["mine"] == 2.0
    assert (logs["guard_reject"], logs["guard_left_out"]) == (1.0, 0.0)
    assert all(answer[key] is given[key] for key in answer)


def test_excluding_tokens_is_refused_when_watching(monkeypatch):
    with pytest.raises(FrameworkError, match="mask_spans removes tokens from the loss"):
        agent({}, monkeypatch, mask_spans=True)


class Vocabulary(Tokenizer):
    def __len__(self):
        return 8
