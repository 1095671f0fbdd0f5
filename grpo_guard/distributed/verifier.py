"""`RayVerifier`: a verifier whose work is done by actors, with the verdicts of one process."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from grpo_guard.completion import Completion
from grpo_guard.distributed.balance import balanced, weight
from grpo_guard.distributed.pool import joined
from grpo_guard.distributed.reading import Readings
from grpo_guard.distributed.ticket import Lost, Ticket
from grpo_guard.distributed.worker import Described, Make, Reading, Worker, readers
from grpo_guard.ensemble import inner_verifiers
from grpo_guard.p_values import smallest_p
from grpo_guard.supervise import supervised
from grpo_guard.verdict import Verdict, abstain
from grpo_guard.verifier import AllOf, CompletionVerifier, Composed


class RayVerifier(Composed):
    """Shows the parts of a batch to verifiers in Ray actors, and puts their answers in order.

    What judges each completion alone (`worker.compares` is None) runs in the actors as
    a whole. Of anything else, what its rules read in each text does, which is nearly all of the
    work of `presets.different_weights`; what compares completions or remembers nodes (counts, of
    what `recurrence` finds too, length, standing) stays in this process and sees whole batches in
    their order, as it does without Ray. So the verdicts are the same with any number of workers.

    A worker that dies, raises, answers too little or does not answer in time is replaced, and its
    part tried elsewhere in halves. A completion that costs three workers, each alone on a new one,
    **abstains**: its author can cause that, but so can a machine that fails, and nobody can tell
    them apart. So `author_can_abstain` says it, and ``Policy(on_abstain="pass")`` is refused.

    Ray moves pickles, between machines that trust each other.

    Args:
        make: Makes the verifier, in each actor; loads the model there. It is sent by cloudpickle.
        workers: How many actors; None: as many as the cluster has room for now.
        resources: Of one actor, by Ray's names, fractions too: ``{"GPU": 0.5}`` puts two scorers on
            one GPU. One ``CPU`` unless it says otherwise.
        timeout: Seconds that one part of a batch may take, of at most 250,000 tokens.
        decide: Makes what compares and remembers, in this process, where that is needed: the same
            verifier, with its memory. None = ``make``.
        alone: True: you vouch that a verdict of your verifier depends on its own completion alone.
            False: only its rules' reading runs in the actors. None = as it says itself.
        address: Of a running cluster; None = ``RAY_ADDRESS``, the one that this process has joined,
            or a Ray of our own on this machine, which ends with `close`.

    Raises:
        RayMissingError: Ray is not installed.
        ClusterError: the cluster cannot be reached, or no worker starts; with the reason.
        ValueError: a number is out of range, or nothing in the verifier can run in actors.

    Example:
        >>> guard = Guard(RayVerifier(ArithmeticVerifier, workers=4))
    """

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
        """`close` ends the actors, and with the last of them Ray, where it was begun here."""
        try:
            self._described: Described = self._pool.described()
            said = self._described
            if said.compares is None:
                super().__init__()
            else:
                super().__init__((decide or make)())
                self._require_readers()
        except BaseException:
            self.close()
            raise
        own = self.members[0] if self.members else said
        self.name, self.needs = own.name, own.needs
        self.smallest_p = smallest_p(self.members[0]) if self.members else said.smallest_p
        self.judges_alone = said.compares is None
        self._readings = Readings([rule for one in self.members for rule in readers(one)])
        self._ahead: dict[int, tuple[Ticket, int]] = {}
        self._lock = threading.Lock()

    @classmethod
    def around(cls, verifier: CompletionVerifier, **options: Any) -> RayVerifier:
        """A verifier that is here already: copies of its rules that read each completion alone go
        to the actors, all else stays.

        Args:
            verifier: With its memory.
            **options: Of `RayVerifier`.

        Raises:
            ValueError: there are none in it; and as `RayVerifier`.
        """
        rules = [rule.reader() for rule in readers(verifier)]
        nested = any(isinstance(one, RayVerifier) for one in inner_verifiers(verifier))
        if not rules or nested:
            got = "ray: inside it already" if nested else verifier.name
            raise ValueError(
                f"--engine ray: expected rules that read each text alone, got {got}; a model or a "
                "judge runs on Ray as `ray: {type: NAME, ...}` in the guard file, without --engine"
            )
        return cls(partial(AllOf, *rules), decide=lambda: verifier, alone=False, **options)

    @property
    def workers(self) -> int:
        """How many there are."""
        return self._pool.workers

    @property
    def compares_ids(self) -> bool:
        return super().compares_ids if self.members else self._described.compares_ids

    @property
    def author_can_abstain(self) -> str | None:
        return (
            f"a text on which every worker dies or hangs makes {self.name} abstain, also where "
            "the same verifier without Ray would not"
        )

    @property
    def steps_aside(self) -> bool:
        return self._described.steps_aside if not self.members else super().steps_aside

    @property
    def compares(self) -> str | None:
        return self._described.compares

    def begin(self, batch: Sequence[Completion]) -> None:
        """Send a batch out before its verdicts are wanted; `verify` of it waits for what is left.

        Args:
            batch: The very objects that `verify` is going to be called with. `forget` them behind.
        """
        # Rules take about a millisecond for a text, and a part some for the way there and back: one
        # worker reads a batch whole, others the batches beside it. A model takes long enough that
        # nobody should wait for the last batch on one worker.
        ticket = self._sent(batch, 1 if self.members else self.workers)
        with self._lock:
            self._ahead.update((id(c), (ticket, i)) for i, c in enumerate(ticket.batch))

    def forget(self, batch: Sequence[Completion]) -> None:
        """Drop what `begin` was told of."""
        with self._lock:
            for completion in batch:
                self._ahead.pop(id(completion), None)

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        """One verdict per completion, in order, whatever becomes of the workers."""
        found = self._found(batch)
        if not self.members:
            return [reading[0] for reading in found]
        with self._readings.known(batch, found):
            return supervised(self.members[0], batch)

    def _found(self, batch: Sequence[Completion]) -> list[Reading]:
        with self._lock:
            ahead = [self._ahead.get(id(completion)) for completion in batch]
        new = [i for i, at in enumerate(ahead) if at is None]
        ticket = self._sent([batch[i] for i in new], self.workers)
        for n, i in enumerate(new):
            ahead[i] = ticket, n
        return [self._said(at[0].answer(at[1])) for at in ahead if at is not None]

    def _sent(self, batch: Sequence[Completion], workers: int) -> Ticket:
        ticket = Ticket(batch, [completion.node for completion in batch])
        self._pool.submit(ticket, balanced([weight(c) for c in batch], workers))
        return ticket

    def _said(self, answer: Reading | Lost) -> Reading:
        if not isinstance(answer, Lost):
            return answer
        names = self._described.names
        return tuple(abstain(name, answer.cause, answer.message) for name in names)

    def _require_readers(self) -> None:
        here = tuple(rule.name for one in self.members for rule in readers(one))
        said = self._described
        if not here or here != said.names:
            why = said.compares if here == said.names else f"make and decide differ: {said.names}"
            raise ValueError(
                f"RayVerifier.make: expected rules that read each text alone, or a verifier that "
                f"compares nothing, got {said.name}: {why}; leave it in this process, beside "
                "the RayVerifier, or say alone=True where you know better"
            )
