"""Stream the reply to a large request: one JSON object per line, sent as soon as it is ready."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager

from starlette.types import Send

from grpo_guard.core.completion import Completion
from grpo_guard.core.prompts import prompt_key
from grpo_guard.core.rollouts import rollout_of
from grpo_guard.server.limits import Limits
from grpo_guard.server.replies import ReplyBody

NDJSON = "application/x-ndjson"
TIMES = 16
"""A request answered as a stream can have this many times as many completions."""
PART = 256
"""Number of completions judged together, unless one group has more, as in ``grpo-guard verify``."""
PART_CHARACTERS = 64 * 1024
"""Number of characters of text at which a part is full: small requests share the processor with a
part until it is done."""
_NOTHING = {"type": "http.response.body", "body": b"", "more_body": True}


def parts(completions: Sequence[Completion], most: int = PART) -> Iterator[list[Completion]]:
    """Yield batches of about ``most`` completions or `PART_CHARACTERS`, in order. Consecutive
    answers to one prompt stay together, because verifiers compare them, and so do the segments of a
    rollout, which are judged as one."""
    part: list[Completion] = []
    last: tuple[int | None, str] | None = None
    rollout: Hashable = None
    held = 0
    for completion in completions:
        key = completion.round, prompt_key(completion.prompt)
        own = rollout_of(completion)
        follows = key == last or (own is not None and own == rollout)
        if (len(part) >= most or held >= PART_CHARACTERS) and not follows:
            yield part
            part, held = [], 0
        part.append(completion)
        held += len(completion.text)
        last, rollout = key, own
    if part:
        yield part


async def send_lines(
    send: Send,
    request_id: str,
    completions: Sequence[Completion],
    judge: Callable[[list[Completion], int], Awaitable[ReplyBody]],
    limits: Limits,
    fetching: Callable[[float], AbstractAsyncContextManager[None]],
) -> AsyncIterator[ReplyBody]:
    """Send the reply, and yield the answer to each part once that answer is on its way.

    The client's reading sets the pace: the next part is judged once the lines of the previous part
    have left for the network. So only one part is in memory, however many there are, and nothing is
    judged ahead for a client that does not read. A client that fetches more slowly than a body is
    required to arrive is cut off.

    Args:
        judge: Takes a part and the index of its first completion, and returns the answer as lines.
        fetching: Opens the context of one fetch; see `Intake.fetching`.

    Raises:
        ClientDisconnect: the client has left, or fetches too slowly.
    """
    clock = asyncio.get_running_loop().time
    waited = sent = 0.0
    headers = [(b"content-type", NDJSON.encode()), (b"x-request-id", request_id.encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    first = 0
    for part in parts(completions):
        answered = await judge(part, first)
        first += len(part)
        body = answered.text.encode("ascii")
        sent += len(body)
        began = clock()
        async with fetching(limits.body_patience + sent / limits.body_rate - waited):
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await send(_NOTHING)  # returns once there is room for more
        waited += clock() - began
        yield answered
    await send({"type": "http.response.body", "body": b"", "more_body": False})
