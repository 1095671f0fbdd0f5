"""Any server that speaks OpenAI's chat protocol: the hosted API, vLLM, SGLang, llama.cpp.

The client's own retries are disabled: three of them inside three of ours would make nine requests.
Nor does the client follow redirects, which could reveal the question to another host or return an
answer from a host that never saw it. Replies are read uncompressed and up to a size limit.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from grpo_guard.core.quoting import one_line
from grpo_guard.core.redaction import hidden, host_of, secrets_in
from grpo_guard.core.verdict import Cause
from grpo_guard.judge.backends.base import Backend, Reply, Request
from grpo_guard.judge.backends.openai_replies import failure_of, reply_of
from grpo_guard.judge.errors import BackendError, JudgeSetupError

if TYPE_CHECKING:
    import openai

_inherited: list[object] = []
# Maximum size of a reply, in bytes. An answer with log-probabilities takes a few kB, a long list of
# models less than 1 MB.
LARGEST_REPLY = 4 * 2**20
_CONNECT_SECONDS = 1.5


class _SecretFilter(logging.Filter):
    """Removes secrets from what the HTTP client logs: the address and the server's text."""

    def __init__(self) -> None:
        super().__init__()
        self.secrets: frozenset[str] = frozenset()

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = hidden(record.getMessage()[:5000], self.secrets), ()
        return True


_secret_filter = _SecretFilter()


class OpenAIBackend(Backend):
    """A model behind an HTTP server.

    Args:
        model: Name of the model on the server.
        base_url: Address of the API, including ``/v1``; if None, ``$OPENAI_BASE_URL`` or, failing
            that, the hosted API.
        api_key: API key; if None, it is read from the environment variable ``api_key_env``. A local
            server needs no key. Surrounding white space is stripped.
        api_key_env: Environment variable that holds the key, so that no file has to contain it.
        timeout: Time limit for one request, in seconds; the judge's own limits apply as well.
        concurrency: Maximum number of requests in flight.
        revision: Version of the model, for the cache.
        token_parameter: Name of the parameter that limits the answer's length:
            ``"max_completion_tokens"`` for models that refuse ``max_tokens``.
        extra_body: Extra fields for every request, e.g. ``{"chat_template_kwargs": {...}}``.

    Raises:
        ValueError: an argument is out of range; the message contains neither key nor address.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        api_key_env: str = "OPENAI_API_KEY",
        timeout: float = 30.0,
        concurrency: int = 64,
        revision: str = "",
        token_parameter: str = "max_tokens",
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(model, str) or not model:
            raise ValueError(f"OpenAIBackend.model: expected a name, got {model!r}")
        if not timeout > 0:
            raise ValueError(f"OpenAIBackend.timeout: expected seconds > 0, got {timeout!r}")
        if concurrency < 1:
            raise ValueError(f"OpenAIBackend.concurrency: expected >= 1, got {concurrency!r}")
        self.model = model
        self.base_url = _address(base_url or os.environ.get("OPENAI_BASE_URL") or None)
        self.timeout = float(timeout)
        self.concurrency = concurrency
        self.revision = revision
        self.token_parameter = token_parameter
        self.extra_body = dict(extra_body or {})
        self._api_key = None if api_key is None else usable_key(api_key)
        self._api_key_env = api_key_env
        self._client: tuple[asyncio.AbstractEventLoop, openai.AsyncOpenAI] | None = None
        self._made_in = 0

    @property
    def identity(self) -> str:
        # Two servers can use the same name for different models; extra fields can change answers.
        return repr((super().identity, self.base_url, sorted(self.extra_body.items())))

    async def ask(self, requests: Sequence[Request], *, timeout: float) -> list[Reply]:
        replies = [self._ask_one(request, min(timeout, self.timeout)) for request in requests]
        return list(await asyncio.gather(*replies))

    async def _ask_one(self, request: Request, timeout: float) -> Reply:
        client = self._connected()
        try:
            answer = await client.chat.completions.create(
                **self._arguments(request), timeout=timeout
            )
            return reply_of(answer)
        except Exception as error:
            failure = self._failure(error)
            if isinstance(failure, Reply):
                return failure
            raise failure from None

    def _arguments(self, request: Request) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "model": self.model,
            "messages": [dict(message) for message in request.messages],
            "temperature": 0.0,
            self.token_parameter: request.max_tokens,
        }
        if request.top_logprobs:
            arguments |= {"logprobs": True, "top_logprobs": request.top_logprobs}
        if request.json_schema is not None:
            schema = {"name": "verdict", "strict": True, "schema": request.json_schema}
            arguments["response_format"] = {"type": "json_schema", "json_schema": schema}
        if self.extra_body:
            arguments["extra_body"] = self.extra_body
        return arguments

    def unready(self) -> str | None:
        return None if self.base_url is not None or self._key() else self._no_key()

    def unreached(self) -> str | None:
        if self.base_url is None or getproxies():
            return None  # the hosted API, or a server reached through a proxy
        parts = urlsplit(self.base_url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        try:
            socket.create_connection((str(parts.hostname), port), timeout=_CONNECT_SECONDS).close()
        except (ConnectionRefusedError, socket.gaierror, UnicodeError) as error:
            return self._not_reached(getattr(error, "strerror", None) or error)
        except OSError:  # such as a time-out: the server may just be busy
            return None
        return None

    def _no_key(self) -> str:
        return (
            f"expected a key in ${self._key_name}, got none; set it, or give base_url for a server "
            "of your own"
        )

    def _not_reached(self, why: object) -> str:
        return f"{self._where}: cannot be reached ({why}); start the server, or correct base_url"

    async def check(self) -> None:
        client = self._connected()
        # Before using the client, whose own error for an unresolvable name is unclear.
        if problem := await asyncio.to_thread(self.unreached):
            raise JudgeSetupError(problem)
        try:
            # In addition to the client's time-out, which restarts with every byte received.
            async with asyncio.timeout(self.timeout):
                models = await client.models.list(timeout=self.timeout)
            served = {model.id for model in models.data}
        except Exception as error:
            failure = self._failure(error)
            if isinstance(failure, Reply):
                return
            if isinstance(failure, JudgeSetupError) and failure.status in (404, 405):
                return  # the server lists no models; the first request will tell
            if failure.cause is Cause.PROVIDER and failure.status is None:
                raise JudgeSetupError(self._not_reached(failure)) from None
            if isinstance(failure, JudgeSetupError):
                raise failure from None
            return  # the server responds, albeit with an error that retries may overcome
        if served and self.model not in served:
            known = ", ".join(
                one_line(self._hide(str(name)[:200]), 80) for name in sorted(served)[:5]
            )
            raise JudgeSetupError(
                f"{self._where}: expected model to be one that it serves ({known}), "
                f"got {self.model!r}"
            )

    def _connected(self) -> "openai.AsyncOpenAI":
        """The client of the running event loop. Connections must not cross forks or event loops."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._client[0] is not loop:
            if self._client is not None and self._made_in != os.getpid():
                # Its destructor would close connections that the parent still uses.
                _inherited.append(self._client)
            try:
                import openai
            except ImportError:
                raise JudgeSetupError(
                    "backend 'openai' needs the openai package: pip install 'grpo-guard[judge]'"
                ) from None
            key = self._key()
            if not key and self.base_url is None:
                raise JudgeSetupError(self._no_key())
            client = openai.AsyncOpenAI(
                api_key=key or "none",
                base_url=self.base_url,
                max_retries=0,
                timeout=self.timeout,
                default_headers={"Accept-Encoding": "identity"},
                http_client=openai.DefaultAsyncHttpxClient(
                    follow_redirects=False, event_hooks={"response": [_bounded]}
                ),
            )
            self._client, self._made_in = (loop, client), os.getpid()
            _secret_filter.secrets |= self._secrets()
            for name in ("httpx", "httpx2"):
                logging.getLogger(name).addFilter(_secret_filter)
        return self._client[1]

    @property
    def _where(self) -> str:
        return "the hosted API" if self.base_url is None else host_of(self.base_url)

    def _key(self) -> str:
        """Return the key, or "" for none; raises JudgeSetupError if it cannot be sent."""
        try:
            return self._api_key or usable_key(os.environ.get(self._api_key_env) or "")
        except ValueError as error:
            raise JudgeSetupError(f"backend 'openai': ${self._key_name}: {error}") from None

    @property
    def _key_name(self) -> str:
        """The variable's name for use in messages; hidden if a user put the key itself there."""
        return hidden(self._api_key_env, secrets_in(self._api_key_env))

    def _failure(self, error: Exception) -> BackendError | Reply:
        """Convert the client's exception, leaving out the secrets that some messages quote."""
        return failure_of(error, hide=self._hide, where=f"{self._where}, model {self.model!r}")

    def _hide(self, text: str) -> str:
        return hidden(text, self._secrets())

    def _secrets(self) -> set[str]:
        keys = [self._api_key, os.environ.get(self._api_key_env)]
        if self._client is not None:
            keys.append(self._client[1].api_key)  # still in use even if the environment has changed
        held = {"keys": keys, "base_url": self.base_url, "extra_body": self.extra_body}
        return secrets_in(held)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_client": None}

    def __repr__(self) -> str:
        return f"<OpenAIBackend {self.model} at {self._where}>"


def usable_key(key: str) -> str:
    """Strip and check a key. Keys read from files often end in a line break, which clients reject
    with a message that quotes the whole key; the ValueError raised here does not."""
    if not isinstance(key, str):
        raise ValueError(f"api_key: expected text, got {type(key).__name__}")
    key = key.strip()
    for place, character in enumerate(key):
        if not "!" <= character <= "~":
            raise ValueError(
                "api_key: expected visible ASCII characters without spaces, got another one at "
                f"place {place + 1} of {len(key)}"
            )
    return key


def _address(base_url: str | None) -> str | None:
    """Check ``base_url`` and return it; the message of a ValueError does not contain the address,
    which may hold a password."""
    if base_url is None:
        return None
    try:
        parts = urlsplit(base_url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except (AttributeError, TypeError, ValueError):
        good = False
    if not good or not base_url.isprintable() or " " in base_url:
        raise ValueError("OpenAIBackend.base_url: expected http(s)://HOST[:PORT]/PATH")
    return base_url


async def _bounded(response: Any) -> None:
    """Limit the size of a reply, before its body is read; a BackendError refuses one that is
    compressed unasked, since a few kB can expand to gigabytes."""
    if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise BackendError("the reply is compressed, which was not asked for", retry=False)
    read_on = response.aiter_raw

    async def at_most(chunk_size: int | None = None) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in read_on(chunk_size):
            size += len(chunk)
            if size > LARGEST_REPLY:
                raise BackendError(f"the reply exceeds {LARGEST_REPLY:,} bytes", retry=False)
            yield chunk

    response.aiter_raw = at_most
