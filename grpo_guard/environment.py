"""Whether what a completion marks as given is what its environment says.

A peer runs the tools on its own machine and sends the transcript. It can edit a result, mark its
own words as a result, or leave out of the loss whatever it does not want trained. Each of these
passes log-prob checks: what follows a forged result is drawn from the policy. All of them show
where the environment is asked again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from grpo_guard.completion import Completion, Message, shown
from grpo_guard.given import between
from grpo_guard.supervise import cause_of, engine_wide
from grpo_guard.verdict import Cause, Finding, Verdict, abstain, accept, reject
from grpo_guard.verifier import CompletionVerifier

logger = logging.getLogger("grpo_guard")

Environment: TypeAlias = Callable[[str | Sequence[Message], tuple[str, ...]], str | None]
"""``(prompt, turns) -> answer``: what stands behind the last of an author's turns, word for word
(white space at the ends aside), marks of the chat template included where the text has them. ""
where nothing may stand there. None: it cannot be said again (a search, a clock), and the claim is
believed: an author can then write there what he likes. Turns are a stranger's text: run nothing of
it outside a sandbox, and give an error's text in place of raising, as the environment did."""


class EnvironmentVerifier(CompletionVerifier):
    """Rejects completions with a tool's result or user's turn that the environment does not give.

    `Guard` has it as ``environment=``, and then believes what it accepts. By itself it makes no
    other verifier believe anything. A completion with nothing given is accepted.

    Args:
        environment: Asked once for each stretch that is given, in order, up to the first that
            is forged.
        most: Stretches of one completion; more are rejected as OVERLONG. A sender decides how
            often your tools are asked, and all of a batch wait for them.

    Raises:
        TypeError: ``environment`` cannot be called.
    """

    name = "environment"
    judges_alone = True

    def __init__(self, environment: Environment, *, most: int = 64) -> None:
        if not callable(environment):
            raise TypeError(f"environment: expected a function, got {shown(environment)}")
        self.environment, self.most = environment, most

    @property
    def author_can_abstain(self) -> str | None:
        return f"{self.name} abstains where the environment raises or hangs on an author's turn"

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        """An abstention where the environment raises on a turn of this completion.

        Were it raised on, halves of a batch would be asked again, and whoever sends a third of it,
        in turns that make it raise, would have it given up for everybody.
        """
        verdicts, told = list[Verdict](), set[str]()
        for completion in batch:
            try:
                verdicts.append(self._judge(completion))
            except Exception as error:
                if engine_wide(error):
                    raise
                kind = type(error).__name__
                if kind not in told:  # an outage is one line in the log
                    logger.warning("the environment failed on a completion", exc_info=error)
                told.add(kind)
                said = ascii(f"{kind}: {error!s:.200}")[1:-1]
                verdicts.append(abstain(self.name, cause_of(error) or Cause.FAULT, said))
        return verdicts

    def _judge(self, completion: Completion) -> Verdict:
        given, text = completion.given, completion.text
        spans = given.chars if given else ()
        turns: tuple[str, ...] = ()
        if len(spans) > self.most:
            message = f"{len(spans)} answers of tools and users, where {self.most} are asked again"
            return reject(self.name, Cause.OVERLONG, message)
        for (start, end), own in zip(spans, between(spans, len(text)), strict=False):
            turns = (*turns, text[slice(*own)])
            expected = self.environment(completion.prompt, turns)
            # Where nothing may stand not even what is invisible may: the mark itself is forged.
            if expected is None or expected.strip() == text[start:end].strip() != "":
                continue
            message = (
                f"the environment answers turn {len(turns)} with {shown(expected.strip())}, the "
                f"completion has {shown(text[start:end].strip())}"
            )
            finding = Finding("forged_tool_result", message, char_span=(start, end))
            return reject(self.name, findings=(finding,))
        return accept(self.name)


def believed(completion: Completion) -> Completion:
    """The completion, of which it is known what was given."""
    if completion.given is None:
        return completion
    return replace(completion, given=replace(completion.given, known=True))
