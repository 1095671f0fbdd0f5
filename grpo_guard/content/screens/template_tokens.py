"""Chat-template and special tokens written out as text.

A trainer that tokenises the text turns them into the real ones: a completion can end its own turn
and go on as the system or the user. The prompt excuses none of them, since prompts are often
rendered with the template and hold them all.
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
    r"\[/?(?:INST|SYS|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|IMG)\]"
    r"|<</?SYS>>"
    r"|</?(?:start_of_turn|end_of_turn|start_of_image|end_of_image|start_of_role|end_of_role)>"
    r"|<(?:bos|eos|pad|unk|mask|s|eod|sep|cls)>|</s>"
    r"|\[(?:CLS|SEP|MASK|PAD|UNK|BOS|EOS)\]"
    r"|<(?:unused|extra_id_|reserved_special_token_|SPECIAL_)[0-9]{1,4}>"
    r"|<(?:fim_prefix|fim_middle|fim_suffix|endoftext|end_of_text|begin_of_text)>"
)
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
        self._own = tuple(sorted(t for t in own if t and not _PLAIN.fullmatch(t) and t.strip()))

    def __call__(self, view: View) -> Iterator[Finding]:
        text = view.text
        spans = set[tuple[int, int]]()
        if "<|" in text or "<｜" in text:
            spans.update(m.span() for m in _first(_PIPED, text))
        if "[" in text or "<" in text:
            spans.update(m.span() for m in _first(_NAMED, text))
        if not _ROLE_GATES.isdisjoint(view.vocabulary):
            spans.update(m.span() for m in _first(_ROLE, text) if not view.asked_for(m[0]))
        for token in self._own:
            at = text.find(token)
            if at >= 0:
                spans.add((at, at + len(token)))
        for start, end in sorted(spans):
            message = f"a chat-template token as text: {shown(text[start:end])}"
            yield Finding("template_token", message, char_span=(start, end))


def _first(pattern: re.Pattern[str], text: str, limit: int = 64) -> Iterator[re.Match[str]]:
    for count, match in enumerate(pattern.finditer(text)):
        if count >= limit:
            return
        yield match
