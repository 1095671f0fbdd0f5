"""Encode a conversation into token ids, so that no message can contain a special token.

A chat template joins message contents and special tokens into one string. If that string were
tokenised, a completion with ``<|im_end|>`` would end its own message and could go on as the system.
Instead, the template is filled with placeholders here, and the contents are tokenised separately.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_guard.judge.backends.base import ChatMessage
from grpo_guard.judge.errors import JudgeSetupError

_HOLDER = "@@content-{}@@"
_HOLDERS = re.compile(r"@@content-([0-9]{1,6})@@")


class ChatEncoder:
    """Encodes conversations for one transformers tokenizer, with or without a chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._templates: dict[tuple[str, ...], list[str | int]] = {}
        self._joins_system = bool(tokenizer.chat_template) and self._refuses_system()

    def encode(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Return the ids of the prompt, up to the start of the model's answer; raises
        JudgeSetupError if the chat template omits or changes a message."""
        if not self._tokenizer.chat_template:
            return self._ids(plain_prompt(messages), ours=False, add_special_tokens=True)
        if self._joins_system and messages and messages[0]["role"] == "system":
            messages = _joined(messages)
        ids = list[int]()
        for piece in self._pieces(tuple(m["role"] for m in messages)):
            if isinstance(piece, str):
                ids += self._ids(piece, ours=True)
            else:
                ids += self._ids(messages[piece]["content"], ours=False)
        return ids

    def _ids(self, text: str, *, ours: bool, add_special_tokens: bool = False) -> list[int]:
        if not text:
            return []
        encoded = self._tokenizer(
            text,
            add_special_tokens=add_special_tokens,
            split_special_tokens=not ours,
            verbose=False,
        )
        return [int(token) for token in encoded["input_ids"]]

    def _pieces(self, roles: tuple[str, ...]) -> list[str | int]:
        """The template's own text in pieces, with the indices of the messages in between."""
        if roles not in self._templates:
            holders = [{"role": r, "content": _HOLDER.format(i)} for i, r in enumerate(roles)]
            parts = _HOLDERS.split(self._filled(holders))
            if parts[1::2] != [str(i) for i in range(len(roles))]:
                raise JudgeSetupError(
                    "the model's chat template does not contain each message once and in order; "
                    "choose a model whose template does"
                )
            self._templates[roles] = [int(p) if i % 2 else p for i, p in enumerate(parts)]
        return self._templates[roles]

    def _filled(self, messages: Sequence[Mapping[str, str]]) -> str:
        # A judge that has to answer with one word must not start with reasoning.
        filled: str = self._tokenizer.apply_chat_template(
            [dict(m) for m in messages],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,
        )
        return filled

    def _refuses_system(self) -> bool:
        """Whether the template does not support system messages."""
        try:
            text = self._filled(
                [{"role": "system", "content": "@@s@@"}, {"role": "user", "content": "u"}]
            )
        except Exception:  # a template may raise anything
            return True
        return "@@s@@" not in text


def _joined(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Prepend the system message to the first user message."""
    system, first, *others = messages
    content = f"{system['content']}\n\n{first['content']}"
    return [{"role": first["role"], "content": content}, *others]


def plain_prompt(messages: Sequence[ChatMessage]) -> str:
    """The prompt for a model without a chat template: the contents, then a cue for the answer."""
    return "\n\n".join(m["content"] for m in messages) + "\nAnswer:"
