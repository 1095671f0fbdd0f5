"""A completion as it comes out of the exchange: what was asked, what came back, who sent it."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from typing import Any, TypeAlias

Message: TypeAlias = Mapping[str, Any]
# Names are remembered for a whole run, and a stranger's may be as long as a request.
MAX_NAME = 1_000
"""One chat message: at least ``role`` and ``content``, as the trainers have it."""


class CompletionError(ValueError):
    """A field of a completion has the wrong form.

    Attributes:
        field: Name of the field.
        problem: ``expected ..., got ...``.
    """

    def __init__(self, field_name: str, expected: str, got: Any) -> None:
        self.field = field_name
        self.problem = f"expected {expected}, got {_shorten(got)}"
        super().__init__(f"{field_name}: {self.problem}")


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion of one prompt.

    Token ids are the primary input: retokenising text changes 1-3 % of the tokens, so a completion
    without ids is scored under a looser profile.

    Args:
        prompt: The prompt as text, or as chat messages.
        text: The completion as text, as the reward function sees it.
        prompt_ids: Token ids of the prompt, including special tokens, shape [P].
        completion_ids: Token ids of the completion, ending with EOS where it terminated, shape [n].
        node: Who sent it. Of a name longer than `MAX_NAME` characters the beginning and a digest
            stand for it.
        group: The GRPO group it belongs to (completions of one prompt).
        round: Training round in which it was generated.
        slot: Its place within the group.
        reference: Reference answer, for verifiers that use one.
        task: Name of the task, for `only(..., task=...)`.
        finish_reason: What the sender's engine said, e.g. ``"stop"`` or ``"length"``. A claim.
        sampler_logprobs: The sender's log-probs, natural logarithm, shape [n]. A claim.
        metadata: Anything else. `SeedReplayVerifier` compares ``run`` with its own where given;
            other verifiers read only what they are told to.

    Raises:
        CompletionError: a field has the wrong type or an impossible value.
    """

    prompt: str | Sequence[Message]
    text: str
    prompt_ids: tuple[int, ...] | None = field(default=None, kw_only=True)
    completion_ids: tuple[int, ...] | None = field(default=None, kw_only=True)
    node: str | None = field(default=None, kw_only=True)
    group: str | int | None = field(default=None, kw_only=True)
    round: int | None = field(default=None, kw_only=True)
    slot: int | None = field(default=None, kw_only=True)
    reference: str | None = field(default=None, kw_only=True)
    task: str | None = field(default=None, kw_only=True)
    finish_reason: str | None = field(default=None, kw_only=True)
    sampler_logprobs: tuple[float, ...] | None = field(default=None, kw_only=True)
    metadata: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        if not isinstance(self.prompt, str):
            set_field(self, "prompt", _messages(self.prompt))
        if not isinstance(self.text, str):
            raise CompletionError("text", "a string", self.text)
        for name in ("prompt_ids", "completion_ids"):
            set_field(self, name, _token_ids(name, getattr(self, name)))
        set_field(self, "sampler_logprobs", _log_probs(self.sampler_logprobs))
        for name in ("node", "reference", "task", "finish_reason"):
            if not isinstance(getattr(self, name), str | None):
                raise CompletionError(name, "a string or null", getattr(self, name))
        if self.node is not None and len(self.node) > MAX_NAME:
            set_field(self, "node", _cut(self.node))
        for name in ("round", "slot"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise CompletionError(name, "an integer or null", value)
            if value is not None and not _fits(value):
                raise CompletionError(name, "an integer of 64 bits or null", "a larger one")
        if isinstance(self.group, bool) or not isinstance(self.group, str | int | None):
            raise CompletionError("group", "a string, an integer or null", self.group)
        if isinstance(self.group, int) and not _fits(self.group):
            raise CompletionError(
                "group", "a string, an integer of 64 bits or null", "a larger one"
            )
        if not isinstance(self.metadata, Mapping):
            raise CompletionError("metadata", "an object", self.metadata)

    @property
    def prompt_text(self) -> str:
        """Everything that was asked, as one text: of a chat, what its messages say, in order."""
        if isinstance(self.prompt, str):
            return self.prompt
        return "\n".join(content_text(message.get("content")) for message in self.prompt)

    @classmethod
    def from_dict(cls, data: Any) -> Completion:
        """Read one line of IN.jsonl; unknown fields are errors, since a typo must not pass."""
        if not isinstance(data, Mapping):
            raise CompletionError("(line)", "a JSON object", data)
        for name in ("prompt", "text"):
            if name not in data:
                raise CompletionError(name, "to be present", "nothing")
        known = [f.name for f in fields(cls)]
        for name in data:
            if name not in known:
                raise CompletionError(str(name), f"one of {', '.join(known)}", "an unknown field")
        return cls(**data)


def content_text(content: Any) -> str:
    """A message's text; of content in parts, as multimodal chats have it, the parts that are text,
    put together without a gap as chat templates do."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        return ""
    texts = (part.get("text") if isinstance(part, Mapping) else part for part in content)
    return "".join(text for text in texts if isinstance(text, str))


def _messages(value: Any) -> tuple[Message, ...]:
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise CompletionError("prompt", "a string or a list of messages", value)
    for message in value:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise CompletionError("prompt", "messages with a role and content", message)
    return tuple(value)


def _token_ids(name: str, value: Iterable[Any] | None) -> tuple[int, ...] | None:
    """Accept lists, tuples, NumPy arrays and tensors of integers."""
    if value is None:
        return None
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise CompletionError(name, "a list of integers or null", value)
    ids = []
    for item in value:
        try:
            if isinstance(item, bool):
                raise TypeError
            ids.append(operator.index(item))
        except TypeError:
            raise CompletionError(name, "a list of integers or null", item) from None
        if not _fits(ids[-1]):
            raise CompletionError(name, "integers of 64 bits", "a larger one")
    return tuple(ids)


def _cut(name: str) -> str:
    """The same name for the same node, short; other nodes have others."""
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{name[: MAX_NAME - 40]}...{digest}"


def _fits(value: int) -> bool:
    """Whether it is an int64. Python refuses to print integers of 4,300 digits and more: an error
    message about one would be an error of its own, and take the whole batch along."""
    return -(2**63) <= value < 2**63


def _log_probs(value: Iterable[Any] | None) -> tuple[float, ...] | None:
    if value is None:
        return None
    name = "sampler_logprobs"
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise CompletionError(name, "a list of numbers or null", value)
    numbers = []
    for item in value:
        if isinstance(item, bool | str | bytes):
            raise CompletionError(name, "a list of numbers or null", item)
        try:
            number = float(item)
        except (TypeError, ValueError, OverflowError):
            raise CompletionError(name, "a list of numbers or null", item) from None
        if math.isnan(number):
            raise CompletionError(name, "numbers, not NaN", item)
        numbers.append(number)
    return tuple(numbers)


def _shorten(value: Any) -> str:
    words = ("nothing", "an unknown field", "a larger one")
    text = value if value in words else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
