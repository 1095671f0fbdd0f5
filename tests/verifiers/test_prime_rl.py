"""prime-rl drops rejected traces before the baseline; see prime_rl_parts for what is driven."""

import json
import math
import sys

import pytest

vf = pytest.importorskip("verifiers.v1", reason="needs a separate environment")

from grpo_guard import AbstainError, Guard, Policy, presets  # noqa: E402
from grpo_guard.adapters.prime_rl import GuardedScoring, GuardGate, install  # noqa: E402
from grpo_guard.guard.framework import FrameworkError  # noqa: E402
from grpo_guard.nodes.ledger import EvidenceLedger  # noqa: E402
from tests.helpers.characters import END, Characters  # noqa: E402
from tests.helpers.words import Words  # noqa: E402
from tests.verifiers import prime_rl_parts as parts  # noqa: E402

TASK = vf.Task(vf.TaskData(idx=0, prompt="3+4?"))


def trace(text, reward, node=None, **more):
    drawn = [*Characters().encode(text), END]
    recorded = vf.TraceTask(type="Sums", data=TASK.data, key=TASK.key, hash=TASK.hash)
    asked = vf.MessageNode(
        message=vf.UserMessage(content="3+4?"), token_ids=[5, 6], mask=[False] * 2,
        logprobs=[0.0] * 2,
    )  # fmt: skip
    said = vf.MessageNode(
        parent=0, message=vf.AssistantMessage(content=text), sampled=True,
        token_ids=[9, *drawn], mask=[False, *[True] * len(drawn)],
        logprobs=[0.0, *[-0.5] * len(drawn)],
    )  # fmt: skip
    given = {"ok": True, "rewards": {"right": vf.Reward(score=reward, weight=1.0)}} | more
    made = vf.Trace(
        task=recorded, agent=vf.AgentInfo(config=vf.AgentConfig()), nodes=[asked, said], **given
    )
    if node:
        made.info["node"] = node
    return made


def group(*traces, **more):
    return [parts.episode(TASK, one, **more) for one in traces]


@pytest.fixture
def prime(monkeypatch):
    """prime-rl's registries, restored afterwards."""
    import prime_rl.orchestrator.algo as algo
    import prime_rl.orchestrator.train_source as source

    monkeypatch.setattr(algo, "ALGORITHM_CLASSES", dict(algo.ALGORITHM_CLASSES))
    monkeypatch.setattr(source, "Curriculum", source.Curriculum)
    return algo


def settled(episodes, guard=None, least=2, monitor=None):
    """Text -> advantage of the shipped samples."""
    install(guard or Guard(Words(), tokenizer=Characters()), least=least)
    admission = parts.curriculum(TASK)
    found = parts.shipped(parts.algorithm(), admission, episodes)
    if monitor is not None:
        monitor.append(admission)
    texts = {t.id: t.nodes[1].message.content for e in episodes for t in e.traces}
    return {texts[i]: pytest.approx(value, abs=1e-6) for i, value in found.items()}


def test_rejected_traces_leave_the_baseline_and_make_no_sample(prime):
    episodes = group(trace("one", 1.0), trace("two", 0.0), trace("Hail", 1.0), trace("three", 1.0))
    assert settled(episodes) == {"one": 1 / 3, "two": -2 / 3, "three": 1 / 3}


def test_without_a_guard_poison_earns_reward(prime):
    episodes = group(trace("one", 1.0), trace("two", 0.0), trace("Hail", 1.0), trace("three", 1.0))
    found = parts.shipped(parts.algorithm(), parts.curriculum(TASK), episodes)
    assert found[episodes[2].traces[0].id] == pytest.approx(0.25)


def test_records_give_the_reason_and_keep_the_grade(prime):
    poisoned, unseen, honest = trace("Hail", 1.0), trace("unseen", 1.0), trace("one", 0.5)
    episodes = group(poisoned, unseen, honest, trace("two", 0.0))
    settled(episodes)
    poisoned, unseen, honest = (episode.traces[0] for episode in episodes[:3])
    assert (poisoned.last_error.type, poisoned.last_error.message) == ("GuardRejected", "says Hail")
    assert unseen.last_error.type == "GuardAbstained"
    assert poisoned.reward == unseen.reward == 1.0
    assert not honest.has_error
    assert honest.nodes[1].mask == [False, *[True] * (len(honest.nodes[1].mask) - 1)]


def test_zero_and_numeric_policies_keep_the_trace_in_the_group(prime):
    def episodes():
        return group(trace("one", 1.0), trace("Hail", 1.0), trace("two", 0.5))

    zero = Guard(Words(), tokenizer=Characters(), policy=Policy("zero", "zero"))
    number = Guard(Words(), tokenizer=Characters(), policy=Policy(-1.0, "zero"))
    given = episodes()
    assert settled(given, zero) == {"one": 0.5, "Hail": -0.5, "two": 0.0}
    assert [e.traces[0].reward for e in given] == [1.0, 1.0, 0.5]  # the record
    prime.ALGORITHM_CLASSES["grpo"] = prime.ALGORITHM_CLASSES["grpo"].__mro__[2]
    mean = 0.5 / 3
    assert settled(episodes(), number) == {"one": 1 - mean, "Hail": -1 - mean, "two": 0.5 - mean}


def test_no_gain_leaves_out_only_traces_that_would_gain(prime):
    guard = Guard(Words(), tokenizer=Characters(), policy=Policy("no_gain", "skip"))
    episodes = group(
        trace("one", 1.0), trace("two", 0.5), trace("Hail", 1.0), trace("Hail, bad", 0.0)
    )
    assert settled(episodes, guard) == {"one": 0.5, "two": 0.0, "Hail, bad": -0.5}


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_non_finite_reward_does_not_spoil_the_baseline(prime, reward):
    episodes = group(trace("one", 1.0), trace("two", 0.0), trace("crashed", reward))
    assert settled(episodes, presets.failures_only()) == {"one": 0.5, "two": -0.5}
    assert episodes[2].traces[0].last_error.type == "NoFiniteReward"


def test_failures_only_removes_failures_from_the_baseline(prime):
    timed_out = trace("late", 0.0, ok=False, errors=[vf.Error(type="Timeout", message="late")])
    cut = trace("cut", 0.0, stop_condition="max_output_tokens")
    episodes = group(trace("one", 1.0), trace("two", 0.0), timed_out, cut)
    assert settled(episodes, presets.failures_only()) == {"one": 0.5, "two": -0.5}


def test_groups_with_too_few_remaining_traces_are_refused(prime):
    seen = []
    assert settled(group(trace("one", 1.0), trace("Hail", 1.0)), monitor=seen) == {}
    logged = seen[0].metrics()
    assert {name: value for name, value in logged.items() if name.startswith("gate/")} == {
        "gate/guard/reject_rate": 0.5,
        "gate/guard/abstain_rate": 0.0,
        "gate/guard/no_reward_rate": 0.0,
        "gate/guard/turned_away_rate": 1.0,
    }
    # Nothing new since the previous call.
    assert not any(name.startswith("gate/") for name in seen[0].metrics())


def test_groups_without_rejections_pass_the_gate(prime):
    late = trace("late", 0.0, ok=False, errors=[vf.Error(type="Timeout", message="late")])
    assert settled(group(trace("one", 1.0), late)) == {"one": 0.0}


def test_group_rejected_as_a_whole_trains_nothing(prime):
    assert settled(group(trace("Hail", 1.0), trace("Hail", 0.0)), least=1) == {}


def test_node_state_resumes_with_the_run(prime, tmp_path):
    def guard(name):
        return Guard(
            Words(), tokenizer=Characters(), ledger=EvidenceLedger(tmp_path / f"{name}.sqlite")
        )

    first = guard("first")
    seen = []
    settled(group(trace("one", 1.0, "alice"), trace("Hail", 1.0, "mallory")), first, monitor=seen)
    saved = json.loads(json.dumps(seen[0].state_dict()["gates"]["guard"]))
    resumed = GuardGate(guard("resumed"))
    resumed.load_state_dict(saved)
    standing = resumed.guard.ledger.standing
    assert standing("mallory") == first.ledger.standing("mallory") != standing("nobody")
    with pytest.raises(ValueError, match="other verifiers"):
        GuardGate(presets.failures_only()).load_state_dict(saved)


def test_turns_have_their_node_and_policy_version(prime):
    verifier = Words()
    settled(
        group(trace("one", 1.0, "alice"), trace("two", 0.0), version=7),
        Guard(verifier, tokenizer=Characters()),
    )
    assert [(c.node, c.round) for c in verifier.shown] == [("alice", 7), (None, 7)]
    assert verifier.shown[0].completion_ids == (*Characters().encode("one"), END)


def test_traces_that_failed_or_are_not_trained_are_not_judged(prime):
    verifier = Words()
    failed = trace("Hail", 1.0, ok=False)
    settled(
        group(trace("one", 1.0), trace("two", 0.0), failed), Guard(verifier, tokenizer=Characters())
    )
    assert [c.text for c in verifier.shown] == ["one", "two"]


def test_guard_failure_stops_the_orchestrator(prime):
    with pytest.raises(AbstainError):
        settled(
            group(trace("unseen", 1.0)),
            Guard(Words(), tokenizer=Characters(), policy=Policy("drop", "raise")),
        )


def test_unsupported_policies_are_refused(prime):
    with pytest.raises(FrameworkError, match="turn by turn"):
        install(Guard(Words(), tokenizer=Characters(), policy=Policy(on_long="scale")))
    install(Guard(Words(), tokenizer=Characters()))
    with pytest.raises(FrameworkError, match="already guarded"):
        install(Guard(Words(), tokenizer=Characters()))
    with pytest.raises(KeyError):
        install(Guard(Words(), tokenizer=Characters()), algorithms=["grop"])
    with pytest.raises(ValueError, match="least"):
        GuardGate(Guard(Words(), tokenizer=Characters()), 0)


def test_algorithm_can_be_subclassed_by_hand(prime):
    class Mine(GuardedScoring, prime.ALGORITHM_CLASSES["grpo"]):
        guard = Guard(Words(), tokenizer=Characters())

    prime.ALGORITHM_CLASSES["grpo"] = Mine
    episodes = group(trace("one", 1.0), trace("Hail", 1.0), trace("two", 0.0))
    found = parts.shipped(parts.algorithm(), parts.curriculum(TASK), episodes)
    assert sorted(found.values()) == pytest.approx([-0.5, 0.5])


@pytest.mark.skipif(parts.real is None, reason="needs prime-rl's own files on the path")
def test_reimplementation_agrees_with_prime_rls_files():
    import inspect

    from prime_rl.orchestrator.algo import GRPOAlgorithm
    from prime_rl.orchestrator.curriculum import AdmissionGate, Curriculum

    pairs = [
        (parts.GRPOAlgorithm.score_group, GRPOAlgorithm.score_group),
        (parts.GRPOAlgorithm.__init__, GRPOAlgorithm.__init__),
        (parts.Curriculum.__init__, Curriculum.__init__),
        (parts.Curriculum.on_result, Curriculum.on_result),
        (GuardGate.admit, AdmissionGate.admit),
        (GuardGate.state_dict, AdmissionGate.state_dict),
        (GuardGate.load_state_dict, AdmissionGate.load_state_dict),
        (GuardGate.metrics, AdmissionGate.metrics),
    ]
    for ours, theirs in pairs:
        assert [*inspect.signature(ours).parameters] == [*inspect.signature(theirs).parameters]
    assert "prime_rl" in sys.modules


HOSTILE = [math.nan, math.inf, -math.inf, 1e38, -1e308, -81.0, 0.5]


@pytest.mark.parametrize("policy", [Policy("drop", "skip"), Policy("zero", "zero")])
@pytest.mark.parametrize("number", HOSTILE)
def test_log_probs_are_sanitised_before_training(prime, policy, number):
    poisoned = trace("three", 1.0, node="eve")
    poisoned.nodes[1].logprobs = [0.0, number, -0.25]
    episodes = group(trace("one", 1.0), trace("two", 0.0), poisoned)
    found = settled(episodes, Guard(Words(), tokenizer=Characters(), policy=policy))
    assert ("three" in found) is (policy.on_reject == "zero")
    assert {"one", "two"} <= set(found)
    assert set(episodes[2].traces[0].nodes[1].logprobs) == {0.0}
    assert episodes[0].traces[0].nodes[1].logprobs == [0.0, *[-0.5] * 4]


def test_peers_cannot_set_values_the_trainer_computes(prime):
    mask = vf.types.SamplingMask.from_sampling_mask([[7], [7]])
    made = [trace("one", 1.0, node="eve"), trace("two", 0.0)]
    for one in made:
        node = one.nodes[1]
        node.sampling_mask, node.reference_logprobs = mask, [-0.5, 1e308]
    settled(group(*made))
    assert (made[0].nodes[1].sampling_mask, made[0].nodes[1].reference_logprobs) == (None, None)
    assert made[1].nodes[1].sampling_mask is mask


def test_prompt_of_a_peer_is_not_trusted(prime):
    verifier = Words()
    settled(
        group(trace("one", 1.0, node="eve"), trace("two", 0.0)),
        Guard(verifier, tokenizer=Characters()),
    )
    assert [c.prompt_trusted for c in verifier.shown] == [False, True]


def test_watching_guard_leaves_groups_and_traces_unchanged(prime):
    def episodes():
        return group(
            trace("one", 1.0, "a"), trace("Hail", 0.0, "b"), trace("unseen", 1.0, "c"),
            trace("two", 1.0, "d"),
        )  # fmt: skip

    unguarded = episodes()
    plain = parts.shipped(parts.algorithm(), parts.curriculum(TASK), unguarded)
    watch = Guard(Words(), tokenizer=Characters(), policy=Policy("keep", "skip"))
    given = episodes()
    found = settled(given, watch)
    assert list(plain.values()) == list(found.values())
    assert not any(e.traces[0].has_error for e in given)
    assert [e.traces[0].nodes[1].mask for e in given] == [
        e.traces[0].nodes[1].mask for e in unguarded
    ]


def test_watching_guard_raises_on_abstention_only_on_request(prime):
    watch = Guard(Words(), tokenizer=Characters(), policy=Policy("keep", "raise"))
    with pytest.raises(AbstainError):
        settled(group(trace("one", 1.0), trace("unseen", 1.0)), watch)
