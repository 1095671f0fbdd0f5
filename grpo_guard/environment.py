"""Whether what a completion marks as given is what its environment says.

A peer runs the tools on its own machine and sends the transcript. It can edit a result, mark its
own words as a result, or leave out of the loss whatever it does not want trained. Each of these
passes log-prob checks: what follows a forged result is drawn from the policy. All of them show
where the environment is asked again.
"""

from __future__ import annotations

import heapq
import inspect
import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from grpo_guard.completion import Completion, shown
from grpo_guard.given import between
from grpo_guard.prompts import Message
from grpo_guard.supervise import cause_of, engine_wide
from grpo_guard.verdict import Cause, Finding, Verdict, abstain, accept, reject
from grpo_guard.verifier import CompletionVerifier

logger = logging.getLogger("grpo_guard")
# Of the time-out: past it the call would be given up, with all that has been found.
SHARE_OF_TIME: Final = 0.8
# Completions that may take as long as they can before there is no time left.
MOST_SLOW: Final = 16

Environment: TypeAlias = Callable[[str | Sequence[Message], tuple[str, ...]], str | None]
"""``(prompt, turns) -> answer``: what stands behind the last of an author's turns, word for word
(white space at the ends aside), marks of the chat template included where the text has them. ""
where nothing may stand there. None: it cannot be said again (a search, a clock), and the claim is
believed: an author can then write there what he likes. Turns are a stranger's text: run nothing of
it outside a sandbox, and give an error's text in place of raising, as the environment did."""


class EnvironmentVerifier(CompletionVerifier):
    """Rejects completions with a tool's result or user's turn that the environment does not give.

    `Guard` has it as ``environment=``, and then believes what it accepts. By itself it makes no
    other verifier believe anything. A completion with nothing given is accepted.

    Args:
        environment: Asked once for each stretch that is given, in order, up to the first that
            is forged.
        most: Stretches of one completion; more are rejected as OVERLONG. A sender decides how
            often your tools are asked, and all of a batch wait for them.

    Raises:
        TypeError: ``environment`` cannot be called, or is async.
    """

    name = "environment"
    judges_alone = True

    def __init__(self, environment: Environment, *, most: int = 64) -> None:
        if not callable(environment):
            raise TypeError(f"environment: expected a function, got {shown(environment)}")
        if inspect.iscoroutinefunction(environment):
            raise TypeError(
                "environment: expected a function that is not async; run it in a loop of its own, "
                "as with asyncio.run"
            )
        self.environment, self.most = environment, most

    @property
    def author_can_abstain(self) -> str | None:
        return f"{self.name} abstains where the environment raises or hangs on an author's turn"

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        """An abstention where the environment raises on a turn, or has no time left for it.

        Were it raised on, halves of a batch would be asked again, and whoever sends a third of it,
        in turns that make it raise, would have it given up for everybody. Slow ones would take
        everybody's time: so the next to be asked about is of the node that has taken least.
        """
        verdicts, told = dict[int, Verdict](), set[str]()
        limit = math.inf if self.timeout is None else self.timeout * SHARE_OF_TIME
        end = time.monotonic() + limit
        for i, until in self._in_turn(batch, end, limit / MOST_SLOW):
            try:
                verdicts[i] = self._judge(batch[i], until)
            except Exception as error:
                if engine_wide(error):
                    raise
                kind = type(error).__name__
                if kind not in told:  # an outage is one line in the log
                    logger.warning("the environment failed on a completion", exc_info=error)
                told.add(kind)
                said = ascii(f"{kind}: {error!s:.200}")[1:-1]
                verdicts[i] = abstain(self.name, cause_of(error) or Cause.FAULT, said)
        return [verdicts[i] for i in range(len(batch))]

    def _in_turn(
        self, batch: Sequence[Completion], end: float, each: float
    ) -> Iterator[tuple[int, float]]:
        """Places, and until when each may take; the caller's time between two is the node's."""
        places = defaultdict[str | None, deque[int]](deque)
        for i, completion in enumerate(batch):
            places[completion.node].append(i)
        waiting = [(0.0, order, own) for order, own in enumerate(places.values())]
        while waiting:
            spent, order, own = heapq.heappop(waiting)
            started = time.monotonic()
            yield own.popleft(), min(end, started + each)
            if own:
                heapq.heappush(waiting, (spent + time.monotonic() - started, order, own))

    def _judge(self, completion: Completion, until: float) -> Verdict:
        given, text = completion.given, completion.text
        spans = given.chars if given else ()
        turns: tuple[str, ...] = ()
        if len(spans) > self.most:
            message = f"{len(spans)} answers of tools and users, where {self.most} are asked again"
            return reject(self.name, Cause.OVERLONG, message)
        for (start, end), own in zip(spans, between(spans, len(text)), strict=False):
            turns = (*turns, text[slice(*own)])
            if time.monotonic() > until:
                message = f"the environment took too long to be asked about turn {len(turns)}"
                return abstain(self.name, Cause.TIMEOUT, message)
            expected = self.environment(completion.prompt, turns)
            if not isinstance(expected, str | None):
                raise TypeError(f"expected text or None of it, got {shown(expected)}")
            # Where nothing may stand not even what is invisible may: the mark itself is forged.
            if expected is None or expected.strip() == text[start:end].strip() != "":
                continue
            message = (
                f"the environment answers turn {len(turns)} with {shown(expected.strip())}, the "
                f"completion has {shown(text[start:end].strip())}"
            )
            finding = Finding("forged_tool_result", message, char_span=(start, end))
            return reject(self.name, findings=(finding,))
        return accept(self.name)


def with_verified_spans(completion: Completion) -> Completion:
    """The completion, of which it is known what was given."""
    if completion.given is None:
        return completion
    return replace(completion, given=replace(completion.given, known=True))
