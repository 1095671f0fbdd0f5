"""The backend of `VLLMScorer`: a vLLM server queried over HTTP."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from grpo_guard.core.arguments import require_count
from grpo_guard.core.verdict import Cause
from grpo_guard.logprob.scorers.top_stats import Position

# JSON has no -inf; vLLM's server sends this number instead.
MINUS_INFINITY = -9999.0


class EngineUnavailableError(RuntimeError):
    """The engine gave no usable answer, through no fault of any completion's author."""

    def __init__(self, cause: Cause, message: str, *, engine_wide: bool = False) -> None:
        self.cause = cause  # TIMEOUT, RATE_LIMITED or PROVIDER
        # Whether every sequence would fail. Otherwise the batch is halved to find the one at fault:
        # one crafted completion must not make the verifier abstain on all of them.
        self.engine_wide = engine_wide
        super().__init__(message)


Lists = list[Position]
# Headers a server could use to make the client sleep while holding one of its slots.
_PACE = ("retry-after", "retry-after-ms", "x-should-retry")


@dataclass(frozen=True, slots=True)
class ServerBackend:
    """vLLM's OpenAI-compatible server, queried for completions of token-id prompts.

    Sends one request per sequence and can be called from several threads. The client retries
    connection errors, time-outs, 429 and 5xx until ``attempts`` or ``timeout`` is used up.

    Args:
        base_url: URL of the API with its version, such as ``http://127.0.0.1:8000/v1``.
        model: Name the server offers the model under.
        n_logprobs: Number of tokens listed per position: at most the server's ``--max-logprobs``
            (20 unless raised) and at least the declared top-k. More tokens give tighter bounds but
            larger answers.
        api_key: The server's key; OPENAI_API_KEY from the environment is never sent.
        timeout: Time limit for one whole call to `lists`, retries included, in seconds.
        concurrency: Maximum number of concurrent requests.
        attempts: Maximum number of attempts per sequence when errors are transient.

    Raises:
        ValueError: an argument is out of range.
        ImportError: the ``openai`` package is missing.
    """

    base_url: str
    model: str
    n_logprobs: int = 20
    api_key: str | None = field(default=None, repr=False)
    timeout: float = 120.0
    concurrency: int = 8
    attempts: int = 4

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url: expected http:// or https://..., got {self.base_url!r}")
        require_count("concurrency", self.concurrency)
        require_count("attempts", self.attempts)
        if not (math.isfinite(self.timeout) and self.timeout > 0):
            raise ValueError(f"timeout: expected seconds > 0, got {self.timeout!r}")
        if find_spec("openai") is None:  # fail now rather than in the middle of training
            raise ImportError("VLLMScorer.server needs the openai package: pip install 'openai>=2'")

    def lists(self, sequences: Sequence[Sequence[int]], starts: Sequence[int]) -> list[Lists]:
        """Return one list per position from ``starts[i] >= 1`` to the end of ``sequences[i]``.

        A list holds the ``n_logprobs`` most likely tokens, plus the actual token if not among them.

        Raises:
            ValueError: the server refuses a sequence, such as one longer than its window.
            EngineUnavailableError: there was no usable answer in time.
        """
        return _run(lambda: self._all(sequences, starts))

    async def _all(self, sequences: Sequence[Sequence[int]], starts: Sequence[int]) -> list[Lists]:
        import openai

        slots = asyncio.Semaphore(self.concurrency)
        refused: list[int] = []
        tasks: list[asyncio.Task[Lists]] = []

        async def note(response: Any) -> None:
            if response.status_code >= 400:
                refused.append(response.status_code)
                for name in _PACE:
                    response.headers.pop(name, None)

        async def one(client: Any, ids: Sequence[int], start: int) -> Lists:
            async with slots:
                return await self._request(client, ids, start)

        try:
            async with (
                asyncio.timeout(self.timeout),
                openai.AsyncOpenAI(
                    base_url=self.base_url,
                    # Given None, the client would send OPENAI_API_KEY, another service's secret.
                    api_key=self.api_key or "none",
                    max_retries=self.attempts - 1,
                    timeout=self.timeout,
                    http_client=openai.DefaultAsyncHttpxClient(event_hooks={"response": [note]}),
                ) as client,
                asyncio.TaskGroup() as group,
            ):
                tasks += [
                    group.create_task(one(client, ids, start))
                    for ids, start in zip(sequences, starts, strict=True)
                ]
        except TimeoutError:
            # A server that kept refusing to the end was not slow.
            cause = _cause_of(refused[-1]) if refused else Cause.TIMEOUT
            reason = f"; last: HTTP {refused[-1]}" if refused else ""
            # A server that answered some sequences is up, so the others may be what makes it hang.
            answered = sum(t.done() and not t.cancelled() and not t.exception() for t in tasks)
            raise EngineUnavailableError(
                cause,
                f"no answer to {len(sequences) - answered} of {len(sequences)} sequences "
                f"within {self.timeout} s{reason}",
                engine_wide=cause is Cause.RATE_LIMITED or not answered,
            ) from None
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _request(self, client: Any, ids: Sequence[int], start: int) -> Lists:
        import openai

        try:
            answer = await client.completions.create(
                model=self.model,
                prompt=list(ids),  # never a string, which the server would tokenise
                max_tokens=1,
                temperature=0,
                extra_body={"prompt_logprobs": self.n_logprobs, "return_token_ids": True},
            )
        except openai.APIStatusError as error:
            raise _of_status(error.status_code, str(error)) from None
        except openai.APITimeoutError:
            raise EngineUnavailableError(Cause.TIMEOUT, "the request timed out") from None
        except openai.APIConnectionError as error:
            message = f"no connection: {error.__cause__!s:.200}"
            raise EngineUnavailableError(Cause.PROVIDER, message) from None
        except (openai.OpenAIError, ValueError) as error:  # e.g. a body that is not JSON
            raise _nonsense(error) from None
        return _parse(answer, ids, start)


def _of_status(status: int, message: str) -> Exception:
    text = f"HTTP {status}: {message:.300}"
    if status in (400, 413, 422):
        return ValueError(f"the vLLM server refuses the sequence: {text}")
    cause = _cause_of(status)
    return EngineUnavailableError(cause, text, engine_wide=cause is Cause.RATE_LIMITED)


def _cause_of(status: int) -> Cause:
    if status in (408, 504):
        return Cause.TIMEOUT
    return Cause.RATE_LIMITED if status == 429 else Cause.PROVIDER


def _nonsense(error: object) -> EngineUnavailableError:
    return EngineUnavailableError(
        Cause.PROVIDER, f"expected a completion with prompt_logprobs: {error!s:.200}"
    )


def _parse(answer: Any, ids: Sequence[int], start: int) -> Lists:
    """Parse the lists in a completion object, whose vLLM fields are untyped extras."""
    try:
        (choice,) = answer.choices
        raw = choice.prompt_logprobs
        echoed = choice.prompt_token_ids
        # If the server truncated or changed the prompt, it would be scoring something else.
        if len(raw) != len(ids) or (echoed is not None and list(echoed) != list(ids)):
            raise ValueError(f"{len(raw)} positions for {len(ids)} tokens, or other tokens")
        return [
            {int(i): (_logprob(e["logprob"]), int(e["rank"] or 1)) for i, e in position.items()}
            for position in raw[start:]
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _nonsense(f"{type(error).__name__}: {error}") from None


def _logprob(value: float | None) -> float:
    if value is None:  # NaN, which JSON cannot express
        return math.nan
    return -math.inf if value <= MINUS_INFINITY else float(value)


def _run(work: Callable[[], Coroutine[Any, Any, list[Lists]]]) -> list[Lists]:
    """Run a coroutine to completion, even if the caller's thread already runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(work())).result()
