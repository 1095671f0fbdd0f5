"""Chat-template and special tokens written out as text.

A trainer that tokenises the text turns them into the real ones: a completion can end its own turn
and go on as the system or the user. The prompt excuses none of them, since prompts are often
rendered with the template and hold them all. A spelling that no tokenizer takes for the token
(spaced, escaped for HTML, cut in half) is looked for too: a step that cleans the text up would make
it whole, and a solution has as little use for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from grpo_guard.content.screens.view import View, shown
from grpo_guard.verdict import Finding

# ChatML, Qwen, Phi, Llama 3, Command R and gpt-oss: <|im_start|>; DeepSeek: <｜User｜>. Bounded,
# and no two quantifiers meet, so that a megabyte of "<|" is one pass.
_PIPED = re.compile(r"<[|｜][^<>|｜\s]{1,64}[|｜]>")
_NAMED = re.compile(
    # Each alternative begins with its bracket, which is all that is looked for in most texts.
    r"\[\s{0,3}/?\s{0,3}(?i:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS"
    r"|TOOL_CONTENT|GMASK)\s{0,3}\]|<<\s{0,3}/?\s{0,3}(?i:SYS)\s{0,3}>>"
    r"|\[/?(?:SYS|IMG)\]|\[\|/?(?:user|assistant|system|endofturn)\|\]"
    r"|<\s{0,3}/?(?:start_of_turn|end_of_turn|start_of_image|end_of_image|start_of_role"
    r"|end_of_role)\s{0,3}>"
    r"|<(?:bos|eos|pad|unk|mask|s|eod|sep|cls|sop|eop)>|</s>"
    r"|\[(?:CLS|SEP|MASK|PAD|UNK|BOS|EOS)\]"
    r"|<(?:unused|extra_id_|reserved_special_token_|reserved_|SPECIAL_)[0-9]{1,4}>"
    r"|<(?:fim_prefix|fim_middle|fim_suffix|endoftext|end_of_text|begin_of_text|SUF|MID)>"
    r"|</?tool_(?:call|response)>"
)
# Names that no text has beside a bracket or bar except for a token, whatever became of the rest.
_DISTINCT = (
    r"(?:im[_▁\s]{1,3}(?:start|end|sep|middle)|eot_id|eom_id|python_tag"
    r"|(?:start|end)[_▁]header[_▁]id|begin[_▁]of[_▁](?:text|sentence)"
    r"|end[_▁]of[_▁](?:text|sentence|turn)|start[_▁]of[_▁]turn|endoftext)"
)
_OPEN = r"(?:[<>|｜＜\[]|&lt;|&#60;|&#x3c;|\\\|)"
_CLOSE = r"(?:[<>|｜＞\]]|&gt;|&#62;|&#x3e;|\\\|)"
_BROKEN = re.compile(
    rf"{_OPEN}\s{{0,3}}{_DISTINCT}|{_DISTINCT}\s{{0,3}}{_CLOSE}"
    # The short names of other templates, where bars and brackets are both there in some form.
    r"|(?:<|＜|&lt;)\s{0,3}(?:\||｜|\\\|)\s{0,3}(?:user|assistant|system|end|channel|message|return)"
    r"\s{0,3}(?:\||｜|\\\|)\s{0,3}(?:>|＞|&gt;)",
    re.IGNORECASE,
)
# By the character that each of them has.
_BROKEN_GATES = {"_": ("im_", "_id", "of_", "python_tag"), "▁": ("im▁", "▁id", "of▁")}
# Blanks within the name need a closer look: "him " has them too.
_SPACED_GATES = ("im ", "im\n", "im\t", "im\r")
_SPACED = re.compile(r"im[_▁\s]{1,3}(?:start|end|sep|middle)", re.IGNORECASE)
# Roles at the start of a line, as the older templates have them (Alpaca, Vicuna, Zephyr).
_ROLE = re.compile(r"^(?:### (?:Instruction|Response|Input):|(?:USER|ASSISTANT|SYSTEM): )", re.M)
_ROLE_GATES = frozenset({"instruction", "response", "input", "user", "assistant", "system"})
_PLAIN = re.compile(r"[A-Za-z0-9]+")


class TemplateTokens:
    """The screen.

    Args:
        tokenizer: A transformers tokenizer, whose special tokens are looked for too, or None.
    """

    def __init__(self, tokenizer: Any = None) -> None:
        own = {str(token) for token in getattr(tokenizer, "all_special_tokens", None) or ()}
        # A tokenizer may call a plain word special (GPT-2 models with "pad"); that is no mark.
        self.own = tuple(sorted(t for t in own if t and not _PLAIN.fullmatch(t) and t.strip()))

    def __call__(self, view: View) -> Iterator[Finding]:
        text = view.text
        spans = set[tuple[int, int]]()
        if "<|" in text or "<｜" in text:
            spans.update(m.span() for m in _first(_PIPED, text))
        if "[" in text or "<" in text:
            spans.update(m.span() for m in _first(_NAMED, text))
        if _may_be_broken(view):
            spans.update(m.span() for m in _first(_BROKEN, text))
        if not _ROLE_GATES.isdisjoint(view.vocabulary):
            spans.update(m.span() for m in _first(_ROLE, text) if not view.asked_for(m[0]))
        for token in self.own:
            at = text.find(token)
            if at >= 0:
                spans.add((at, at + len(token)))
        for start, end in sorted(spans):
            message = f"a chat-template token as text: {shown(text[start:end])}"
            yield Finding("template_token", message, char_span=(start, end))


def _may_be_broken(view: View) -> bool:
    """Whether there are brackets or bars, and the name of a token, whatever is around it."""
    text, lower = view.text, view.lower
    if not any(mark in text for mark in "<>|[]&＜＞｜"):
        return False
    if "|" in lower or "｜" in lower or "endoftext" in lower:
        return True
    for mark, gates in _BROKEN_GATES.items():
        if mark in lower and any(gate in lower for gate in gates):
            return True
    return any(gate in lower for gate in _SPACED_GATES) and _SPACED.search(text) is not None


def _first(pattern: re.Pattern[str], text: str, limit: int = 64) -> Iterator[re.Match[str]]:
    for count, match in enumerate(pattern.finditer(text)):
        if count >= limit:
            return
        yield match
