"""OpenRLHF: the samples of a prompt judged together, although each is executed by itself.

An engine starts all samples of a prompt at once, in one `asyncio.gather`, and the trainer waits for
all of them. So nobody has to be told how many there are: each gives the event loop one turn before
it begins, in which its siblings start. And nobody waits longer for siblings than the trainer does
anyway, which is why there is no time-out: it would tear groups apart and save no time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

Brought = TypeVar("Brought")
Judged = TypeVar("Judged")


class Siblings(Generic[Brought, Judged]):
    """For the tasks of one event loop. Keeps a group until all of it has come, and no results.

    Args:
        judge: What each of a group is given back, in order; called once per group.
    """

    def __init__(self, judge: Callable[[Sequence[Brought]], Awaitable[Sequence[Judged]]]) -> None:
        self._judge = judge
        self._open: dict[Hashable, _Group[Brought, Judged]] = {}

    async def bring(self, key: Hashable, work: Callable[[], Awaitable[Brought]]) -> Judged:
        """Do the work, wait for the siblings, and return what was said of it.

        Args:
            key: What siblings have in common. Must stay theirs alone until they are judged.
            work: What the siblings do at the same time.

        Raises:
            Exception: of ``work``, unchanged (the others are judged without it), or of ``judge``,
                to every one of the group.
        """
        group = self._open.get(key)
        if group is None:
            group = self._open[key] = _Group()
        place = group.started
        group.started += 1
        group.running += 1
        try:
            await asyncio.sleep(0)
            group.brought[place] = await work()
        finally:
            group.running -= 1
            if not group.running:
                del self._open[key]
                # A task of its own: were it one of the siblings, its end would be that of all.
                if group.brought:
                    group.judging = asyncio.create_task(self._judged(group))
                    group.judging.add_done_callback(group.close)
        return (await asyncio.shield(group.verdicts))[place]

    async def _judged(self, group: _Group[Brought, Judged]) -> dict[int, Judged]:
        places = sorted(group.brought)
        verdicts = await self._judge([group.brought[place] for place in places])
        return dict(zip(places, verdicts, strict=True))


class _Group(Generic[Brought, Judged]):
    def __init__(self) -> None:
        self.started = self.running = 0
        self.brought: dict[int, Brought] = {}
        self.verdicts: asyncio.Future[dict[int, Judged]] = (
            asyncio.get_running_loop().create_future()
        )
        self.judging: asyncio.Task[dict[int, Judged]] | None = None

    def close(self, judging: asyncio.Task[dict[int, Judged]]) -> None:
        if judging.cancelled():
            self.verdicts.cancel()
        elif error := judging.exception():
            self.verdicts.set_exception(error)
        else:
            self.verdicts.set_result(judging.result())
