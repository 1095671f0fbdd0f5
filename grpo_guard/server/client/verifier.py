"""`RemoteVerifier`: asks a guard served by ``grpo-guard serve``."""

import asyncio
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import tenacity

from grpo_guard.core.completion import Completion
from grpo_guard.core.quoting import one_line, shown
from grpo_guard.core.redaction import hidden
from grpo_guard.core.scope import Scope
from grpo_guard.core.verdict import Cause, Verdict, abstain, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.judge.backends.openai import usable_key
from grpo_guard.judge.errors import BackendError, as_backend_error
from grpo_guard.judge.loop import background_loop
from grpo_guard.server.client.answer import AnswerError, verdicts_in
from grpo_guard.server.client.question import line_of, requests

# Maximum size of a reply in bytes: a fixed amount, plus an amount per completion.
_REPLY_BYTES = 1024 * 1024
_VERDICT_BYTES = 256 * 1024
_LONGEST_WAIT = 60.0
_BODY = b'{"completions": [%s]}'
# Blanks out what the author sends; the prompt, its ids and the reference are kept.
_AUTHOR_FIELDS_BLANK: Final[Mapping[str, Any]] = {
    "text": "", "completion_ids": None, "sampler_logprobs": None, "given": None, "metadata": {},
    "node": None, "group": None, "rollout": None, "finish_reason": None,
}  # fmt: skip
_REMEDIES = {
    401: "set the variable named by token_env to the server's token",
    403: "the server refuses requests from web pages; leave out Origin",
    404: "url does not lead to grpo-guard serve",
    413: "the server accepts less; lower max_body_mb or most, or raise its own limit",
    415: "a proxy compresses requests; it must not",
    411: "a proxy sends bodies without their length; it must send it",
}


class RemoteVerifier(CompletionVerifier):
    """Asks a guard on another machine for its verdicts.

    A failed request is retried if that may help. If the server still does not answer, refuses, or
    returns nonsense, the verdicts abstain. The server's answers are untrusted: there must be
    exactly one verdict per completion, in order, with spans inside the completion.

    Args:
        url: Address of ``grpo-guard serve``, without a path, such as ``http://127.0.0.1:8000``.
        token_env: Environment variable that holds the server's token; may be unset.
        request_timeout: Time limit for one request, in seconds.
        deadline: Time limit for a batch, including all its requests and retries, in seconds.
        attempts: Maximum number of attempts per request.
        most: Maximum number of completions per request; answers to one prompt share a request if
            they fit.
        max_body_mb: Maximum size of a request in MiB, like the server's own ``--max-body-mb``. A
            larger completion is rejected as overlong, or abstained on if its prompt alone is too
            large.
        concurrency: Maximum number of requests in flight.
        name: Name to show in verdicts.

    Raises:
        ValueError: an argument is out of range. The message omits the url, which may hold a
            password.
        ImportError: the HTTP client is missing; the message explains how to install it.
    """

    name = "remote"
    scope: Scope = "history"  # the server's guard may remember
    needs = "a server, grpo-guard serve; pip install 'grpo-guard[remote]'"
    steps_aside = True
    compares_ids = True  # the server's guard compares ids, or refuses them

    def __init__(
        self,
        url: str,
        *,
        token_env: str = "GRPO_GUARD_TOKEN",
        request_timeout: float = 150.0,
        deadline: float = 600.0,
        attempts: int = 5,
        most: int = 256,
        max_body_mb: float = 4.0,
        concurrency: int = 4,
        name: str | None = None,
    ) -> None:
        self.url = _address(url)
        for field, value in (
            ("request_timeout", request_timeout), ("deadline", deadline), ("attempts", attempts),
            ("most", most), ("max_body_mb", max_body_mb), ("concurrency", concurrency),
        ):  # fmt: skip
            if isinstance(value, bool) or not 0 < value < float("inf"):
                raise ValueError(f"remote.{field}: expected a number > 0, got {value!r:.80}")
        self.name = name or type(self).name
        self.token_env = token_env
        self.request_timeout, self.deadline, self.attempts = request_timeout, deadline, attempts
        self.most, self.concurrency = most, concurrency
        self.max_bytes = int(max_body_mb * 1024 * 1024)
        self.timeout = deadline + 30.0  # the deadline comes first, with a clearer report
        _http()

    @property
    def author_can_abstain(self) -> str | None:
        return f"{self.name} asks a guard on another machine, and what makes that one abstain is "\
            "unknown here"  # fmt: skip

    def check(self) -> None:
        """Check that the server responds and accepts the token; raises BackendError with the
        remedy."""
        background_loop().run(self._probe())

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        return background_loop().run(self.averify(batch))

    async def averify(self, batch: Sequence[Completion]) -> list[Verdict]:
        """Like `verify`, but on the running event loop."""
        if not batch:
            return []
        until = time.monotonic() + self.deadline
        found: dict[int, Verdict] = {}
        rows: dict[int, str] = {}
        for place, completion in enumerate(batch):
            try:
                row = line_of(completion)
            except (TypeError, ValueError, RecursionError) as error:
                message = f"it cannot be sent: {one_line(str(error))}"
                found[place] = abstain(self.name, Cause.UNSUPPORTED, message)
                continue
            if len(row) + len(_BODY) > self.max_bytes:
                found[place] = self._too_large(completion, len(row))
            else:
                rows[place] = row
        asked = requests(batch, rows, most=self.most, bytes=self.max_bytes - len(_BODY))
        slots = asyncio.Semaphore(int(self.concurrency))

        async def one(client: Any, places: list[int]) -> None:
            async with slots:
                verdicts = await self._judged(client, batch, places, rows, until)
                found.update(zip(places, verdicts, strict=True))

        async with self._client() as client, asyncio.TaskGroup() as group:
            for places in asked:
                group.create_task(one(client, places))
        return [found[place] for place in range(len(batch))]

    def _too_large(self, completion: Completion, size: int) -> Verdict:
        """Reject an oversized completion, or abstain if its prompt alone is too large."""
        asked = len(line_of(completion.with_labels(**_AUTHOR_FIELDS_BLANK)))
        room = f"but a request may have {self.max_bytes} bytes"
        if asked + len(_BODY) > self.max_bytes:
            message = f"its prompt takes {asked}, {room}; raise max_body_mb and the server's"
            return abstain(self.name, Cause.UNSUPPORTED, message)
        return reject(self.name, Cause.OVERLONG, f"it takes {size}, {room}")

    async def _judged(
        self,
        client: Any,
        batch: Sequence[Completion],
        places: list[int],
        rows: Mapping[int, str],
        until: float,
    ) -> list[Verdict]:
        """Get the verdicts for one request; if the server refuses it, try each half."""
        part = [batch[place] for place in places]
        body = _BODY % ", ".join(rows[place] for place in places).encode("ascii")
        asked = time.monotonic()
        try:
            answer = await self._answer(client, body, len(part), until)
            took = time.monotonic() - asked
            return verdicts_in(answer, part, self.name, most=_most_bytes(len(part)), took=took)
        except AnswerError as error:
            failure = self._failure(BackendError(one_line(str(error))), 0.0)
        except BackendError as error:
            failure = error
        if failure.status in (413, 422) and len(places) > 1:
            middle = len(places) // 2
            halves = places[:middle], places[middle:]
            return [v for h in halves for v in await self._judged(client, batch, h, rows, until)]
        return [abstain(self.name, failure.cause, str(failure))] * len(places)

    async def _answer(self, client: Any, body: bytes, count: int, until: float) -> bytes:
        """Return the body of a reply with status 200; raises BackendError if all attempts fail."""
        attempts = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(lambda e: isinstance(e, BackendError) and e.retry),
            stop=tenacity.stop_after_attempt(int(self.attempts)),
            wait=_wait(until),
            reraise=True,
        )
        most = _most_bytes(count)
        # If an answer is lost, the server repeats it for this key, and counts no node twice.
        idempotent = {"Idempotency-Key": secrets.token_hex(16)}
        async for attempt in attempts:
            with attempt:
                left = min(self.request_timeout, until - time.monotonic())
                try:
                    async with asyncio.timeout(max(0.0, left)):
                        return await self._request(
                            client, "POST", "/v1/verify", body, most, idempotent
                        )
                except Exception as error:
                    raise self._failure(error, left) from None
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _request(
        self,
        client: Any,
        method: str,
        path: str,
        body: bytes,
        most: int,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        async with client.stream(method, path, content=body, headers=headers) as response:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise BackendError("the reply is compressed, which was not asked for", retry=False)
            received = bytearray()
            async for chunk in response.aiter_raw():
                received += chunk
                if len(received) > most:
                    raise BackendError(f"the reply exceeds {most:,} bytes", retry=False)
            if response.status_code != 200:
                raise _refusal(response.status_code, response.headers, bytes(received))
            return bytes(received)

    def _failure(self, error: Exception, seconds: float) -> BackendError:
        if not isinstance(error, BackendError | TimeoutError | ImportError | MemoryError):
            transport = isinstance(error, _http().TransportError)
            described = f"{type(error).__name__}: {one_line(str(error))}"
            if transport:
                described = (
                    f"no answer from {self._address_shown}: {described}; start it with "
                    "grpo-guard serve, or correct url"
                )
            cause = Cause.PROVIDER if transport else Cause.FAULT
            error = BackendError(described, cause=cause, retry=transport)
        failure = as_backend_error(error, seconds)
        secrets = filter(None, (self._token(), urlsplit(self.url).password))
        failure.args = (hidden(str(failure), secrets),)
        return failure

    async def _probe(self) -> None:
        async with self._client() as client:
            try:
                async with asyncio.timeout(min(10.0, self.request_timeout)):
                    await self._request(client, "GET", "/metrics", b"", _REPLY_BYTES)
            except Exception as error:
                failure = self._failure(error, 10.0)
                raise BackendError(f"{self._where}: {failure}", cause=failure.cause) from None

    def _client(self) -> Any:
        # Connect directly: neither a proxy from the environment nor the target of a redirect
        # may see the token.
        token = self._token()
        headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return _http().AsyncClient(
            base_url=self.url, headers=headers, follow_redirects=False, trust_env=False,
            timeout=self.request_timeout,
        )  # fmt: skip

    def _token(self) -> str:
        return usable_key(os.environ.get(self.token_env) or "")

    @property
    def _where(self) -> str:
        return f"{self.name} at {self._address_shown}"

    @property
    def _address_shown(self) -> str:
        return urlsplit(self.url).netloc.rpartition("@")[2]

    def __repr__(self) -> str:
        return f"<RemoteVerifier {self._where}>"


def _most_bytes(completions: int) -> int:
    """Return the maximum size, in bytes, of a reply about this many completions."""
    return _REPLY_BYTES + completions * _VERDICT_BYTES


def _wait(until: float) -> Any:
    grow = tenacity.wait_random_exponential(multiplier=0.5, max=10)

    def wait(state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = getattr(error, "retry_after", None) or 0.0
        return min(max(grow(state), asked), max(0.0, until - time.monotonic()))

    return wait


def _refusal(status: int, headers: Mapping[str, str], body: bytes) -> BackendError:
    """Convert an error status into the cause and message of an abstention."""
    text = one_line(body[:1000].decode("utf-8", "replace"), 200)
    remedy = f"; {_REMEDIES[status]}" if status in _REMEDIES else ""
    cause = {
        429: Cause.RATE_LIMITED,
        408: Cause.TIMEOUT,
        504: Cause.TIMEOUT,
        422: Cause.UNSUPPORTED,
    }
    after = headers.get("retry-after", "")
    return BackendError(
        f"the server answers {status}{remedy}: {text}",
        cause=cause.get(status, Cause.PROVIDER),
        retry=status in (408, 425, 429) or status >= 500,
        retry_after=min(float(after), _LONGEST_WAIT) if after.isdecimal() else None,
        status=status,
    )


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        good = good and parts.path in ("", "/") and not parts.query and not parts.fragment
    except (AttributeError, TypeError, ValueError):
        good = False
    if not good or not url.isprintable() or " " in url:
        # What stands before an @ may be a token.
        got = "one with a secret" if isinstance(url, str) and "@" in url else shown(url)
        raise ValueError(
            "remote.url: expected http(s)://HOST[:PORT] without a path, such as "
            f"http://127.0.0.1:8080, got {got}"
        )
    return url.rstrip("/")


def _http() -> Any:
    """Import the HTTP client's package."""
    try:
        import httpx2
    except ImportError:
        raise ImportError(
            "remote needs the httpx2 package: pip install 'grpo-guard[remote]'"
        ) from None
    return httpx2
