"""Large work yields to small requests, and clients take turns at it."""

import asyncio

import pytest

from grpo_guard.server.pace import LONGEST_REST, PIECE, REST, Pace


def paced(scenario):
    """Run a coroutine function of a pace and the event loop's clock."""

    async def run():
        return await scenario(Pace(), asyncio.get_running_loop().time)

    return asyncio.run(run())


def test_large_work_pauses_only_for_small_requests():
    async def scenario(pace, clock):
        pace.worked(1.0, clock())
        before = pace.rest(clock())
        pace.make_way(clock())
        during = pace.rest(clock())
        return before, during, pace.rest(clock() + 60)

    before, during, after = paced(scenario)
    assert before == after == 0
    assert during == pytest.approx(REST, abs=0.1)


def test_waiting_for_the_previous_piece_is_bounded():
    async def scenario(pace, clock):
        pace.make_way(clock())
        for _ in range(100):
            pace.worked(10.0, clock())
        return pace.rest(clock())

    assert paced(scenario) <= LONGEST_REST


def test_turns_rotate_over_clients():
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


def test_disconnected_client_takes_no_turn():
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


def test_waiting_batch_precedes_the_next_body_for_a_bounded_time():
    async def scenario(pace, clock):
        pace.make_way(clock())
        pace.judging = lambda: True
        pace.worked(0.001, clock())
        for _ in range(3):  # without a batch in between, since none can start
            await asyncio.wait_for(pace.turn("a", PIECE), 10)

    paced(scenario)
