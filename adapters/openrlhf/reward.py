"""OpenRLHF: the ``reward_func`` of a Python reward file (``--reward.remote_url FILE.py``).

OpenRLHF calls ``reward_func([query], [prompt], [label])`` in threads, one completion at a time, and
expects ``{"rewards", "scores", "extra_logs"}``. It swallows exceptions and fails obscurely later, a
NaN reward spoils its whole group, and ``extra_logs`` must have the same keys for every sample. So
the guarded function does not raise when the guard fails, returns only finite numbers, and always
logs ``guard_accept``, ``guard_reject`` and ``guard_abstain`` (0 or 1; a list if there are several
samples). Errors raised by the reward function itself propagate as they would without a guard. Each
call is a batch of one, so ``Policy.abstain_window`` counts completions. To judge token ids and
whole groups, use `openrlhf.agent`.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

from grpo_guard.adapters.received import Row, parts_of, read, received
from grpo_guard.adapters.releases import require_release
from grpo_guard.adapters.reward_function import (
    RewardFunction,
    fitted,
    require_one,
    settled_finite,
    without_leaving_out,
)
from grpo_guard.core.detokenizer import ENDS
from grpo_guard.core.quoting import shown
from grpo_guard.core.supervise import supervised
from grpo_guard.core.verdict import Outcome, Verdict
from grpo_guard.guard import Guard, Review
from grpo_guard.guard.admission import AdmittedBatch
from grpo_guard.guard.framework import FrameworkError
from grpo_guard.guard.policy import AbstainError

logger = logging.getLogger("grpo_guard")
Texts: TypeAlias = Sequence[str]
T = TypeVar("T")
# Minimum number of characters in the query that must match a prompt whose beginning was cut off.
LEAST_OVERLAP: Final = 32


class OpenRLHFAdapter:
    """Guards a reward function ``reward_func(queries, prompts, labels)``."""

    recognised_by: ClassVar = frozenset({"queries", "prompts", "labels"})

    def wrap(self, reward: Any, guard: Guard) -> Any:
        """Wrap a reward function; the wrapper accepts the three lists as positional or keyword
        arguments.

        If abstentions exceed the policy's ``max_abstain_rate``, or the guard itself fails (such as
        a ledger on a full disk), rewards are at most 0, ``guard_abstain`` is 1, and each call logs
        an error.

        Raises:
            FrameworkError: the reward is a list (OpenRLHF takes one function) or an async function
                (which OpenRLHF does not await), the policy leaves completions out of their group or
                says to raise, or the installed OpenRLHF is too old.
        """
        parts = self.parts(reward, guard)

        def guarded(queries: Texts, prompts: Texts, labels: Sequence[Any]) -> dict[str, Any]:
            given = (queries, prompts, labels)
            known = parts.admitted(*given)
            with parts.guard.reading():
                verdicts = supervised(parts.guard.verifier, known.unsettled if known else ())
            return parts.settled(known, verdicts, *given)

        return parts.function.dress(guarded)

    def parts(self, reward: Any, guard: Guard) -> "GuardedReward":
        """Build the components of a wrapped function separately, for a server that reviews several
        calls at once. Raises the same errors as `wrap`."""
        require_release("openrlhf")
        require_one(reward, "OpenRLHF")
        cannot = without_leaving_out("OpenRLHF") | {
            ("on_abstain", "raise"): "OpenRLHF swallows exceptions, so "
            'Policy(on_abstain="raise") cannot stop the run; choose on_abstain="zero".'
        }
        guard = fitted(guard, "OpenRLHF", cannot)
        function = RewardFunction.inspect(reward, guard)
        if function.is_async:
            raise FrameworkError(f"{function.name}: OpenRLHF does not await an async reward_func")
        # Scores have their own guard: a veto lowers a score to the lowest score, not to the lowest
        # reward.
        return GuardedReward(function, guard, Guard(guard.verifier, policy=guard.policy))


@dataclass(frozen=True, slots=True)
class GuardedReward:
    """A reward function, together with the guard for its completions and rewards and the guard for
    its scores."""

    function: RewardFunction
    guard: Guard
    of_scores: Guard

    def admitted(
        self, queries: Texts, prompts: Texts, labels: Sequence[Any]
    ) -> AdmittedBatch | None:
        """Prepare the completions for the verifier; None if the guard cannot judge them."""
        rows = parts_of(rows_from(queries, prompts, labels))
        return _looked(lambda: self.guard.admit(*rows))

    def settled(
        self,
        known: AdmittedBatch | None,
        verdicts: Sequence[Verdict],
        queries: Texts,
        prompts: Texts,
        labels: Sequence[Any],
    ) -> dict[str, Any]:
        """Call the function and settle its rewards. ``known`` is the result of `admitted`: if it is
        None, no completion earns a reward above 0. ``verdicts`` are on its ``unsettled``."""
        function = self.function
        finish = self.guard.finish_review
        review = None if known is None else _looked(lambda: finish(known, verdicts))
        result = function.ask(queries, prompts, labels)
        result = dict(result) if isinstance(result, Mapping) else {"rewards": result}
        if "rewards" not in result:
            raise ValueError(
                f'{function.name}: expected a dict with "rewards", got one with '
                f"{', '.join(map(repr, result)) or 'nothing':.80}"
            )
        logs = {**(result.get("extra_logs") or {}), **_logs(review, len(queries))}
        if self.guard.policy.watches:  # the same objects, unread
            return {"scores": result["rewards"], **result, "extra_logs": logs}

        def settle(value: Any, guard: Guard) -> float | list[float]:
            flat = value.reshape(-1) if hasattr(value, "reshape") else value
            flat = [flat] if isinstance(flat, int | float | None) else flat
            numbers = settled_finite(guard, review, function.rewards(flat, len(queries)))
            return numbers[0] if len(numbers) == 1 else numbers

        rewards, scores = settle(result["rewards"], self.guard), result.get("scores")
        return {
            "rewards": rewards,
            "scores": rewards if scores is None else settle(scores, self.of_scores),
            "extra_logs": logs,
        }


def _looked(look: Callable[[], T]) -> T | None:
    """Return the result of ``look``; None, after logging an error, if the guard fails."""
    try:
        return look()
    except AbstainError as error:
        logger.error("the guard cannot judge: %s", error)
    except Exception as error:
        # If the error were raised, OpenRLHF would swallow it: the reward would become None, and the
        # run would end later with a different error. If it were ignored, a full disk would switch
        # the guard off.
        logger.error("the guard failed", exc_info=error)
    return None


def _logs(review: Review | None, samples: int) -> dict[str, float | list[float]]:
    found = [v.outcome for v in review.verdicts] if review else [Outcome.ABSTAIN] * samples
    rows = {f"guard_{o.value}": [float(f is o) for f in found] for o in Outcome}
    return {name: row[0] if samples == 1 else row for name, row in rows.items()}


def rows_from(queries: Texts, prompts: Texts, labels: Sequence[Any]) -> list[Row]:
    """Build rows from OpenRLHF's lists. A query is the prompt and the completion in a single
    string; the label is the reference. Raises TypeError unless all three arguments are lists, and
    ValueError if they differ in length."""
    for name, given in (("queries", queries), ("prompts", prompts), ("labels", labels)):
        if isinstance(given, str | bytes) or not hasattr(given, "__len__"):
            raise TypeError(f"reward_func.{name}: expected a list, got {shown(given)}")
        if len(given) != len(queries):
            raise ValueError(
                f"reward_func.{name}: expected {len(queries)}, one per query, got {len(given)}"
            )
    return [
        received(prompt, read(completion_text, query, prompt), reference=label)
        for query, prompt, label in zip(queries, prompts, labels, strict=True)
    ]


def completion_text(query: str, prompt: str) -> str:
    """Extract the author's text from a query; the whole query if the prompt cannot be identified.

    A query is the prompt and completion decoded together, special tokens included. So it ends with
    the token that ended the turn, and does not always begin with the prompt as given: decoding can
    change whitespace, and an overlong prompt has its beginning cut off. If the end token or the
    prompt were taken for the author's text, that text would look like a written-out chat template,
    and screens would reject every honest completion.
    """
    text = _after(query, prompt)
    for end in ENDS:
        # Remove only one end token, at the very end: if there are several, or if text follows, the
        # author wrote them.
        if text.endswith(end):
            return text[: -len(end)]
    return text


def _after(query: str, prompt: str) -> str:
    if query.startswith(prompt):
        return query[len(prompt) :]
    at = _end_without_blanks(query, prompt)
    if at is None:
        at = _end_of_truncated(query, prompt)
    return query if at is None else query[at:]


def _end_without_blanks(query: str, prompt: str) -> int | None:
    """Index of the end of the prompt in the query if they differ only in whitespace, otherwise
    None."""
    at = 0
    for character in prompt:
        if character.isspace():
            continue
        while at < len(query) and query[at].isspace():
            at += 1
        if at == len(query) or query[at] != character:
            return None
        at += 1
    while at < len(query) and query[at].isspace() and prompt[-1:].isspace():
        at += 1
    return at


def _end_of_truncated(query: str, prompt: str) -> int | None:
    """Index of the end of the prompt if the query begins with the last part of the prompt, word for
    word; otherwise None. If a few matching words were enough, an author could repeat them, and the
    text before them would go unread."""
    start, at = query[:LEAST_OVERLAP], 0
    if len(start) < LEAST_OVERLAP:
        return None
    while (at := prompt.find(start, at + 1)) > 0:
        if query.startswith(prompt[at:]):
            return len(prompt) - at
    return None
