"""Peers' trees at the gate, in GenRL's own game: which are admitted, and nothing ends the game."""

import logging
import math

import pytest
import torch
from genrl.communication import Payload
from genrl.state import WorldState
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_guard import Guard, Policy
from grpo_guard.adapters.genrl.gate import Admission
from grpo_guard.adapters.genrl.trees import within
from grpo_guard.guard.framework import FrameworkError
from tests.genrl.one_round import (
    GOOD,
    OTHER,
    QUESTION,
    BrokenLedger,
    Failing,
    G,
    OneProblem,
    Words,
    payload,
    play,
    said,
    tree,
)  # fmt: skip
from tests.genrl.swarm.node import batch_id

HAIL = [*GOOD[:3], "Hail " + said(4)]


def test_all_trees_are_reviewed_once_as_one_batch_with_their_nodes():
    played = play({"bob": tree(), "eve": tree(HAIL)})
    (batch,) = played.verifier.batches
    assert [c.node for c in batch].count("me") == G
    assert {c.node for c in batch} == {"me", "bob", "eve"}
    assert {c.slot for c in batch} == set(range(G))
    assert {c.reference for c in batch if c.node == "bob"} == {"4"}
    assert all(c.round == 0 and c.prompt[0]["role"] == "user" for c in batch)


def test_tree_with_one_rejected_completion_is_not_admitted():
    played = play({"bob": tree(), "eve": tree(HAIL)})
    assert played.agents == ["bob", "me"]
    assert "eve" not in played.data.saw[0]
    logged = played.trainer.logged
    assert (logged["guard/trees/offered"], logged["guard/trees/admitted"]) == (2, 1)
    assert logged["guard/reject_rate"] == 1 / 12


def test_tree_with_an_abstention_is_not_admitted():
    assert play({"bob": tree([*GOOD[:3], "unseen"])}).agents == ["me"]
    passing = Policy(on_abstain="pass")
    assert play({"bob": tree([*GOOD[:3], "unseen"])}, policy=passing).agents == ["bob", "me"]


def test_tolerated_rejected_completions_earn_nothing():
    played = play({"eve": tree(HAIL)}, admission=Admission(rejected=0.25))
    assert played.agents == ["eve", "me"]
    assert played.rewards("eve") == [1.0, 1.0, 0.0, 2 / 3]  # the mean of the rest, so no advantage
    zero = play({"eve": tree(HAIL)}, admission=Admission(rejected=0.25), policy=Policy("zero"))
    assert zero.rewards("eve") == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("policy", [Policy(), Policy("zero", "zero"), Policy(-1.0, "zero")])
def test_own_completions_are_settled_too(policy):
    texts = [said(2), "Hail " + said(2), said(9), "unseen"]
    played = play({}, texts=texts, policy=policy)
    left_out = 0.5 if policy.leaves_out else 0.0
    rejected = {"zero": 0.0}.get(policy.on_reject, policy.on_reject)
    lowest = min(0.0, rejected) if isinstance(rejected, float) else 0.0
    if policy.leaves_out:
        assert played.rewards("me") == [1.0, left_out, 0.0, left_out]
    else:
        assert played.rewards("me") == [1.0, rejected, 0.0, lowest]


def _hostile():
    """Things that peers may send that are not a tree of this game, by name."""
    question, good = batch_id(OTHER), payload()
    no_state, no_environment = payload(), payload()
    no_state.world_state = {"question": OTHER, "answer": "4"}
    no_environment.world_state = WorldState(None, None, None)
    cyclic = payload()
    cyclic.world_state.environment_states["loop"] = cyclic.world_state.environment_states
    deep = []
    for _ in range(5000):
        deep = [deep]

    class Raises:
        def __getattribute__(self, name):
            raise RuntimeError(name)

    return {
        "no batches": "everything",
        "a nested tensor": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "a list": [good],
        "None": None,
        "an empty batch": {question: []},
        "no payload": {question: [None]},
        "a dict": {question: [{"actions": GOOD}]},
        "an object that raises": {question: [Raises()]},
        "a bare payload": {question: [Payload()]},
        "a batch of bytes": {b"x": [good]},
        "a batch of a long name": {"x" * 5000: [good]},
        "a mislabelled batch": {batch_id("another"): [good]},
        "no world state": {question: [no_state]},
        "no environment": {question: [no_environment]},
        "no answer": {question: [Payload(WorldState({"question": OTHER}, None, None), GOOD)]},
        "a question of a number": {question: [Payload(
            WorldState({"question": 7, "answer": "4"}, None, None), GOOD)]},
        "a cycle": {question: [cyclic]},
        "depth": tree(deep=deep),
        "huge": tree(more="x" * 300_000),
        "too few": tree(GOOD[:3]),
        "too many": tree(GOOD + GOOD),
        "one text": {question: [payload("four")]},
        "no actions": {question: [payload(None)]},
        "a tuple": {question: [payload(tuple(GOOD))]},
        "a number": tree([*GOOD[:3], 4]),
        "nested": tree([*GOOD[:3], ["4"]]),
        "bytes": tree([*GOOD[:3], b"4"]),
        "a subclass": tree([*GOOD[:3], type("Text", (str,), {})("4")]),
        "a surrogate": tree([*GOOD[:3], "\ud800"]),
        "a long one": tree([*GOOD[:3], "cups " * 5000]),
        "a special token": tree([*GOOD[:3], "so<|end|>4"]),
        "padding": tree([*GOOD[:3], "<|pad|><|pad|>"]),
        "ids that are none": tree(["Hail"] * G, metadata={"grpo_guard": 7}),
    }  # fmt: skip


@pytest.mark.parametrize("what", _hostile())
def test_hostile_peer_neither_ends_the_game_nor_affects_others(what):
    played = play({"eve": _hostile()[what], "bob": tree()}, rounds=2)
    assert played.rounds == 2
    assert played.agents == ["bob", "me"]
    assert all(math.isfinite(r) for row in played.round.values() for _, r in row)


def test_without_a_guard_one_peer_can_end_the_game():
    """Negative control, with GenRL's own way of transplanting."""
    cut_off = play({"adam": _hostile()["a mislabelled batch"], "bob": tree()}, gate=False)
    assert cut_off.agents == ["me"]
    ended = play({"adam": _hostile()["no answer"], "bob": tree()}, rounds=2, gate=False)
    assert ended.rounds == 0
    unlearnt = play({"adam": tree(["Hail " + said(4)] * G)}, gate=False)
    assert unlearnt.rewards("adam") == [1.0] * G


def test_token_free_completions_are_fewer_than_a_minibatch():
    """A minibatch without any token is 0 / 0 in GenRL and turns all weights into NaN."""
    one, two = [*GOOD[:3], ""], [*GOOD[:2], "", ""]
    peers = {"ann": tree(one), "bob": tree(two), "carl": tree(one)}
    agents = play(peers).agents  # GenRL's default minibatch has two
    assert len(agents) == 2
    assert "bob" not in agents
    assert play(peers, texts=one).agents == ["me"]


def test_invalid_metadata_is_ignored():
    claims = (7, "ids", [1], {"grpo_guard": 7}, {"grpo_guard": {"completion_ids": "12"}})
    for metadata in (*claims, {"grpo_guard": {"completion_ids": [[1]], "envelopes": {}}}):
        assert play({"bob": tree(metadata=metadata)}).agents == ["bob", "me"]


def test_invalid_ids_reject_their_completion():
    ids = [[1], [2], ["x"], [3]]
    played = play({"bob": tree(metadata={"grpo_guard": {"completion_ids": ids}})})
    assert played.agents == ["me"]


def test_tree_under_this_nodes_name_is_not_taken_from_peers():
    """Over hivemind a peer can overwrite what this node sent."""

    class Overwritten(type(play({}).communication)):
        def all_gather_object(self, obj):
            return {"me": tree(["Hail"] * G), "bob": tree()}

    played = play({}, communication=Overwritten({}))
    assert played.agents == ["bob", "me"]
    assert played.round["me", batch_id(QUESTION)][0][0] == said(2)
    assert next(iter(played.data.saw[0]["me"].values()))[0].actions[0] == said(2)


def test_flood_costs_no_more_than_its_share():
    flood = {}
    for i in range(500):
        flood |= tree(question=f"{OTHER}{i}")
    played = play({"eve": flood, "bob": tree(), "carl": tree()})
    shown = [c.node for c in played.verifier.batches[0]]
    assert shown.count("eve") == G  # as many trees as this node has: one
    names = {f"eve{i}": tree() for i in range(200)}
    played = play({**names, "bob": tree()}, admission=Admission(trees=8))
    assert len(played.verifier.batches[0]) == G * (8 + 1)


def test_tree_with_a_conflicting_column_type_is_dropped():
    """Together they raise in the training step, where GenRL swallows it and nothing is learnt."""

    class Answers(OneProblem):
        def prepare_input(self, inputs, stage=None):
            from datasets import Dataset

            rows, places = super().prepare_input(inputs, stage)
            states = [s for of in inputs.values() for row in of.values() for s in row]
            answers = [state.environment_states["answer"] for state in states]
            columns = {"prompt": rows["prompt"], "answer": answers}
            return Dataset.from_dict(columns), places

    peers = {"eve": tree(answer=4), "mal": tree(answer={"x": 1}), "bob": tree()}
    played = play(peers, data=Answers(), rounds=2)
    assert played.agents == ["bob", "me"]
    assert played.rounds == 2


def test_data_manager_that_raises_on_foreign_trees_keeps_own_trees(caplog):
    class Halfway(OneProblem):
        def prepare_states(self, current_state, swarm_states):
            if "bob" in swarm_states:
                current_state.trees["bob"] = {"batch": None}
                raise AssertionError("halfway")
            return super().prepare_states(current_state, swarm_states)

    played = play({"bob": tree()}, data=Halfway(), rounds=2)
    assert (played.rounds, played.agents) == (2, ["me"])
    assert caplog.text.count("the data manager raised on foreign trees") == 1


@pytest.mark.parametrize("fault", ["ledger", "on_round", "abstentions"])
def test_failing_guard_admits_and_pays_nothing_and_warns_once(fault, caplog):
    more = {"ledger": BrokenLedger()} if fault == "ledger" else {}
    if fault == "on_round":

        def fails(round):
            raise RuntimeError("no beacon")

        more["on_round"] = fails
    if fault == "abstentions":
        more["verifier"] = Failing()
        more["policy"] = Policy(max_abstain_rate=0.1, abstain_window=1)
    with caplog.at_level(logging.DEBUG, logger="grpo_guard"):
        played = play({"bob": tree()}, rounds=3, **more)
    assert (played.rounds, played.agents) == (3, ["me"])
    assert played.rewards("me") == [0.0] * G
    assert played.trainer.logged["guard/failed"] == 1.0
    loud = [r for r in caplog.records if r.levelno >= logging.ERROR and "failed" in r.message]
    assert len(loud) == 1


def test_failing_verifiers_abstain_and_admit_nothing():
    policy = Policy(max_abstain_rate=1.0)
    played = play({"bob": tree()}, verifier=Failing(), policy=policy)
    assert played.agents == ["me"]
    assert played.rewards("me") == [0.0] * G


def test_own_work_may_go_unreviewed():
    played = play({"bob": tree()}, review_own=False)
    assert {c.node for c in played.verifier.batches[0]} == {"bob"}
    assert played.rewards("me") == [1.0, 1.0, 0.0, 0.0]


def test_policy_that_would_end_the_game_is_refused():
    with pytest.raises(FrameworkError, match="choose on_abstain"):
        play({}, policy=Policy(on_abstain="raise"))


@pytest.mark.parametrize("wrong", [{"rejected": 1.0}, {"trees": 0}, {"per_agent": 0}])
def test_invalid_admission_options_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Admission(**wrong)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(JUNK, JUNK, JUNK, JUNK)
def test_round_finishes_whatever_is_sent(whole, environment, actions, metadata):
    states = WorldState(environment, environment, metadata)
    sent = {"x": [Payload(states, actions, metadata), whole]}
    peers = {"a": whole, "eve": sent, 7: sent, b"x": sent, 10**5000: sent, "n" * 5000: sent}
    played = play({**peers, "bob": tree()})
    assert (played.rounds, played.agents) == (1, ["bob", "me"])


def test_sizes_are_counted_without_recursion():
    loop = []
    loop.append(loop)
    assert not within(loop, 100)
    assert within({"a": ["b", 1]}, 10)
    assert not within({"a": "b" * 11}, 10)


def test_other_attributes_of_the_manager_are_kept():
    played = play({})
    data = played.guarded.data(played.data)
    assert data.problems is played.data.problems
    with pytest.raises(AttributeError):
        data.unknown  # noqa: B018
    assert Guard(Words()).policy == Policy()
