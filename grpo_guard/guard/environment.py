"""Check the tool results and user turns of a completion against its environment.

A peer runs the tools on its own machine and sends the transcript. It can edit a result, mark its
own text as a result, or exclude from the loss whatever it does not want trained on. Each of these
tricks passes log-prob checks, because whatever follows a forged result is sampled from the policy.
Asking the environment again exposes them all.
"""

import heapq
import inspect
import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from grpo_guard.core.completion import Completion, shown
from grpo_guard.core.given import between
from grpo_guard.core.prompts import Message
from grpo_guard.core.scope import Scope
from grpo_guard.core.supervise import cause_of, engine_wide
from grpo_guard.core.verdict import Cause, Finding, Verdict, abstain, accept, reject
from grpo_guard.core.verifier import CompletionVerifier

logger = logging.getLogger("grpo_guard")
# Share of the time-out to use. Beyond the time-out, the whole call fails and its verdicts are lost.
SHARE_OF_TIME: Final = 0.8
# Number of completions that can each use up their maximum time before none is left.
MOST_SLOW: Final = 16

Environment: TypeAlias = Callable[[str | Sequence[Message], tuple[str, ...]], str | None]
"""A function ``(prompt, turns) -> answer``. The answer is the exact text that follows the author's
last turn (leading and trailing white space is ignored), including chat template markers if the text
has them. Return "" if nothing may follow. Return None if the answer cannot be reproduced (a search,
a clock); the sender's claim is then trusted, and an author can write anything there. Turns are
untrusted text: run nothing in them outside a sandbox, and return an error's text instead of
raising, as the original environment did."""


class EnvironmentVerifier(CompletionVerifier):
    """Rejects completions whose tool results or user turns the environment does not reproduce.

    `Guard` creates this verifier from its ``environment`` argument and then trusts the given spans
    it accepts. Used on its own, this verifier does not make any other verifier trust them. A
    completion without given spans is accepted. Raises TypeError if ``environment`` cannot be
    called, or is async.

    Args:
        environment: Function called for each given span, in order, up to the first forged one.
        most: Maximum number of given spans per completion; a completion with more is rejected as
            OVERLONG. Without a limit, a sender could control how often your tools are called, and
            the whole batch would wait for them.
    """

    name = "environment"
    scope: Scope = "completion"

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
        return f"{self.name} abstains if the environment raises or hangs on an author's turn"

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        """Return one verdict per completion; abstain if the environment raises on a turn or runs
        out of time.

        If exceptions propagated, halves of the batch would be retried, and a sender with a third of
        the batch could make it fail for everyone with turns that make the environment raise. Slow
        turns could use up everyone's time, so the next completion is always taken from the node
        that has used the least time.
        """
        verdicts, logged = dict[int, Verdict](), set[str]()
        limit = math.inf if self.timeout is None else self.timeout * SHARE_OF_TIME
        end = time.monotonic() + limit
        for i, until in self._in_turn(batch, end, limit / MOST_SLOW):
            try:
                verdicts[i] = self._judge(batch[i], until)
            except Exception as error:
                if engine_wide(error):
                    raise
                kind = type(error).__name__
                if kind not in logged:  # an outage gets one line in the log
                    logger.warning("the environment failed on a completion", exc_info=error)
                logged.add(kind)
                message = ascii(f"{kind}: {error!s:.200}")[1:-1]
                verdicts[i] = abstain(self.name, cause_of(error) or Cause.FAULT, message)
        return [verdicts[i] for i in range(len(batch))]

    def _in_turn(
        self, batch: Sequence[Completion], end: float, each: float
    ) -> Iterator[tuple[int, float]]:
        """Yield (index, deadline) pairs. The time until the next pair is charged to the node."""
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
            message = f"{len(spans)} answers of tools and users, more than the limit {self.most}"
            return reject(self.name, Cause.OVERLONG, message)
        for (start, end), own in zip(spans, between(spans, len(text)), strict=False):
            turns = (*turns, text[slice(*own)])
            if time.monotonic() > until:
                message = f"the environment had no time left for turn {len(turns)}"
                return abstain(self.name, Cause.TIMEOUT, message)
            expected = self.environment(completion.prompt, turns)
            if not isinstance(expected, str | None):
                raise TypeError(f"expected it to return text or None, got {shown(expected)}")
            # An expected "" forbids even invisible text there: the mark itself is forged.
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
    """A copy of the completion with its given spans marked as known."""
    if completion.given is None:
        return completion
    return replace(completion, given=replace(completion.given, known=True))
