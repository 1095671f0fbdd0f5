"""Large work makes way for small requests, and each client has its turn at it."""

import asyncio

import pytest

from grpo_guard.server.pace import LONGEST_REST, PIECE, REST, Pace


def paced(scenario):
    """Run a coroutine function of a pace and the loop's clock."""

    async def run():
        return await scenario(Pace(), asyncio.get_running_loop().time)

    return asyncio.run(run())


def test_large_work_rests_only_while_small_requests_come():
    async def scenario(pace, clock):
        pace.worked(1.0, clock())
        before = pace.rest(clock())
        pace.make_way(clock())
        during = pace.rest(clock())
        return before, during, pace.rest(clock() + 60)

    before, during, after = paced(scenario)
    assert before == after == 0
    assert during == pytest.approx(REST, abs=0.1)


def test_no_piece_of_work_makes_the_next_one_wait_for_long():
    async def scenario(pace, clock):
        pace.make_way(clock())
        for _ in range(100):
            pace.worked(10.0, clock())
        return pace.rest(clock())

    assert paced(scenario) <= LONGEST_REST


def test_turns_go_round_the_clients_however_often_one_asks():
    async def scenario(pace, clock):
        pace.make_way(clock())
        pace.worked(0.5, clock())  # a rest that is long enough for all to ask on a busy machine
        order = []

        async def asks(client):
            await pace.turn(client, PIECE)
            order.append(client)

        asking = [asyncio.create_task(asks("floods")) for _ in range(40)]
        asking += [asyncio.create_task(asks(name)) for name in ("a", "b", "a")]
        await asyncio.gather(*asking)
        return order

    order = paced(scenario)
    assert order[:5] == ["floods", "a", "b", "floods", "a"]
    assert len(order) == 43


def test_whoever_leaves_while_it_waits_takes_no_turn():
    async def scenario(pace, clock):
        pace.make_way(clock())
        pace.worked(0.02, clock())
        waiting = [asyncio.create_task(pace.turn(f"{i}", PIECE)) for i in range(5)]
        await asyncio.sleep(0)
        for task in waiting[:4]:
            task.cancel()
        await asyncio.wait_for(waiting[4], 10)
        return [task.cancelled() for task in waiting]

    assert paced(scenario) == [True] * 4 + [False]


def test_a_batch_that_waits_goes_before_the_next_body_but_holds_none_up_for_good():
    async def scenario(pace, clock):
        pace.make_way(clock())
        pace.judging = lambda: True
        pace.worked(0.001, clock())
        for _ in range(3):  # without a batch in between, since none can begin
            await asyncio.wait_for(pace.turn("a", PIECE), 10)

    paced(scenario)
