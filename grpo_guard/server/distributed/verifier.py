"""`RayVerifier`: runs a verifier's work in actors, with the same verdicts as in one process."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from grpo_guard.core.completion import Completion
from grpo_guard.core.ensemble import inner_verifiers
from grpo_guard.core.forks import Lock
from grpo_guard.core.p_values import smallest_p
from grpo_guard.core.scope import Scope
from grpo_guard.core.supervise import running, supervised
from grpo_guard.core.verdict import Verdict, abstain
from grpo_guard.core.verifier import AllOf, CompletionVerifier, Composed
from grpo_guard.guard.workers.ticket import Lost, Ticket, balanced, weight
from grpo_guard.server.distributed.actors import joined
from grpo_guard.server.distributed.worker import (
    Described,
    Make,
    Reading,
    Readings,
    Worker,
    readers,
)


class RayVerifier(Composed):
    """Sends the parts of a batch to verifiers in Ray actors, and puts their answers in order.

    A verifier that judges each completion alone (scope ``"completion"``) runs in the actors as a
    whole. For any other verifier, only its rules' reading of each text runs there; whatever
    compares completions or keeps per-node state stays in this process and sees whole batches in
    order, as it does without Ray. So the verdicts do not depend on the number of workers.

    A worker that dies, raises an error, or returns too few answers or none in time is replaced, and
    its part retried elsewhere in halves. A completion that costs three workers, each time alone on
    a new worker, gets an **abstention**: its author can cause that, but so can a failing machine.
    So ``Policy(on_abstain="pass")`` is refused. Ray exchanges pickles: all machines must trust each
    other.

    Args:
        make: Function that creates the verifier and loads its model, in each actor. It is sent
            using cloudpickle.
        workers: Number of actors; None for as many as the cluster has room for now.
        resources: Resources per actor, by Ray resource name; fractions are allowed:
            ``{"GPU": 0.5}`` puts two scorers on one GPU. Defaults to one ``CPU``.
        timeout: Time limit for one part, which has at most 250,000 tokens, in seconds.
        decide: Function that creates, in this process, the part that compares and remembers, if one
            is needed: the same verifier, with its memory. If None, ``make`` is used.
        alone: Whether the verifier's verdict depends only on the completion itself. True is your
            guarantee that it does; with False, only the reading of its rules runs in the actors;
            None asks the verifier.
        address: Address of a running cluster. If None, the cluster is the one in ``RAY_ADDRESS``,
            the one this process has joined, or a new one on this machine, which `close` shuts down.

    Raises:
        RayMissingError: Ray is not installed.
        ClusterError: the cluster cannot be reached, or no worker starts; the message says why.
        ValueError: a number is out of range, or nothing in the verifier can run in actors.

    Examples:
        >>> guard = Guard(RayVerifier(ArithmeticVerifier, workers=4))
    """

    is_elsewhere = True
    """Whether the verifier's own workers read for its rules, and the guard's workers do not."""

    def __init__(
        self,
        make: Make,
        *,
        workers: int | None = None,
        resources: Mapping[str, float] | None = None,
        timeout: float = 600.0,
        decide: Make | None = None,
        alone: bool | None = None,
        address: str | None = None,
    ) -> None:
        self._pool, self.close = joined(
            Worker, (make, alone), workers=workers, resources=resources, timeout=timeout,
            address=address, owner=self,
        )  # fmt: skip
        """`close` ends the actors and, with the last of them, a Ray cluster started here."""
        try:
            self._described: Described = self._pool.described()
            described = self._described
            if described.needs_whole is None:
                super().__init__()
            else:
                super().__init__((decide or make)())
                self._require_readers()
        except BaseException:
            self.close()
            raise
        own = self.members[0] if self.members else described
        self.name, self.needs = own.name, own.needs
        self.smallest_p = smallest_p(self.members[0]) if self.members else described.smallest_p
        self._rules = [rule for one in self.members for rule in readers(one)]
        self._ahead: dict[int, tuple[Ticket, int]] = {}
        self._lock = Lock()

    @classmethod
    def around(cls, verifier: CompletionVerifier, **options: Any) -> "RayVerifier":
        """Wrap a verifier, with its memory: copies of its rules that read each completion alone go
        to the actors, and everything else stays in this process. Raises ValueError if the verifier
        has no rules of this kind; options and other errors are those of `RayVerifier`."""
        rules = [rule.reader() for rule in readers(verifier)]
        nested = any(isinstance(one, RayVerifier) for one in inner_verifiers(verifier))
        if not rules or nested:
            got = "ray: inside it" if nested else verifier.name
            raise ValueError(
                f"--engine ray: expected rules that read each text alone, got {got}; a model or a "
                "judge runs on Ray as `ray: {type: NAME, ...}` in the guard file, without --engine"
            )
        return cls(partial(AllOf, *rules), decide=lambda: verifier, alone=False, **options)

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self._pool.workers

    @property
    def compares_ids(self) -> bool:
        return super().compares_ids if self.members else self._described.compares_ids

    @property
    def author_can_abstain(self) -> str | None:
        return (
            f"a text on which every worker dies or hangs makes {self.name} abstain, even if "
            "the same verifier without Ray would not"
        )

    @property
    def steps_aside(self) -> bool:
        return self._described.steps_aside if not self.members else super().steps_aside

    @property
    def scope(self) -> Scope:  # type: ignore[override]
        return super().scope if self.members else "completion"

    def begin(self, batch: Sequence[Completion]) -> None:
        """Send out a batch before its verdicts are needed, so that `verify` only waits for what is
        still missing. Pass the same objects to `verify`, and call `forget` afterwards."""
        # Rules take about a millisecond per text, and sending a part takes time too, so one worker
        # reads a whole batch while others read the next. A model takes so long that the last batch
        # should be spread over all workers.
        ticket = self._sent(batch, 1 if self.members else self.workers)
        with self._lock:
            self._ahead.update((id(c), (ticket, i)) for i, c in enumerate(ticket.batch))

    def forget(self, batch: Sequence[Completion]) -> None:
        """Drop the batch that was passed to `begin`."""
        with self._lock:
            for completion in batch:
                self._ahead.pop(id(completion), None)

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        """Return one verdict per completion, in order, even if workers fail."""
        found = self._found(batch)
        if not self.members:
            return [reading[0] for reading in found]
        with running(Readings(self._rules, batch, found)):
            return supervised(self.members[0], batch)

    def _found(self, batch: Sequence[Completion]) -> list[Reading]:
        with self._lock:
            ahead = [self._ahead.get(id(completion)) for completion in batch]
        new = [i for i, at in enumerate(ahead) if at is None]
        ticket = self._sent([batch[i] for i in new], self.workers)
        for n, i in enumerate(new):
            ahead[i] = ticket, n
        return [self._reading_of(at[0].answer(at[1])) for at in ahead if at is not None]

    def _sent(self, batch: Sequence[Completion], workers: int) -> Ticket:
        ticket = Ticket(batch, [completion.node for completion in batch])
        self._pool.submit(ticket, balanced([weight(c) for c in batch], workers))
        return ticket

    def _reading_of(self, answer: Reading | Lost) -> Reading:
        if not isinstance(answer, Lost):
            return answer
        names = self._described.names
        return tuple(abstain(name, answer.cause, answer.message) for name in names)

    def _require_readers(self) -> None:
        here = tuple(rule.name for one in self.members for rule in readers(one))
        described = self._described
        if not here or here != described.names:
            differ = f"make and decide differ: {described.names}"
            why = described.needs_whole if here == described.names else differ
            raise ValueError(
                f"RayVerifier.make: expected rules that read each text alone, or a verifier that "
                f"compares nothing, got {described.name}: {why}; leave it in this process, next "
                "to the RayVerifier, or pass alone=True if you know better"
            )
