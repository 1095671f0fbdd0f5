"""`JudgeVerifier`: a language model decides, after code has had its say."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from grpo_guard.completion import Completion
from grpo_guard.content.screens.verifier import ScreensVerifier
from grpo_guard.judge.asking import Asker
from grpo_guard.judge.backends.base import Backend
from grpo_guard.judge.backends.build import build_backend
from grpo_guard.judge.cache import RulingCache
from grpo_guard.judge.case import Brief, Case
from grpo_guard.judge.errors import JudgeSetupError
from grpo_guard.judge.limits import Limits
from grpo_guard.judge.loop import background_loop
from grpo_guard.judge.modes import LogitMode, Ruling, VerdictMode, mode_of
from grpo_guard.judge.prompt import Window
from grpo_guard.judge.rubric import Rubric
from grpo_guard.supervise import supervised
from grpo_guard.verdict import Cause, Finding, Usage, Verdict, abstain, accept, reject
from grpo_guard.verifier import CompletionVerifier

logger = logging.getLogger("grpo_guard")
OnUnsure = Literal["reject", "abstain"]
# Asking, then once more in other words or with less text, twice.
MOST_ROUNDS = 4


class JudgeVerifier(CompletionVerifier):
    """Asks a language model whether a completion may earn its reward.

    Screens and the length limit decide first. The rest is asked in parallel, with retries, within
    ``limits``; see the package's docstring for what rejects and what abstains.

    Args:
        backend: The model, or ``{"type": "openai", "base_url": ..., "model": ...}``.
        rubric: ``"math"``, ``"code"``, a file's path, or a `Rubric`.
        mode: ``"logit"`` (needs log-probabilities), ``"json"``, ``"cot"``, or a mode with settings.
        threshold: ``p_yes`` from which ``"logit"`` accepts; measure it with
            ``grpo-guard judge calibrate``.
        screens: What runs before any call; None = nothing, which leaves the judge to whoever can
            talk to it.
        window: How much of a completion is shown, and from what length on it is overlong.
        datamark: Mark the spaces of the completion, so that it reads as data.
        on_unsure: What a judge that cannot decide amounts to. The author may be why, so it rejects
            unless told to abstain.
        cache: File of rulings that are known already; None = ask every time.
        limits: In time, attempts and money; also as a mapping.
        secret: Key of the fences' ids; None = a random one, unknown to everybody.

    Raises:
        ValueError: an argument is out of range.
    """

    name = "judge"

    def __init__(
        self,
        backend: Backend | Mapping[str, Any],
        *,
        rubric: str | os.PathLike[str] | Rubric = "math",
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
        self.backend = backend if isinstance(backend, Backend) else build_backend(backend)
        self.rubric = rubric if isinstance(rubric, Rubric) else Rubric.load(os.fspath(rubric))
        self.mode = _mode(mode, threshold)
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
        # The deadline is kept inside; this is for what hangs beyond it.
        self.timeout = self.limits.deadline + 60
        self._secret = secret or os.urandom(32)
        self._session: _Session | None = None

    def verify(self, batch: Sequence[Completion]) -> list[Verdict]:
        return background_loop().run(self._judge(batch))

    async def averify(self, batch: Sequence[Completion]) -> list[Verdict]:
        return await asyncio.wrap_future(background_loop().submit(self._judge(batch)))

    def p_yes(self, batch: Sequence[Completion]) -> list[float | None]:
        """The judge's probabilities of accepting, for calibration; None where there is none.

        Args:
            batch: Completions, in order. Screens run here too.
        """
        cases = background_loop().run(self._cases(batch))[1]
        rulings = [cases[i].ruling if i in cases else None for i in range(len(batch))]
        return [None if ruling is None else ruling.p_yes for ruling in rulings]

    def check(self) -> None:
        """Find out whether the model can be asked at all.

        Raises:
            JudgeSetupError: it cannot; with the remedy.
        """
        background_loop().run(self.backend.check())

    async def _judge(self, batch: Sequence[Completion]) -> list[Verdict]:
        verdicts, cases = await self._cases(batch)
        for i, case in cases.items():
            verdicts[i] = self._verdict(case)
        return [v for v in verdicts if v is not None]

    async def _cases(
        self, batch: Sequence[Completion]
    ) -> tuple[list[Verdict | None], dict[int, Case]]:
        """Verdicts that needed no model, and a settled case for each of the others."""
        verdicts: list[Verdict | None] = await asyncio.to_thread(self._before, batch)
        brief = self._brief()
        cases = {
            i: Case(completion, brief, self._secret)
            for i, completion in enumerate(batch)
            if verdicts[i] is None
        }
        if cases:
            await self._settle(list(cases.values()))
        return verdicts, cases

    def _before(self, batch: Sequence[Completion]) -> list[Verdict | None]:
        """What needs no model: too long, or screened."""
        verdicts: list[Verdict | None] = [None] * len(batch)
        for i, completion in enumerate(batch):
            if len(completion.text) > self.window.limit:
                message = f"{len(completion.text):,} characters, limit {self.window.limit:,}"
                verdicts[i] = reject(self.name, Cause.OVERLONG, message)
        left = [i for i, verdict in enumerate(verdicts) if verdict is None]
        if self.screens is not None:
            seen = supervised(self.screens, [batch[i] for i in left])
            for i, verdict in zip(left, seen, strict=True):
                if verdict.rejected:
                    verdicts[i] = reject(
                        self.name, Cause.SCREENED, findings=verdict.findings, members=(verdict,)
                    )
        return verdicts

    async def _settle(self, cases: list[Case]) -> None:
        """Find a ruling or a failure for each case; equal ones are asked once."""
        session, limits = self._in_this_process(), self.limits
        keys = {id(case): case.brief.key(case.completion) for case in cases}
        first: dict[str, Case] = {}
        for case in cases:
            first.setdefault(keys[id(case)], case)
        known = await session.look_up(list(first))
        for key, ruling in known.items():
            first[key].ruling = ruling
            first[key].usage = Usage(cache_hits=1)
        pending = [case for key, case in first.items() if key not in known]
        try:
            if pending:
                await session.ready(self.backend)
        except JudgeSetupError as error:
            logger.error("judge: %s", error)
            for case in pending:
                case.failure = error
            pending = []
        deadline = time.monotonic() + limits.deadline
        for _ in range(MOST_ROUNDS):
            if not pending:
                break
            made = max(case.usage.requests for case in pending)
            answers = await session.asker.ask(
                [case.request() for case in pending],
                deadline=deadline,
                attempts=max(1, limits.attempts - made),
            )
            closed = [c.take(a, limits) for c, a in zip(pending, answers, strict=True)]
            pending = [case for case, done in zip(pending, closed, strict=True) if not done]
        new = {key: case.ruling for key, case in first.items() if key not in known and case.ruling}
        await session.keep(new)
        for case in cases:
            source = first[keys[id(case)]]
            if case is not source:  # the same text again: its price was paid once
                case.ruling, case.failure = source.ruling, source.failure
                case.usage = Usage(cache_hits=1)

    def _verdict(self, case: Case) -> Verdict:
        fields: dict[str, Any] = {"usage": case.usage, "seconds": case.usage.latency}
        if case.ruling is None:
            failure = case.failure
            cause = failure.cause if failure is not None else Cause.FAULT
            return abstain(self.name, cause, str(failure or "no answer")[:500], **fields)
        ruling = case.ruling
        notes = [ruling.finding] if ruling.finding else []
        if case.left_out:
            message = f"the judge saw head and tail, without {case.left_out:,} characters between"
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
        model = (self.backend.model, self.backend.revision)
        return Brief(self.rubric, self.mode, self.window, self.datamark, model)

    def _in_this_process(self) -> _Session:
        if self._session is None or self._session.pid != os.getpid():
            self._session = _Session(self.backend, self.limits, self.cache)
        return self._session

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_session": None}  # connections stay where they are


class _Session:
    """What a judge holds in one process: its counts, its limits' state, its cache's connection."""

    def __init__(self, backend: Backend, limits: Limits, cache: str | None) -> None:
        self.pid = os.getpid()
        self.asker = Asker(backend, limits)
        self._cache = None if cache is None else RulingCache(cache)
        self._lock = asyncio.Lock()
        self._checked = False

    async def ready(self, backend: Backend) -> None:
        """Ask whether the model is there, until it has been once; otherwise every completion of a
        batch would find out by itself that the key is wrong."""
        self.asker.begin()
        async with self._lock:
            if not self._checked:
                await backend.check()
                self._checked = True

    async def look_up(self, keys: Sequence[str]) -> dict[str, Ruling]:
        if self._cache is None:
            return {}
        async with self._lock:
            return await asyncio.to_thread(self._cache.get, keys)

    async def keep(self, rulings: Mapping[str, Ruling]) -> None:
        if self._cache is not None:
            async with self._lock:
                await asyncio.to_thread(self._cache.put, rulings)


def _mode(mode: str | VerdictMode, threshold: float | None) -> VerdictMode:
    if threshold is None:
        return mode_of(mode)
    if mode != "logit":
        raise ValueError(f"JudgeVerifier.threshold: expected mode 'logit' with it, got {mode!r}")
    return LogitMode(threshold)
