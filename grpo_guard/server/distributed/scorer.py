"""`RayScorer`: a log-prob verifier's scores from actors, one scorer in each."""

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.guard.workers.ticket import Lost, Ticket, balanced
from grpo_guard.logprob.encoded import Encoded
from grpo_guard.logprob.scorers.base import OutOfMemoryError, Scorer
from grpo_guard.logprob.stats import TokenStats
from grpo_guard.server.distributed.actors import joined

MakeScorer: TypeAlias = Callable[[], Scorer]


@dataclass(frozen=True, slots=True)
class _Described:
    vocab_size: int
    window: int | None
    identity: dict[str, str]


class ScoringWorker:
    """A worker whose scorer is created in its actor."""

    def __init__(self, make: MakeScorer) -> None:
        self._make = make

    def start(self) -> _Described:
        """Create the scorer and describe it."""
        self._scorer = self._make()
        return _Described(
            self._scorer.vocab_size, self._scorer.window, dict(self._scorer.identity())
        )

    def read(
        self, part: Sequence[Encoded], spec: SamplingSpec, mass_margin: float
    ) -> list[TokenStats | OutOfMemoryError]:
        """Return statistics for each sequence, or an error if the sequence does not fit into memory
        even alone."""
        try:
            return list(self._scorer.score(part, spec, mass_margin=mass_margin))
        except OutOfMemoryError as error:
            if len(part) == 1:
                return [error]
        middle = len(part) // 2
        halves = part[:middle], part[middle:]
        return [answer for half in halves for answer in self.read(half, spec, mass_margin)]


class RayScorer:
    """Computes scores on several GPUs for a log-prob verifier in this process.

    Everything except the scores stays in this process and sees whole batches: evidence about nodes,
    the key for drawing p-values, phrases. Completions of the same prompt go to the same worker as
    far as the balance allows, because a scorer runs their prompt only once. Workers are replaced
    like those of `RayVerifier`. A sequence that no worker could score is treated as too large, and
    its verdict abstains.

    A `RayScorer` replays no seeds, and keeps the weights that ``make`` loads: for a policy in
    training, create a new scorer when the policy's weights change.

    Args:
        make: Function that creates a scorer and loads its model, in each actor.
        workers, resources, timeout, address: As for `RayVerifier`.

    Raises:
        RayMissingError, ClusterError, ValueError: as for `RayVerifier`.

    Examples:
        >>> scorer = RayScorer(load, workers=8, resources={"GPU": 1})
        >>> guard = presets.same_weights(None, tokenizer, sampling, scorer=scorer)
    """

    def __init__(
        self,
        make: MakeScorer,
        *,
        workers: int | None = None,
        resources: Mapping[str, float] | None = None,
        timeout: float = 600.0,
        address: str | None = None,
    ) -> None:
        self._pool, self.close = joined(
            ScoringWorker, (make,), workers=workers, resources=resources, timeout=timeout,
            address=address, owner=self,
        )  # fmt: skip
        """`close` ends the actors and, with the last of them, a Ray cluster started here."""
        try:
            self._described: _Described = self._pool.described()
        except BaseException:
            self.close()
            raise
        self._local = threading.local()

    @property
    def vocab_size(self) -> int:
        """Vocabulary size of the workers' scorers."""
        return self._described.vocab_size

    @property
    def window(self) -> int | None:
        """Context window of the workers' scorers, in tokens; None if it is unknown."""
        return self._described.window

    def identity(self) -> dict[str, str]:
        """Return the identity of the workers' scorers; see `Scorer.identity`."""
        return self._described.identity

    def score(
        self, sequences: Sequence[Encoded], spec: SamplingSpec, *, mass_margin: float = 0.0
    ) -> list[TokenStats]:
        """Score sequences on the workers; see `Scorer.score`. Raises OutOfMemoryError if a sequence
        does not fit, or no worker could score it; the halves that a verifier then asks for are
        answered from memory."""
        known: dict[int, tuple[Encoded, TokenStats | OutOfMemoryError]]
        known = getattr(self._local, "known", {})
        if not all(id(one) in known for one in sequences):
            answers = self._ask_workers(sequences, spec, mass_margin)
            known = {id(one): (one, each) for one, each in zip(sequences, answers, strict=True)}
        found = [known[id(one)][1] for one in sequences]
        stats = [each for each in found if not isinstance(each, OutOfMemoryError)]
        if len(stats) == len(found) == len(known):
            known = {}
        self._local.known = known
        for each in found:
            if isinstance(each, OutOfMemoryError):
                raise each
        return stats

    def _ask_workers(
        self, sequences: Sequence[Encoded], spec: SamplingSpec, mass_margin: float
    ) -> list[TokenStats | OutOfMemoryError]:
        ticket = Ticket(sequences, [one.author for one in sequences], (spec, mass_margin))
        self._pool.submit(ticket, _parts(sequences, self._pool.workers))
        answers = [ticket.answer(i) for i in range(len(sequences))]
        return [OutOfMemoryError(a.message) if isinstance(a, Lost) else a for a in answers]


def _parts(sequences: Sequence[Encoded], workers: int) -> list[list[int]]:
    """Split the indices of sequences into parts with roughly equal numbers of tokens, keeping
    sequences of one prompt together unless they exceed a worker's share."""
    sizes = [len(one.prompt_ids) + len(one.completion_ids) for one in sequences]
    share = max(1, sum(sizes) // workers)
    units: list[list[int]] = []
    of_prompt: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for place, one in enumerate(sequences):
        of_prompt[one.prompt_ids].append(place)
    for places in of_prompt.values():
        unit: list[int] = []
        for place in places:
            if unit and sum(sizes[i] for i in unit) + sizes[place] > share:
                units.append(unit)
                unit = []
            unit.append(place)
        units.append(unit)
    parts = balanced([sum(sizes[i] for i in unit) for unit in units], workers)
    return [sorted(place for i in part for place in units[i]) for part in parts]
