"""Errors between the judge and its model, each carrying the cause of the abstention."""

from grpo_guard.core.quoting import one_line
from grpo_guard.core.verdict import Cause


class BackendError(Exception):
    """A question got no answer, and the author of the completion is not to blame."""

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
        self.cause = cause  # of the abstention
        self.retry = retry  # whether asking again may help
        self.retry_after = retry_after  # seconds that the provider asks us to wait, if it does
        self.status = status  # HTTP status; None if there was no response


class JudgeSetupError(BackendError):
    """The judge cannot work as configured: a wrong key, model or address. The message states the
    remedy."""

    engine_wide = True  # splitting a batch to find a culprit is pointless

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message, retry=False, status=status)


class ContextTooLongError(BackendError):
    """The messages do not fit into the model's context; shorter messages may."""

    def __init__(self, message: str) -> None:
        super().__init__(message, cause=Cause.UNSUPPORTED, retry=False)


class DeclinedError(BackendError):
    """The provider refuses this request because of its content: it accepts others of this form."""


def may_be_one_of_many(error: BackendError) -> bool:
    """Whether a smaller batch may succeed where a batch failed with this error."""
    causes = (Cause.FAULT, Cause.PROVIDER, Cause.OUT_OF_MEMORY)
    return error.cause in causes and not isinstance(error, JudgeSetupError)


def as_backend_error(error: BaseException, seconds: float) -> BackendError:
    """Convert any failure of a backend into an error with a cause: clients raise many kinds, such
    as a bare RuntimeError if they are reused across event loops."""
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
