"""Convert answers and errors from OpenAI's chat protocol into replies and failure causes."""

import email.utils
import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from grpo_guard.core.quoting import one_line
from grpo_guard.core.verdict import Cause
from grpo_guard.judge.backends.base import Reply
from grpo_guard.judge.errors import (
    BackendError,
    ContextTooLongError,
    JudgeSetupError,
)

# How servers report that the messages are too long, among other reasons for a 400.
_TOO_LONG = (
    "context length", "context_length", "context size", "context window", "maximum context",
    "too long", "too large", "max_model_len", "max_new_tokens", "maximum number of tokens",
    "must have less than", "reduce the length", "longer than the model",
)  # fmt: skip
_LONGEST_WAIT = 3600.0
_MOST_TOKENS = 10**9  # of one answer
_LONGEST_MESSAGE = 5000  # characters of an external message that are examined
_REMEDIES = {
    401: "the key is missing or wrong; set it",
    403: "the key may not use this model; ask for access, or choose another",
    404: "the model or path does not exist; correct model or base_url",
    400: "the server does not accept this request; choose another mode, or look at extra_body",
    405: "the path does not exist; correct base_url",
    422: "the server does not accept this request; choose another mode, or look at extra_body",
}


def reply_of(answer: Any) -> Reply:
    """Convert a chat completion to a reply; raises BackendError if it contains no answer, which is
    the provider's fault."""
    choices = getattr(answer, "choices", None)
    if not choices or getattr(choices[0], "message", None) is None:
        raise BackendError("the provider's answer has no choices")
    choice = choices[0]
    if not isinstance(choice.message.content, str | None):
        # The judged completion can cause malformed text, but not missing text.
        raise BackendError("the provider's answer has no text")
    usage = getattr(answer, "usage", None)
    return Reply(
        text=choice.message.content or "",
        first_token=_first_token(choice),
        finish_reason=choice.finish_reason,
        refusal=bool(getattr(choice.message, "refusal", None)),
        tokens_in=_count(usage, "prompt_tokens"),
        tokens_out=_count(usage, "completion_tokens"),
    )


def _first_token(choice: Any) -> tuple[tuple[str, float], ...] | None:
    content = getattr(getattr(choice, "logprobs", None), "content", None)
    if not content:
        return None
    first = content[0]
    listed = [(c.token, c.logprob) for c in first.top_logprobs or ()]
    if not any(token == first.token for token, _ in listed):
        listed.append((first.token, first.logprob))
    likeliest: dict[str, float] = {}
    for token, logprob in listed:
        # A server that lists one candidate twice must not double its probability. NaN and values
        # above 0 are kept, in any order, so that the reader of the reply can reject them.
        was = likeliest.get(str(token), -math.inf)
        likeliest[str(token)] = was if logprob <= was or math.isnan(was) else float(logprob)
    return tuple(likeliest.items())


def _count(usage: Any, name: str) -> int:
    """Return a token count, or 0 for none or an absurd one, which would make costs overflow."""
    value = getattr(usage, name, None)
    return value if isinstance(value, int) and 0 <= value <= _MOST_TOKENS else 0


def failure_of(error: Exception, *, hide: Callable[[str], str], where: str) -> BackendError | Reply:
    """Convert a client's exception into an error, or a refusal if the content itself was declined.

    ``hide`` removes secrets from a message, and ``where`` names the server and model in it.
    """
    import openai

    # Older clients wrap errors raised while reading a reply.
    for known in (error, error.__cause__):
        if isinstance(known, BackendError):
            return known
    text = _describe(error, hide)
    if isinstance(error, openai.APITimeoutError | TimeoutError):
        return BackendError(f"{where}: no answer in time", cause=Cause.TIMEOUT)
    if isinstance(error, openai.APIConnectionError):
        reason = error.__cause__ or error
        if type(reason).__name__ == "LocalProtocolError":
            # The fault lies in our own input, which the message quotes: a key, an address.
            return JudgeSetupError(
                f"{where}: the request cannot be sent; look for line breaks and other odd "
                "characters in key, base_url and the variables OPENAI_..."
            )
        return BackendError(f"{where}: connection failed: {_describe(reason, hide, 200)}")
    if isinstance(error, openai.APIStatusError):
        return _of_status(error, text, where)
    if isinstance(error, json.JSONDecodeError | openai.APIError | UnicodeDecodeError):
        return BackendError(f"{where}: the answer cannot be read: {text}")
    # A broken reply makes clients raise all kinds of errors; the next reply may be intact.
    return BackendError(f"{where}: {type(error).__name__}: {text}")


def _describe(error: BaseException, hide: Callable[[str], str], most: int = 300) -> str:
    return one_line(hide(str(error)[:_LONGEST_MESSAGE]), most)


def _of_status(error: Any, text: str, where: str) -> BackendError | Reply:
    status = error.status_code
    if 300 <= status < 400:
        return JudgeSetupError(
            f"{where}: HTTP {status}: the server redirects elsewhere, which is not followed; give "
            "the final address as base_url",
            status=status,
        )
    code = str(getattr(error, "code", "") or "")
    if status == 429 and code != "insufficient_quota":
        return BackendError(
            f"{where}: {text}",
            cause=Cause.RATE_LIMITED,
            retry_after=retry_after(error.response.headers),
            status=status,
        )
    if status == 400 and "content_filter" in (code or text):
        return Reply("", finish_reason="content_filter", refusal=True)
    if status == 413 or (status in (400, 422) and any(w in text.lower() for w in _TOO_LONG)):
        return ContextTooLongError(f"{where}: {text}")
    if status in (408, 409, 425) or status >= 500:
        wait = retry_after(error.response.headers)
        return BackendError(f"{where}: {text}", retry_after=wait, status=status)
    remedy = _REMEDIES.get(status, "the server refuses the request; correct it")
    if status == 429:
        remedy = "the account has no credit left; add some"
    return JudgeSetupError(f"{where}: HTTP {status}: {remedy} ({text})", status=status)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Parse the number of seconds to wait from either form of the Retry-After header, if it can be
    read. Negative and absurd values are clipped, because a deadline applies anyway."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        moment = email.utils.parsedate_tz(value)
        if moment is None:
            return None
        try:
            seconds = email.utils.mktime_tz(moment) - time.time()
        except (ValueError, OverflowError):  # a year outside the calendar
            return None
    if math.isnan(seconds):
        return None
    return min(max(seconds, 0.0), _LONGEST_WAIT)
