"""A failure is not a zero: `presets.failures_only` through every adapter.

Each test has four completions of one prompt: one right (1), one wrong (0), one whose grader fails,
and one that was cut off and graded 0. If failures are left out, the first two have advantages 0.5
and -0.5; as zeros they would make that 0.75 and -0.25. An adapter whose trainer cannot leave
anything out must refuse the preset. prime-rl is covered in `tests/verifiers/test_prime_rl.py`, next
to the traces it needs.
"""

import asyncio
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs torch")


from grpo_guard import Completion, presets  # noqa: E402
from grpo_guard.adapters.atropos.fields import SETS_TO_ZERO  # noqa: E402
from grpo_guard.adapters.atropos.groups import GroupGuard  # noqa: E402
from grpo_guard.adapters.genrl.game import GuardedGame  # noqa: E402
from grpo_guard.adapters.openrlhf.groups import settle_group  # noqa: E402
from grpo_guard.adapters.openrlhf.rollout import Rollout  # noqa: E402
from grpo_guard.adapters.received import received, review  # noqa: E402
from grpo_guard.adapters.slime import SlimeAdapter, rewards_without_left_out  # noqa: E402
from grpo_guard.adapters.trl.reward import TRLAdapter  # noqa: E402
from grpo_guard.adapters.verl.groups import SiblingCollector, Trajectory  # noqa: E402
from grpo_guard.guard.framework import FrameworkError, adapter_names  # noqa: E402
from tests.adapters.contract.contract_trainers import TRAINERS  # noqa: E402
from tests.adapters.test_group_adapters import Tokenizer, areal, ids, nearly, tinker  # noqa: E402
from tests.helpers import published  # noqa: E402
from tests.slime.test_slime_contract import Sample, Status, arguments  # noqa: E402

TEXTS = ("one", "two", "three", "tool")
FAILED, CUT = 2, 3
REWARDS = (1.0, 0.0, None, 0.0)


@pytest.fixture(autouse=True)
def areal_is_there(monkeypatch):
    published.areal_modules(monkeypatch)


def of(rewards, kept=None):
    """Advantages by the formula: reward minus the mean of the rows in the group."""
    kept = [reward is not None for reward in rewards] if kept is None else kept
    mean = sum(r for r, k in zip(rewards, kept, strict=True) if k) / sum(kept)
    return [r - mean if k else None for r, k in zip(rewards, kept, strict=True)]


def own_loop(guard):
    batch = [
        Completion("3+4?", text, finish_reason="length" if i == CUT else "stop")
        for i, text in enumerate(TEXTS)
    ]
    return of(guard.apply([1.0, 0.0, float("nan"), 0.0], batch))


class TrlTrainer:
    """An object with the methods that TRL passes as logging keywords."""

    processing_class = SimpleNamespace(eos_token_id=0, decode=Tokenizer().decode)
    max_completion_length = 2

    def log_metric(self, name, value):
        pass


def trl(guard):
    def reward(completions, **columns):
        return list(REWARDS)

    given = [ids(text) for text in TEXTS]
    given[CUT] = [7, 7]
    answer = TRLAdapter().wrap(reward, guard)(
        prompts=["3+4?"] * 4, completions=list(TEXTS), completion_ids=given,
        log_metric=TrlTrainer().log_metric,
    )  # fmt: skip
    return of(answer)


def verl(guard):
    """verl's collector; tests/verl covers the manager."""

    async def settled():
        collector = SiblingCollector(lambda: guard)
        rows = [
            received("3+4?", text, finish_reason="length" if i == CUT else "stop")
            for i, text in enumerate(TEXTS)
        ]
        waiting = [
            collector.settle(Trajectory("u", 1, 4, (row,), reward, 10.0))
            for row, reward in zip(rows, REWARDS, strict=True)
        ]
        return await asyncio.gather(*waiting)

    found = asyncio.run(settled())
    mean = sum(settled.score for settled in found) / 4  # as verl does, left-out slots included
    return [None if settled.left_out else settled.score - mean for settled in found]


def openrlhf(guard):
    rollouts = [
        Rollout(
            {
                "prompt": "3+4?", "observation_tokens": [1, *ids(text)], "reward": reward,
                "action_ranges": [(1, 3)], "scores": None, "truncated": i == CUT,
            },
            64,
        )
        for i, (text, reward) in enumerate(zip(TEXTS, REWARDS, strict=True))
    ]  # fmt: skip
    rows = [r.row(("3+4?", TEXTS[i], None), "g", i) for i, r in enumerate(rollouts)]
    found = review(guard, rows)
    answers = settle_group(guard, rollouts, found, mask_spans=False)
    mean = sum(answer["reward"] for answer, _ in answers) / 4
    return [None if out else answer["reward"] - mean for answer, out in answers]


def slime(guard):
    async def rm(args, sample):
        if sample.response == TEXTS[FAILED]:
            raise TimeoutError("the grader is gone")
        return 1.0 if sample.response == "one" else 0.0

    args = arguments(grpo_std_normalization=False)
    guarded = SlimeAdapter(leave_out=True).wrap(rm, guard)
    samples = [
        Sample(response=text, status=Status.TRUNCATED if i == CUT else Status.COMPLETED)
        for i, text in enumerate(TEXTS)
    ]
    for sample in samples:
        sample.reward = asyncio.run(guarded(args, sample))
    _, trained = rewards_without_left_out(args, samples)
    pairs = zip(samples, trained, strict=True)
    return [None if sample.remove_sample else value for sample, value in pairs]


def atropos(guard):
    group = {
        "tokens": [[1, *ids(text)] for text in TEXTS],
        "masks": [[-100, *ids(text)] for text in TEXTS],
        "scores": [1.0, 0.0, None, 0.0],
        "overrides": [{}, {}, {}, {"finish_reason": "length"}],
    }
    made = GroupGuard(guard, Tokenizer()).settle(group)[0]
    mean = sum(made["scores"]) / 4
    return [
        None if own.get(SETS_TO_ZERO) else score - mean
        for own, score in zip(made["overrides"], made["scores"], strict=True)
    ]


def genrl(guard):
    """GenRL's store; tests/genrl covers games. A truncated row has no reward here."""
    node = SimpleNamespace(world_state=None, actions=list(TEXTS), metadata=None)
    state = SimpleNamespace(round=0, stage=1, trees={"me": {"b": [[node]]}})
    store = SimpleNamespace(reward_fns=[lambda state: {"me": {"b": [[1.0, 0.0, None, None]]}}])
    trainer = SimpleNamespace(global_step=0, log=lambda *logged: None)
    (reward,) = GuardedGame(guard, state, trainer).rewards(store).reward_fns
    ((earned,),) = reward(state)["me"].values()
    mean = sum(earned) / 4
    return [value - mean if value != mean else None for value in earned]


ROWS = [("one", 1.0), ("two", 0.0), ("three", float("nan")), ("tool", 0.0)]
LEAVE_OUT = {
    "own_loop": own_loop,
    "trl": trl,
    "verl": verl,
    "openrlhf": openrlhf,
    "slime": slime,
    "atropos": atropos,
    "genrl": genrl,
    "tinker": lambda guard: tinker(ROWS, guard, cut=(CUT,)),
    # GenRL does not report truncation, so an episode that raises takes its place.
    "areal": lambda guard: areal([*ROWS[:3], ("tool", TimeoutError("cut off"))], guard),
}
ELSEWHERE = {"prime_rl"}


@pytest.mark.parametrize("way", LEAVE_OUT)
def test_failures_are_left_out_of_the_baseline(way):
    assert LEAVE_OUT[way](presets.failures_only()) == nearly([0.5, -0.5, None, None])


REFUSING = [name for name, trainer in TRAINERS.items() if not trainer.drops]


@pytest.mark.parametrize("name", REFUSING)
def test_preset_is_refused_if_the_trainer_cannot_leave_rows_out(name):
    def reward(*args, **kwargs):
        raise AssertionError("not called")

    reward.__name__ = "reward"
    with pytest.raises(FrameworkError, match="cannot leave one completion out"):
        TRAINERS[name].adapter().wrap(reward, presets.failures_only())


def test_every_adapter_is_covered():
    refusing = {name.removesuffix("_group") for name in REFUSING} - {"rllm"}
    assert set(adapter_names()) <= LEAVE_OUT.keys() | refusing
    assert {
        "areal",
        "atropos",
        "genrl",
        "prime_rl",
        "tinker",
    } <= LEAVE_OUT.keys() | ELSEWHERE


def test_batch_grader_that_raises_fails_the_whole_batch():
    def reward(completions, **columns):
        raise RuntimeError("no sandbox")

    guarded = TRLAdapter().wrap(reward, presets.failures_only())
    given = {"prompts": ["p"] * 2, "completions": ["a", "b"], "completion_ids": [[1], [2]]}
    assert guarded(**given) == [None, None]
    plain = TRLAdapter().wrap(reward, presets.different_weights(length=False))
    with pytest.raises(RuntimeError, match="no sandbox"):
        plain(**given)
