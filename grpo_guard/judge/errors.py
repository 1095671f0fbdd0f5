"""What can go wrong between us and the model, each kind with its cause."""

from __future__ import annotations

from grpo_guard.verdict import Cause


def one_line(text: str, most: int = 300) -> str:
    """A message from outside without line breaks and control characters: a server may quote a
    completion in it, which must not write lines of its own into logs."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:10_000]).split())[:most]


class BackendError(Exception):
    """A question got no answer, and the author of the completion is not to blame.

    Attributes:
        cause: What the abstention is called.
        retry: Whether asking again may help.
        retry_after: Seconds that the provider asks us to wait, None where it says nothing.
        status: HTTP status, None where there was none.
    """

    def __init__(
        self,
        message: str,
        *,
        cause: Cause = Cause.PROVIDER,
        retry: bool = True,
        retry_after: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.retry = retry
        self.retry_after = retry_after
        self.status = status


class JudgeSetupError(BackendError):
    """The judge cannot work as it is set up: a wrong key, model or address. Says the remedy.

    It befalls every completion alike, so that nobody should halve a batch to find the culprit.
    """

    engine_wide = True

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message, retry=False, status=status)


class ContextTooLongError(BackendError):
    """The messages do not fit into the model's context; fewer characters may."""

    def __init__(self, message: str) -> None:
        super().__init__(message, cause=Cause.UNSUPPORTED, retry=False)


class DeclinedError(BackendError):
    """The provider refuses this request and takes others of the same form: its content is why."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message, retry=False, status=status)


def may_be_one_of_many(error: BackendError) -> bool:
    """Whether fewer at once may do better."""
    causes = (Cause.FAULT, Cause.PROVIDER, Cause.OUT_OF_MEMORY)
    return error.cause in causes and not isinstance(error, JudgeSetupError)


def as_backend_error(error: BaseException, seconds: float) -> BackendError:
    """Any failure of a backend, as one that has a cause.

    All exceptions are caught, since clients raise many: one that is reused across loops raises a
    bare RuntimeError.
    """
    if isinstance(error, BackendError):
        return error
    if isinstance(error, TimeoutError):
        return BackendError(f"no answer within {seconds:.3g} s", cause=Cause.TIMEOUT)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return BackendError("out of memory", cause=Cause.OUT_OF_MEMORY, retry=False)
    if isinstance(error, ImportError):
        return JudgeSetupError(f"{type(error).__name__}: {one_line(str(error))}")
    return BackendError(
        f"{type(error).__name__}: {one_line(str(error))}", retry=False, cause=Cause.FAULT
    )
