"""Screens for chat-template tokens that forge a turn, and for markup that is not displayed.

A trainer that tokenises the text turns a spelled-out token into the real one, so a completion can
end its own turn and continue as the system or the user. Spellings that no tokenizer takes for the
token (spaced out, HTML-escaped, cut in half) are found too, because a later clean-up step could
restore the token. Marks of thoughts, solutions and tool calls do not forge a turn, so they pass.
"""

import re
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any, Final

from grpo_guard.content.screens.view import Screen, View, shown
from grpo_guard.content.severity import REJECT
from grpo_guard.content.word_set import word_set
from grpo_guard.core.verdict import Finding

# ChatML, Qwen, Phi, Llama 3, Command R and gpt-oss: <|im_start|>; DeepSeek: <｜User｜>. Bounded,
# with no two adjacent quantifiers, so that a megabyte of "<|" takes a single pass.
_PIPED = re.compile(r"<[|｜]([^<>|｜\s]{1,64})[|｜]>")
# Words in such names that refer to turns and roles, or to the text as a whole.
_TURN_WORDS = word_set(
    "im eot eom eos bos eod user assistant system human developer turn header role text sentence "
    "document prompt channel message return pad unk fim reserved endoftext startoftext endofturn "
    "endofprompt"
)
_ALONE = word_set("start end sep mask")
_LETTERS = re.compile("[a-z]+")
# Names that occur next to a bracket or bar only in a token, however mangled the rest of it is.
_DISTINCT = (
    r"(?:im[_▁\s]{1,3}(?:start|end|sep|middle)|eot_id|eom_id|(?:start|end)[_▁]header[_▁]id"
    r"|(?:begin|start|end)[_▁]of[_▁](?:text|sentence|turn|role)|endoftext)"
)
_NAMED = re.compile(
    rf"(?:[<>|｜＜\[]|&lt;|\\\|)\s{{0,3}}/?{_DISTINCT}|{_DISTINCT}\s{{0,3}}(?:[<>|｜＞\]]|&gt;|\\\|)"
    # Short names from other templates, if bars and brackets are both there in some form.
    r"|(?:<|＜|&lt;)\s{0,3}(?:\||｜|\\\|)\s{0,3}(?:user|assistant|system|end|channel|message|return)"
    r"\s{0,3}(?:\||｜|\\\|)\s{0,3}(?:>|＞|&gt;)"
    r"|\[\s{0,3}/?\s{0,3}(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|GMASK)\s{0,3}\]"
    r"|<<\s{0,3}/?\s{0,3}SYS\s{0,3}>>|\[\|/?(?:user|assistant|system|endofturn)\|\]"
    r"|<(?:bos|eos|pad|s|eod|sop|eop)>|</s>|<(?:fim_prefix|fim_middle|fim_suffix|SUF|MID)>"
    r"|<(?:unused|extra_id_|reserved_special_token_|reserved_|SPECIAL_)[0-9]{1,4}>",
    re.IGNORECASE,
)
_NAMED_GATES = (_TURN_WORDS - {"text"}) | word_set(
    "inst gmask sys sop eop suf mid unused extra special"
)
# Roles at the start of a line, as in older templates (Alpaca, Vicuna, Zephyr).
_ROLE = re.compile(r"^(?:### (?:Instruction|Response|Input):|(?:USER|ASSISTANT|SYSTEM): )", re.M)
_ROLE_GATES = word_set("instruction response input user assistant system")
_PLAIN = re.compile(r"[A-Za-z0-9]+")
# A question about templates is answered with their tokens.
_ABOUT_TOKENS = re.compile(
    r"chat.?template|(?:write an?|system|example) prompt|prompt (?:template|format|injection)"
    r"|special token|tokeni[sz]|chatml|\bBERT\b",
    re.IGNORECASE,
)
# A rendered prompt ends where the answer begins, so all its tokens come from the template.
_RENDERED = re.compile(r"(?:assistant|model|bot|/INST|response)\W{0,12}(?:think\W{0,4})?\Z", re.I)
MARKERS: dict[str, frozenset[str]] = {
    "think": frozenset(),
    "tools": word_set("[AVAILABLE_TOOLS] [/AVAILABLE_TOOLS]"),
    "harmony": word_set(
        "<|start|> <|end|> <|message|> <|channel|> <|constrain|> <|return|> <|call|>"
    ),
    "fill_in": word_set("<|fim_prefix|> <|fim_middle|> <|fim_suffix|> <fim_prefix> <fim_middle> "
                        "<fim_suffix>"),
}  # fmt: skip
"""Sets of tokens that can be named in ``markers=``; thoughts and tool calls are always allowed."""


class TemplateTokens:
    """The screen for chat-template tokens.

    Args:
        tokenizer: A transformers tokenizer whose special tokens are looked for as well, or None.
        markers: Names in `MARKERS`, and literal tokens, that the task's own chat template puts into
            an answer.

    Raises:
        ValueError: a plain word in ``markers`` does not name a set.
    """

    def __init__(self, tokenizer: Any = None, markers: Collection[str] = ()) -> None:
        markers = (markers,) if isinstance(markers, str) else markers
        for name in markers:
            if name not in MARKERS and re.fullmatch(r"\w*", name):
                raise ValueError(
                    f"ScreensVerifier.markers: expected names among {', '.join(MARKERS)} or "
                    f"tokens such as '<|channel|>', got {name!r:.80}"
                )
        self.allowed = frozenset().union(*(MARKERS.get(name, {name}) for name in markers))
        own = {str(token) for token in getattr(tokenizer, "all_special_tokens", None) or ()}
        # A tokenizer can declare a plain word special (GPT-2 models with "pad"); skip those.
        self.own = tuple(sorted(t for t in own if t.strip() and not _PLAIN.fullmatch(t)))

    def __call__(self, view: View) -> Iterator[Finding]:
        spans = sorted(set(self._spans(view)))
        if not spans or _ABOUT_TOKENS.search(view.prompt):
            return
        rendered = not view.is_chat and _RENDERED.search(view.prompt[-60:]) is not None
        for start, end in spans:
            token = view.text[start:end]
            if token not in self.allowed and (rendered or not view.asked_for(token)):
                message = f"a chat-template token as text: {shown(token)}"
                yield Finding("template_token", message, char_span=(start, end))

    def _spans(self, view: View) -> Iterator[tuple[int, int]]:
        text = view.text
        if "<|" in text or "<｜" in text:
            piped = (match for match in _PIPED.finditer(text) if _may_forge_turn(match[0]))
            yield from (match.span() for match in islice(piped, 64))
        near = [part for part in ("s>", "of_") if part in text]
        near += _NAMED_GATES & view.vocabulary
        if near and any(mark in text for mark in "<>|[]&｜＜＞"):
            places = view.around(near)
            named = (match for place in places for match in _NAMED.finditer(text, *place))
            for match in islice(named, 64):
                if "|>" not in match[0] or _may_forge_turn(match[0]):
                    yield match.span()
        if not _ROLE_GATES.isdisjoint(view.vocabulary):
            for match in islice(_ROLE.finditer(text), 64):
                yield match.span()
        for token in self.own:
            at = text.find(token)
            if at >= 0 and _may_forge_turn(token):
                yield at, at + len(token)


def _may_forge_turn(token: str) -> bool:
    """Whether a token refers to turns; True for any token not of the form "<|name|>"."""
    named = _PIPED.fullmatch(token)
    words = _LETTERS.findall(named[1].lower()) if named else ()
    return not named or not _TURN_WORDS.isdisjoint(words) or " ".join(words) in _ALONE


_HIDDEN = re.compile(
    r"<!--|<script\b"
    r"|\bstyle\s{0,3}=\s{0,3}[\"'][^\"'<>\n]{0,80}(?:display\s{0,3}:\s{0,3}none"
    r"|visibility\s{0,3}:\s{0,3}hidden|(?:font-size|opacity)\s{0,3}:\s{0,3}0(?![.0-9])"
    r"|color\s{0,3}:\s{0,3}(?:white|transparent)\b)"
    r"|<font\b[^<>\n]{0,40}\bsize\s{0,3}=\s{0,3}[\"']?0"
    r"|^\[(?://|comment)\]:|\]\(\s{0,3}javascript:"
    # Requires two words, because \phantom{0} is used to align digits.
    r"|\\[hv]?phantom\{[^{}\n]{0,40}\{?[^\W\d_]{2,40}\s{1,4}[^\W\d_]{2,40}"
    r"|\\(?:text)?color\{white\}",
    re.IGNORECASE | re.MULTILINE,
)
_HIDDEN_GATES = word_set("script style font comment javascript phantom hphantom vphantom "
                         "color textcolor")  # fmt: skip
# A prompt that asks for a web page gets one.
_PAGE_ASKED = re.compile(
    r"\b(?:html|css|javascript|script|xml|svg|web|website|webpage|page|markdown|react|vue|template"
    r"|latex|typescript|frontend)\b",
    re.IGNORECASE,
)


def hidden_markup(view: View) -> Iterator[Finding]:
    """Yield findings for comments, scripts, invisible styles and LaTeX phantoms, which are not
    displayed on a page."""
    near = [part for part in ("<!", "[/") if part in view.text]
    if near := [*near, *_HIDDEN_GATES & view.vocabulary]:
        what = "markup that is not displayed"
        yield from view.unasked(_HIDDEN, "hidden_markup", what, _PAGE_ASKED, near=near)


SCREENS: Final = (Screen("hidden_markup", REJECT, hidden_markup),)
