"""`presets.failures_only` in GenRL's own game: failures have no advantage and end no game."""

import math
import time

import pytest

from grpo_guard import AbstainError, Guard, Policy, presets
from grpo_guard.guard.framework import FrameworkError
from grpo_guard.guard.graders import GraderFailures
from tests.genrl.one_round import G, Words, play, tree
from tests.genrl.swarm.node import correct

OWN = [1.0, 1.0, 0.0, 0.0]
BOB = {"bob": tree()}


def boom():
    raise RuntimeError("no sandbox")


def hang():
    time.sleep(60)


def failing(fail, when):
    """The task's rewards, but call ``fail()`` if ``when(names, call)`` holds for the agents."""
    calls = []

    def reward(game_state):
        calls.append(set(game_state.trees))
        result = fail() if when(calls[-1], len(calls)) else None
        return correct(game_state) if result is None else result

    reward.calls = calls
    return reward


def always(names, call):
    return True


def with_bob(names, call):
    return "bob" in names


@pytest.mark.parametrize("value", [None, math.nan, math.inf, 1e308])
@pytest.mark.parametrize("rule", ["drop", "no_gain", "zero"])
def test_row_without_a_reward_gets_the_mean_of_the_others(value, rule):
    def reward(game_state):
        return {
            agent: {batch: [[value, *row[1:]] for row in rows] for batch, rows in of.items()}
            for agent, of in correct(game_state).items()
        }

    guard = Guard(Words(), policy=Policy(rule), failures=GraderFailures())
    played = play(BOB, rewards=reward, guard=guard)
    assert played.rewards("me") == played.rewards("bob") == [1 / 3, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("result", [None, 0, {}, {"me": {}}, "no"])
def test_result_of_the_wrong_shape_is_a_failure(result):
    played = play({}, rewards=lambda game_state: result, guard=presets.failures_only(), rounds=2)
    assert played.rounds == 2
    assert played.rewards("me") == [0.0] * G


def test_reward_function_that_raises_on_own_work_fails_one_round():
    reward = failing(boom, lambda names, call: call == 1)
    played = play({}, rewards=reward, guard=presets.failures_only(), rounds=2)
    assert played.rounds == 2
    first, second = ([r for row in of.values() for _, r in row] for of in played.trainer.trained)
    assert (first, second) == ([0.0] * G, OWN)
    without = play({}, rewards=failing(boom, always), guard=Guard(Words()))
    assert without.rounds == 0  # as without a guard


def hanging(when):
    """Like `failing`, in worker processes, whose calls are not visible here."""

    def reward(game_state):
        if when(game_state):
            hang()
        return correct(game_state)

    return reward


def test_hanging_reward_function_is_cut_off_at_its_timeout():
    reward = hanging(lambda state: state.round == 0)
    played = play({}, rewards=reward, guard=presets.failures_only(timeout=0.5), rounds=2)
    assert played.rounds == 2
    first, second = ([r for row in of.values() for _, r in row] for of in played.trainer.trained)
    assert (first, second) == ([0.0] * G, OWN)


def test_failures_caused_by_peers_do_not_affect_own_work(caplog):
    reward = failing(boom, with_bob)
    guard = Guard(Words(), failures=GraderFailures(window=2, max_rate=0.0))
    played = play(BOB, rewards=reward, guard=guard, rounds=5)
    assert played.rounds == 5
    assert played.rewards("me") == OWN
    assert played.rewards("bob") == [0.0] * G
    assert reward.calls == [{"bob", "me"}, {"me"}] * 5
    assert caplog.text.count("failed on foreign trees") == 1
    assert "failed too often" not in caplog.text


def test_hangs_caused_by_peers_do_not_affect_own_work():
    reward = hanging(lambda state: "bob" in state.trees)
    failures = GraderFailures(timeout=0.5, window=2, max_rate=0.0)
    played = play(BOB, rewards=reward, guard=Guard(Words(), failures=failures), rounds=3)
    assert played.rounds == 3
    assert played.rewards("me") == OWN
    assert played.rewards("bob") == [0.0] * G


@pytest.mark.parametrize("peers", [{}, BOB])
def test_too_many_failures_stop_rewards_but_not_the_game(peers, caplog):
    guard = Guard(Words(), failures=GraderFailures(window=4, max_rate=0.5))
    reward = failing(boom, lambda names, call: call <= 12)
    played = play(peers, rewards=reward, guard=guard, rounds=14)
    assert played.rounds == 14
    assert caplog.text.count("failed too often: no completion earns a reward") == 1
    assert "no sandbox" in caplog.text
    earned = [[r for row in of.values() for _, r in row] for of in played.trainer.trained]
    assert earned[0] == [0.0] * len(earned[0])
    assert played.rewards("me") == OWN


def test_log_names_the_rounds_with_too_many_failures():
    guard = Guard(Words(), failures=GraderFailures(window=2, max_rate=0.5))
    failed = play({}, rewards=failing(boom, always), guard=guard, rounds=3)
    assert failed.trainer.logged["guard/failed"] == 1.0
    fine = play({}, guard=presets.failures_only(timeout=30))
    assert fine.trainer.logged["guard/failed"] == 0.0
    assert fine.rewards("me") == OWN


def test_success_with_peers_counts_for_own_work():
    """Otherwise failures of long ago would fill the window."""
    guard = Guard(Words(), failures=GraderFailures(window=4, max_rate=0.5))
    reward = failing(boom, lambda names, call: call % 5 in (1, 2))  # one round in four
    played = play(BOB, rewards=reward, guard=guard, rounds=12)
    assert played.trainer.logged["guard/failed"] == 0.0
    assert played.rewards("me") == OWN


def test_abstain_error_of_the_function_propagates():
    def refuse():
        raise AbstainError("the function's")

    assert play({}, rewards=failing(refuse, always)).rounds == 0


def test_unsupported_settings_are_refused():
    with pytest.raises(FrameworkError, match="end of the game"):
        play({}, guard=presets.failures_only(policy=Policy("drop", "raise")))
