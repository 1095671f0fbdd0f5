"""`ScreensVerifier`: finds, without a model, what honest text never contains."""

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Unpack

from grpo_guard.content.rules import RuleOptions, RuleVerifier
from grpo_guard.content.screens import characters, encoded, homoglyphs, judges, languages, markup
from grpo_guard.content.screens.answers import FORMATS, AnswerFormat, AnswerScreen
from grpo_guard.content.screens.view import MAX_FINDINGS, Screen, View
from grpo_guard.content.severity import REJECT, REPORT, Kind
from grpo_guard.core.completion import Completion
from grpo_guard.core.scope import Scope
from grpo_guard.core.verdict import Cause, Finding, Verdict, accept, reject

MAX_CHARACTERS = 1_000_000


def _screens(tokens: markup.TemplateTokens, answers: AnswerScreen) -> tuple[Screen, ...]:
    """Return all screens, in the order in which their findings are listed."""
    return (
        Screen("template_token", REJECT, tokens),
        *characters.SCREENS,
        *markup.SCREENS,
        *homoglyphs.SCREENS,
        *languages.SCREENS,
        *answers.screens,
        *judges.SCREENS,
        *encoded.SCREENS,
    )


class ScreensVerifier(RuleVerifier):
    """Rejects completions that contain something no solution needs, and reports where.

    Deterministic: the same text gets the same verdict everywhere, and nothing in a completion can
    argue with it. Each screen makes findings of its own name, a key of ``KINDS``, and can be left
    out. A completion can repeat anything in its prompt (its script, a phrase, a hash) and do what
    the prompt asks for (a page, a translation, a verdict as JSON). If a prompt was rendered with a
    chat template, that template's tokens are still rejected. Marks of thoughts and tool calls
    (``<think>``, ``<|end_of_thought|>``, ``<tool_call>``) do not forge a turn, so they pass.
    ``after_box`` is only reported unless ``severity`` changes that: chat models explain and check
    after a box just as they do before it. The same goes for ``end_marks``, more than eight
    end-of-text marks at the end of a completion, although that is not a screen.

    A completion that is empty or not valid Unicode is malformed, and one longer than
    ``max_characters`` is overlong. All three are the author's doing, so they are rejected.

    Cannot detect poison in plain words: an English phrase before an English solution passes every
    screen.

    Args:
        without: Names of screens to leave out.
        tokenizer: A transformers tokenizer whose special tokens are looked for as well.
        markers: Chat-template tokens that honest answers to this task contain: names of sets
            (``"think"``, ``"tools"``, ``"harmony"``, ``"fill_in"``) or literal tokens.
        formats: Formats in which this task writes answers, for ``after_answer``, ``after_box`` and
            ``several_answers``.
        max_characters: Maximum length of a text that is read, in characters; None for no limit. The
            time taken is linear in the length.
        **rules: Options passed to `RuleVerifier`: ``severity``, ``store``, and those for counting.

    Raises:
        ValueError: ``without`` names an unknown screen, ``markers`` an unknown set, or
            ``max_characters`` < 1.
    """

    name = "screens"
    KINDS: ClassVar[Mapping[str, Kind]] = {
        **{one.kind: one.does for one in _screens(markup.TemplateTokens(), AnswerScreen(FORMATS))},
        # Servers that do not know a stop token leave dozens of them.
        "end_marks": REPORT,
    }
    scope: Scope = "completion"
    # An answer in an earlier turn is a draft, and the next turn is not text after the answer.
    by_turn = frozenset({"after_answer", "after_box", "several_answers"})

    def __init__(
        self,
        *,
        without: Collection[str] = (),
        tokenizer: Any = None,
        markers: Collection[str] = (),
        formats: Sequence[AnswerFormat] = FORMATS,
        max_characters: int | None = MAX_CHARACTERS,
        **rules: Unpack[RuleOptions],
    ) -> None:
        super().__init__(**rules)
        if max_characters is not None and max_characters < 1:
            raise ValueError(
                f"ScreensVerifier.max_characters: expected an integer >= 1 or None, "
                f"got {max_characters!r}"
            )
        tokens = markup.TemplateTokens(tokenizer, markers)
        screens = {one.kind: one.look for one in _screens(tokens, AnswerScreen(tuple(formats)))}
        # Not called "off", which YAML reads as false.
        without = (without,) if isinstance(without, str) else without
        for name in without:
            if name not in screens:
                raise ValueError(
                    f"ScreensVerifier.without: expected some of {', '.join(screens)}, got {name!r}"
                )
        self.max_characters = max_characters
        self.screens = {name: screen for name, screen in screens.items() if name not in without}

    def look(self, batch: Sequence[Completion]) -> list[Verdict]:
        prompts: dict[int, str] = {}
        return [self._verdict(completion, prompts) for completion in batch]

    def _verdict(self, completion: Completion, prompts: dict[int, str]) -> Verdict:
        text = completion.text
        if (overlong := self.overlong(text, self.max_characters)) is not None:
            return overlong
        if not text or text.isspace():
            return reject(self.name, Cause.MALFORMED, "the completion is empty")
        surrogate = _lone_surrogate(text)
        if surrogate is not None:
            message = f"not valid Unicode at character {surrogate}"
            finding = Finding(Cause.MALFORMED.value, message, (surrogate, surrogate + 1))
            return reject(self.name, Cause.MALFORMED, findings=(finding,))
        view = View(completion, prompts)
        findings = tuple(
            finding
            for screen in self.screens.values()
            for finding in islice(screen(view), MAX_FINDINGS)
        )
        if findings:
            return reject(self.name, Cause.SCREENED, findings=findings)
        return accept(self.name)


def _lone_surrogate(text: str) -> int | None:
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None
