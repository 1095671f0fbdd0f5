"""The guarded reward store gives finite numbers, whatever the function returns for peers' work."""

import math

import pytest
from genrl.rewards.reward_store import RewardFnStore, RoundRewardFnStore

from grpo_guard import Guard, Policy
from grpo_guard.adapters.genrl.game import GuardedGame
from grpo_guard.guard.framework import FrameworkError
from tests.genrl.one_round import G, Words, payload, play, said, tree
from tests.genrl.swarm.node import correct


def rewards_of(change):
    """The task's rewards after ``change(agent, row)``."""

    def reward(game_state):
        return {
            agent: {batch: [change(agent, row) for row in rows] for batch, rows in batches.items()}
            for agent, batches in correct(game_state).items()
        }

    return reward


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_non_numbers_never_reach_the_trainer(value):
    """A single NaN makes all weights NaN."""
    reward = rewards_of(lambda agent, row: [value, *row[1:]] if agent == "bob" else row)
    played = play({"bob": tree()}, rewards=reward)
    assert played.rewards("bob") == [1 / 3, 1.0, 0.0, 0.0]
    zero = play({"bob": tree()}, rewards=reward, policy=Policy("zero", "zero"))
    assert zero.rewards("bob") == [0.0, 1.0, 0.0, 0.0]
    assert play({}, rewards=rewards_of(lambda _, row: [value] * G)).rewards("me") == [0.0] * G


def test_error_on_a_peers_tree_does_not_end_the_game(caplog):
    def reward(game_state):
        if "bob" in game_state.trees:
            raise KeyError("metadata")
        return correct(game_state)

    played = play({"bob": tree()}, rewards=reward, rounds=3)
    assert (played.rounds, played.agents) == (3, ["bob", "me"])
    assert played.rewards("bob") == [0.0] * G
    assert played.rewards("me") == [1.0, 1.0, 0.0, 0.0]
    assert caplog.text.count("failed on foreign trees") == 1


@pytest.mark.parametrize("wrong", [[1.0], 1.0, "1.0", [[1.0]] * G, ["x"] * G])
def test_rewards_of_the_wrong_shape_drop_only_the_peers_tree(wrong):
    """Rows of unequal length raise in the training step, and nothing is learnt."""
    reward = rewards_of(lambda agent, row: wrong if agent == "bob" else row)
    played = play({"bob": tree()}, rewards=reward)
    assert played.rewards("bob") == [0.0] * G
    assert played.rewards("me") == [1.0, 1.0, 0.0, 0.0]


def test_error_on_own_work_ends_the_game_as_without_a_guard():
    def reward(game_state):
        raise ValueError("my bug")

    assert play({"bob": tree()}, rewards=reward).rounds == 0
    assert play({}, rewards=lambda game_state: 0).rounds == 0


def test_groups_are_trees_even_if_two_agents_share_a_prompt():
    """Compared with another's group, poison could stay above the mean of its own."""
    poor = ["Hail " + said(4), said(1), said(1), said(1)]
    rich = [said(4)] * G
    played = play(
        {"bob": tree(rich), "eve": tree(poor)},
        policy=Policy(on_reject="no_gain"),
        admission=_tolerant(),
    )
    assert played.rewards("eve") == [0.0] * G
    assert played.rewards("bob") == [1.0] * G


def _tolerant():
    from grpo_guard.adapters.genrl.gate import Admission

    return Admission(rejected=0.5)


def test_length_factors_multiply_kept_rewards():
    class Halves:
        past = None

        def factors(self, batch):
            return [0.5] * len(batch)

    guard = Guard(Words(), policy=Policy(on_long="scale"), length_scaling=Halves())
    assert play({"bob": tree()}, guard=guard).rewards("bob") == [0.5, 0.5, 0.0, 0.0]


def test_store_reviews_rows_without_a_gate():
    from genrl.state import GameState, WorldState

    from tests.genrl.one_round import NoModel

    state, trainer, verifier = GameState(round=0, stage=0), NoModel(), Words()
    guarded = GuardedGame(Guard(verifier, policy=Policy("zero", "zero")), state, trainer)
    store = guarded.rewards(RoundRewardFnStore(1, [correct]))
    state._init_game([["b", WorldState({"question": "q", "answer": "4"}, None, None)]], ["me"])
    for texts in (["Hail " + said(4), said(4)], [said(4), said(3)]):
        state.trees["me"]["b"].append_node_actions(0, 0, texts)
        assert store[0](state) == {"me": {"b": [[0.0, 1.0] if "Hail" in texts[0] else [1.0, 0.0]]}}
    assert len(verifier.batches) == 2
    store[0](state)
    assert len(verifier.batches) == 2  # seeing it again changes nothing


def test_stores_are_copied_and_functions_keep_their_names():
    guarded = play({}).guarded
    store = RewardFnStore(3, [RoundRewardFnStore(2, [correct])])
    copy = guarded.rewards(store)
    assert store[0][0] is correct
    assert copy[2][1].__name__ == "correct"
    assert copy[0] is copy[2]

    async def later(game_state):
        return {}

    with pytest.raises(FrameworkError, match="does not await"):
        guarded.rewards(RoundRewardFnStore(1, [later]))
    assert payload().metadata is None
