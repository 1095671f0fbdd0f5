"""`Case`: one completion on its way through a judge."""

from dataclasses import dataclass, field, replace

from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Cause, Usage
from grpo_guard.judge.asking import Answer
from grpo_guard.judge.backends.base import ChatMessage, Request
from grpo_guard.judge.cache import cache_key
from grpo_guard.judge.errors import BackendError, ContextTooLongError, DeclinedError
from grpo_guard.judge.limits import Limits
from grpo_guard.judge.modes import Ruling, VerdictMode
from grpo_guard.judge.prompt import Window, messages, neutralised, prompt_text
from grpo_guard.judge.rubric import Rubric

_LEAST_SHOWN = 500  # characters of an excerpt; a shorter one is worthless
_LEAST_BYTES = 1000  # shorter text fits into any context large enough for the rubric
# Sent in place of the judge's own answer, which may quote the completion: the model would trust the
# quotation as its own words.
_NO_ANSWER = "(An answer that was not of the form asked for.)"


@dataclass(frozen=True, slots=True)
class Brief:
    """Settings shared by all completions of one judge; see `messages`."""

    rubric: Rubric
    mode: VerdictMode
    window: Window
    datamark: bool
    model: str  # identifies the model in the cache: `Backend.identity`

    def messages(
        self, completion: Completion, secret: bytes, window: Window
    ) -> tuple[ChatMessage, ...]:
        return messages(
            self.rubric,
            self.mode.instructions,
            completion,
            secret=secret,
            window=window,
            datamark=self.datamark,
        )

    def key(self, completion: Completion) -> str:
        """The cache key, built from everything that a ruling depends on except the secret. The
        secret only names the fence and picks the excerpt, and differs between runs: if the key
        included it, no earlier ruling would ever be found."""
        mode = self.mode
        return cache_key(
            self.model,
            (self.rubric.digest, type(mode).__qualname__, mode.name, mode.instructions),
            (mode.max_tokens, mode.top_logprobs, repr(sorted(vars(mode).items()))),
            (self.window.shown, self.datamark),
            (prompt_text(completion), completion.reference, completion.text),
        )


@dataclass(slots=True)
class Case:
    """A completion being judged: the questions it took, and the outcome."""

    completion: Completion
    brief: Brief
    secret: bytes  # key of the fence's id
    ruling: Ruling | None = None
    failure: BackendError | None = None
    usage: Usage = field(default_factory=Usage)
    _window: Window = field(init=False)
    _reminder_messages: tuple[ChatMessage, ...] = ()

    def __post_init__(self) -> None:
        self._window = self.brief.window

    @property
    def open(self) -> bool:
        """Whether the case has neither a ruling nor a failure yet."""
        return self.ruling is None and self.failure is None

    def request(self) -> Request:
        """Build the next request."""
        mode = self.brief.mode
        asked = self.brief.messages(self.completion, self.secret, self._window)
        return Request(
            (*asked, *self._reminder_messages),
            max_tokens=mode.max_tokens,
            top_logprobs=mode.top_logprobs,
            json_schema=mode.json_schema,
        )

    def take(self, answer: Answer, limits: Limits) -> bool:
        """Process an answer; return whether it closes the case, which stays open if another form of
        the question may help and attempts are left."""
        self._add_usage(answer, limits)
        reply, left = answer.reply, self.usage.requests < limits.attempts
        if isinstance(reply, ContextTooLongError):
            return self._shorten(reply, left)
        if isinstance(reply, DeclinedError):
            message = "the provider declined this completion, and no other"
            self.ruling = Ruling.none(Cause.REFUSED, "refused", message)
            return True
        if isinstance(reply, BackendError):
            self.failure = reply
            return True
        if reply.finish_reason == "overlong":
            return self._shorten(ContextTooLongError("longer than the model's context"), left)
        if reply.refusal or reply.finish_reason == "content_filter":
            self.ruling = Ruling.none(Cause.REFUSED, "refused", "the judge declined to answer")
            return True
        try:
            self.ruling = self.brief.mode.read(reply, neutralised(self.completion.text))
        except BackendError as error:  # the backend lacks something that the mode needs
            self.failure = error
            return True
        except Exception as error:  # from a user's mode: one text must not fail the batch
            reason = f"mode {self.brief.mode.name}: {type(error).__name__}"
            self.failure = BackendError(reason, cause=Cause.FAULT, retry=False)
            return True
        reminder = self.brief.mode.reminder
        asked_again = bool(self._reminder_messages)
        if self.ruling.cause is Cause.MALFORMED and reminder and left and not asked_again:
            self._reminder_messages = (
                {"role": "assistant", "content": _NO_ANSWER},
                {"role": "user", "content": reminder},
            )
            return False
        return True

    def _shorten(self, error: ContextTooLongError, left: bool) -> bool:
        """Show less of the completion next time; close the case if that is not possible."""
        shown = min(self._window.shown, len(self.completion.text)) // 2
        if left and shown >= _LEAST_SHOWN:
            self._window = replace(self._window, shown=shown)
            return False
        # If only the attempts ran out, a shorter excerpt might still have fitted: not overlong.
        if self._fills_the_context(whole=shown >= _LEAST_SHOWN):
            message = f"does not fit into the judge's context: {error}"
            self.ruling = Ruling.none(Cause.OVERLONG, "overlong", message)
        else:
            self.failure = error
        return True

    def _fills_the_context(self, *, whole: bool) -> bool:
        """Whether the context is filled by the completion (``whole`` or as last shown) rather than
        by the prompt, which the completion's author did not choose."""
        text = self.completion.text if whole else self._window.cut(self.completion.text)[0]
        shown = len(text.encode(errors="replace"))
        other_text = prompt_text(self.completion) + (self.completion.reference or "")
        return shown >= max(len(other_text.encode(errors="replace")), _LEAST_BYTES)

    def _add_usage(self, answer: Answer, limits: Limits) -> None:
        reply = answer.reply
        tokens_in, tokens_out = self.usage.tokens_in, self.usage.tokens_out
        if not isinstance(reply, BackendError):
            tokens_in, tokens_out = tokens_in + reply.tokens_in, tokens_out + reply.tokens_out
        self.usage = Usage(
            requests=self.usage.requests + answer.requests,
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            usd=limits.usd(tokens_in, tokens_out),
            latency=self.usage.latency + answer.seconds,
        )

    @property
    def left_out(self) -> int:
        """Number of characters that the judge did not see."""
        return self._window.cut(self.completion.text)[1]
