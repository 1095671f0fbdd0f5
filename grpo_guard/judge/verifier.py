"""`JudgeVerifier`: code decides first, then a language model."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from grpo_guard.content.screens.verifier import ScreensVerifier
from grpo_guard.core.completion import Completion
from grpo_guard.core.prompts import prompt_key
from grpo_guard.core.scope import Scope
from grpo_guard.core.supervise import supervised
from grpo_guard.core.verdict import Cause, Finding, Usage, Verdict, abstain, accept, noted, reject
from grpo_guard.core.verifier import CompletionVerifier
from grpo_guard.judge.backends.base import Backend, build_backend
from grpo_guard.judge.case import Brief, Case
from grpo_guard.judge.limits import Limits
from grpo_guard.judge.loop import background_loop
from grpo_guard.judge.modes import VerdictMode, mode_of
from grpo_guard.judge.prompt import Window
from grpo_guard.judge.rubric import Rubric
from grpo_guard.judge.session import Session
from grpo_guard.judge.shipped import SHIPPED, shipped_settings

OnUnsure = Literal["reject", "abstain"]
# Sessions inherited through a fork, kept so that no destructor closes the parent's connections.
_inherited: list[object] = []


UNUSED: Final = "reference_not_used"


def with_own_references(
    batch: Sequence[Completion], screens: CompletionVerifier | None
) -> tuple[list[Completion], list[Finding | None]]:
    """Remove the references that a judge must not see. Return the completions, plus a note for each
    one whose reference was removed and None for the others.

    A judge takes a reference as the truth: whoever sends a question together with its answer could
    have correct work rejected, or address the judge. A reference that the screens reject or fail on
    may be such a sender's too, regardless of what the exchange claims.
    """
    shown, notes = list(batch), list[Finding | None]([None] * len(batch))
    trusted: dict[tuple[str, str], list[int]] = {}
    for i, completion in enumerate(batch):
        if completion.reference is not None and completion.trusted_reference is None:
            shown[i] = completion.with_labels(reference=None)
            notes[i] = Finding(UNUSED, "its reference came with an untrusted question")
        elif completion.reference is not None:
            key = (prompt_key(completion.prompt), completion.reference)
            trusted.setdefault(key, []).append(i)
    if screens is None or not trusted:
        return shown, notes
    read = [Completion(batch[of[0]].prompt, text) for (_, text), of in trusted.items()]
    for places, verdict in zip(trusted.values(), supervised(screens, read), strict=True):
        if not (verdict.accepted or verdict.cause is Cause.NOT_APPLICABLE):
            for i in places:
                shown[i] = batch[i].with_labels(reference=None)
                notes[i] = Finding(
                    UNUSED, f"its reference does not pass the screens: {verdict.reason}"
                )
    return shown, notes


class JudgeVerifier(CompletionVerifier):
    """Asks a language model whether a completion may earn its reward.

    Screens and the length limit decide first. The judge is asked about the other completions in
    parallel, with retries, within ``limits``; see the package docstring for what leads to a
    rejection and what to an abstention. The judge sees only the task's own references, not those
    that came with an untrusted question or fail a screen.

    Args:
        backend: The model, or a mapping ``{"type": "openai", "base_url": ..., "model": ...}``.
            ``"shipped"`` or None for the shipped judge, with its own rubric, threshold and window,
            which needs no key and no server, but rejects everything outside the bundled task.
        rubric: Instructions for the judge: ``"math"``, ``"code"``, a file path, or a `Rubric`. If
            None, ``"math"``, or the shipped judge's own rubric.
        mode: How the judge gives its verdict: ``"logit"`` (needs log-probabilities), ``"json"``,
            ``"cot"``, or a `VerdictMode` with settings.
        threshold: Minimum ``p_yes`` that ``"logit"`` accepts; measure it with
            ``grpo-guard judge calibrate``.
        screens: Verifier to run on completions and references before any call; None for no screens,
            which leaves the judge exposed to any text.
        window: How much of a completion the judge sees, and the length limit.
        datamark: Whether to mark the spaces of the completion, so that it reads as data.
        on_unsure: Outcome if the judge cannot decide. The author may have caused this, so the
            default is to reject.
        cache: File of cached rulings; None to ask every time.
        limits: Limits on time, attempts and money, also as a mapping.
        secret: Key for the fence ids; None for a random key that nobody knows.

    Raises:
        ValueError: an argument is out of range.
    """

    name = "judge"
    scope: Scope = "completion"
    shares_calls = False  # it waits for its own server
    most_characters = None  # its deadline covers a whole batch
    needs = (
        "a language model: a server (pip install 'grpo-guard[judge]'), vLLM (grpo-guard[vllm]) or "
        "transformers (grpo-guard[torch]), which the shipped judge also uses"
    )

    def __init__(
        self,
        backend: Backend | Mapping[str, Any] | Literal["shipped"] | None = None,
        *,
        rubric: str | os.PathLike[str] | Rubric | None = None,
        mode: str | VerdictMode = "logit",
        threshold: float | None = None,
        screens: CompletionVerifier | Literal["default"] | None = "default",
        window: Window | Mapping[str, int] | None = None,
        datamark: bool = False,
        on_unsure: OnUnsure = "reject",
        cache: str | os.PathLike[str] | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        secret: bytes | None = None,
    ) -> None:
        if backend is None or backend == SHIPPED:
            own = shipped_settings()
            backend, rubric = own["backend"], own["rubric"] if rubric is None else rubric
            threshold = own["threshold"] if threshold is None and mode == "logit" else threshold
            window = own["window"] if window is None else window
        self.backend = backend if isinstance(backend, Backend) else build_backend(backend)
        rubric = "math" if rubric is None else rubric
        self.rubric = rubric if isinstance(rubric, Rubric) else Rubric.load(os.fspath(rubric))
        self.mode = mode_of(mode, threshold)
        self.screens = ScreensVerifier() if screens == "default" else screens
        self.window = window if isinstance(window, Window) else Window(**(window or {}))
        self.limits = limits if isinstance(limits, Limits) else Limits(**(limits or {}))
        if on_unsure not in ("reject", "abstain"):
            raise ValueError(
                f"JudgeVerifier.on_unsure: expected 'reject' or 'abstain', got {on_unsure!r}"
            )
        self.on_unsure = on_unsure
        self.datamark = datamark
        self.cache = None if cache is None else os.fspath(cache)
        # The deadline is enforced inside; this catches a hang beyond it.
        self.timeout = self.limits.deadline + 60
        self._secret = secret or os.urandom(32)
        self._session: tuple[asyncio.AbstractEventLoop, Session] | None = None

    @property
    def author_can_abstain(self) -> str | None:
        # Text that the server always fails on looks like a server that fails now and then, and
        # expensive questions use up a budget shared by everyone.
        return f"{self.name} abstains if its model fails on a text or is slow with it"

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        return background_loop().run(self._judge(batch))

    def p_yes(self, batch: Sequence[Completion]) -> list[float | None]:
        """Return the judge's probability of accepting each completion, in order, for calibration;
        None if the judge gave none. Screens run here too."""
        shown, _ = with_own_references(batch, self.screens)
        cases = background_loop().run(self._settled(shown))[1]
        rulings = [cases[i][1].ruling if i in cases else None for i in range(len(batch))]
        return [None if ruling is None else ruling.p_yes for ruling in rulings]

    def check(self) -> None:
        """Check that the model can be queried at all, as `Backend.check` does."""
        background_loop().run(self.backend.check())

    async def _judge(self, batch: Sequence[Completion]) -> list[Verdict]:
        shown, notes = await asyncio.to_thread(with_own_references, batch, self.screens)
        screened, cases = await self._settled(shown)
        paid: set[str] = set()
        verdicts = []
        for i, first in enumerate(screened):
            if i not in cases:
                assert first is not None
                verdicts.append(first)
                continue
            key, case = cases[i]
            # The price of a repeated text was paid only once.
            usage = Usage(cache_hits=1) if key in paid else case.usage
            paid.add(key)
            verdict = self._verdict(case, usage)
            if first is not None and verdict.accepted:
                # Making a screen fail must not be a way to skip it.
                verdict = replace(first, usage=usage, seconds=usage.latency)
            verdicts.append(noted(verdict, notes[i]))
        return verdicts

    async def _settled(
        self, batch: Sequence[Completion]
    ) -> tuple[list[Verdict | None], dict[int, tuple[str, Case]]]:
        """Return code's verdict on each completion, or None, plus the model's settled cases."""
        screened, cases = await asyncio.to_thread(self._before, batch)
        if cases:
            session = self._in_this_loop()
            await session.settle(dict(cases.values()), self._brief(), self._secret)
        return screened, cases

    def _before(
        self, batch: Sequence[Completion]
    ) -> tuple[list[Verdict | None], dict[int, tuple[str, Case]]]:
        """Decide on completions that need no model, and make cases for the rest, one per distinct
        text."""
        verdicts: list[Verdict | None] = [None] * len(batch)
        for i, completion in enumerate(batch):
            if len(completion.text) > self.window.limit:
                message = f"{len(completion.text):,} characters, limit {self.window.limit:,}"
                verdicts[i] = reject(self.name, Cause.OVERLONG, message)
        left = [i for i, verdict in enumerate(verdicts) if verdict is None]
        if self.screens is not None:
            screened = supervised(self.screens, [batch[i] for i in left])
            for i, verdict in zip(left, screened, strict=True):
                verdicts[i] = self._screened(verdict)
        brief = self._brief()
        distinct: dict[str, Case] = {}
        cases = {}
        for i in left:
            first = verdicts[i]
            if first is None or first.abstained:
                key = brief.key(batch[i])
                case = distinct.setdefault(key, Case(batch[i], brief, self._secret))
                cases[i] = (key, case)
        return verdicts, cases

    def _screened(self, verdict: Verdict) -> Verdict | None:
        """Translate the screens' verdict into the judge's; None if the screens do not object."""
        if verdict.rejected:
            return reject(self.name, Cause.SCREENED, findings=verdict.findings, members=(verdict,))
        if verdict.accepted or verdict.cause is Cause.NOT_APPLICABLE:
            return None
        return replace(verdict, verifier=self.name, members=(verdict,))

    def _verdict(self, case: Case, usage: Usage) -> Verdict:
        fields: dict[str, Any] = {"usage": usage, "seconds": usage.latency}
        if case.ruling is None:
            failure = case.failure
            cause = failure.cause if failure is not None else Cause.FAULT
            return abstain(self.name, cause, str(failure or "no answer")[:500], **fields)
        ruling = case.ruling
        notes = [ruling.finding] if ruling.finding else []
        if case.left_out:
            message = f"the judge saw excerpts, without {case.left_out:,} of the characters"
            notes.append(Finding("not_all_shown", message))
        fields["findings"] = tuple(notes)
        if ruling.cause is not Cause.JUDGED:
            return reject(self.name, ruling.cause, **fields)
        if ruling.passed is None:
            if self.on_unsure == "abstain":
                return abstain(self.name, Cause.UNINFORMATIVE, **fields)
            return reject(self.name, **fields)
        return (accept if ruling.passed else reject)(self.name, **fields)

    def _brief(self) -> Brief:
        return Brief(self.rubric, self.mode, self.window, self.datamark, self.backend.identity)

    def _in_this_loop(self) -> Session:
        """The session for the running event loop; one from another loop cannot be used."""
        loop = asyncio.get_running_loop()
        if self._session is None or self._session[0] is not loop:
            if self._session is not None:
                _inherited.append(self._session)
            self._session = (loop, Session(self.backend, self.limits, self.cache))
        return self._session[1]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_session": None}  # connections cannot be pickled
