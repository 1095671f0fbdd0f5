"""Form checks that need no scores, for completions that are not spot-checked."""

from collections.abc import Sequence
from typing import Any, Final

from grpo_guard.core.completion import Completion
from grpo_guard.core.sampling_mask import claimed_mask
from grpo_guard.core.scope import Scope
from grpo_guard.core.verdict import Cause, Finding, Verdict, abstain, accept, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.logprob.encoded import EncodeError, encode_batch
from grpo_guard.logprob.replay.slots import Place
from grpo_guard.logprob.replay.verifier import SeedReplayVerifier
from grpo_guard.logprob.verifier import LogProbVerifier

_MASK: Final = (
    "sampling_mask: only scored completions can be checked against one, and a share of them is "
    "scored; leave it out, or score all of them"
)


class FormVerifier(CompletionVerifier):
    """Rejects what a log-prob verifier would reject before it scores anything.

    Under `SpotCheck`, most completions never reach the log-prob verifier. Without this check, ids
    that contradict the text, padding after the end, and slots that belong to another node would
    pass in every completion that is not drawn, even though catching them costs next to nothing. The
    check also rejects a claimed sampling mask, and a second completion for the same slot in one
    batch. Names must therefore be authenticated, as for `SpotCheck`: otherwise a stranger could
    fill a node's slot first.
    """

    name = "form"
    scope: Scope = "batch"  # slots are compared within the batch

    def __init__(self, of: LogProbVerifier) -> None:
        self.of = of

    @property
    def compares_ids(self) -> bool:
        return self.of.compares_ids

    @property
    def own_tokenizer(self) -> Any:
        return self.of.own_tokenizer

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        verdicts = encode_batch(self.name, self.of.encode, batch)[1]
        filled = set[Place]()
        for i, completion in enumerate(batch):
            if i not in verdicts:
                verdicts[i] = self._verdict(completion, filled)
        return [verdicts[i] for i in range(len(batch))]

    def _verdict(self, completion: Completion, filled: set[Place]) -> Verdict:
        """Return the verdict on a completion that can be scored; adds its slot to ``filled``."""
        if claimed_mask(completion) is not None:
            return reject(self.name, Cause.MALFORMED, _MASK)
        if not isinstance(self.of, SeedReplayVerifier):
            return accept(self.name)
        try:
            place = self.of.slots.place(completion)
        except EncodeError as error:  # the round ended while the completion was being verified
            return abstain(self.name, Cause.UNSUPPORTED, str(error))
        if place in filled:
            finding = Finding("slot_filled", f"a second completion for slot {completion.slot}")
            return reject(self.name, Cause.MALFORMED, findings=(finding,))
        filled.add(place)
        return accept(self.name)
