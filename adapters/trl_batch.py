"""TRL: the batch behind the keywords that a reward function is called with."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, Final

from grpo_guard.adapters.received import MALFORMED
from grpo_guard.completion import Completion, CompletionError

_KEYS_OF_CALLS: Final = ("id", "type", "function", "name", "arguments")


def completions_from(kwargs: Mapping[str, Any], *, tokenizer: Any = None) -> list[Completion]:
    """The batch behind TRL's keywords, in the trainer's order.

    Columns that are used where they are present: ``node`` or ``peer``; ``answer``, ``solution`` or
    ``ground_truth``; ``task``; ``round``; ``slot``; ``prompt_ids``. The last must be your own
    tokenisation of the prompt: a sender who may choose the prompt chooses what looks likely after
    it. In a column ``round`` or ``slot``, what is no integer is None, not this function's own
    count: whoever leaves it out must not be given a slot. What `peer_rollouts` could not pass on
    has the reason in its metadata, under `MALFORMED`.

    Of messages with images the text is judged; the images count for which rows are a group.

    Args:
        kwargs: As TRL calls a reward function.
        tokenizer: The trainer's; None = not known, messages are taken as they are.

    Raises:
        ValueError: prompts, completions and completion_ids differ in length.
        CompletionError: a row has the wrong form; a note says which.
    """
    n = len(kwargs["completions"])
    prompts, ids = kwargs.get("prompts"), kwargs.get("completion_ids")
    for name, values in (("prompts", prompts), ("completion_ids", ids)):
        if (values is None and name == "prompts") or (values is not None and len(values) != n):
            got = "nothing" if values is None else len(values)
            raise ValueError(f"{name}: expected {n}, one per completion, got {got}")
    texts = _texts(kwargs["completions"], ids, tokenizer)
    nodes = _column(kwargs, n, "node", "peer")
    references = _column(kwargs, n, "answer", "solution", "ground_truth")
    tasks, prompt_ids = _column(kwargs, n, "task"), _column(kwargs, n, "prompt_ids")
    step = getattr(kwargs.get("trainer_state"), "global_step", None)
    rounds, slots = _integers(kwargs, n, "round"), _integers(kwargs, n, "slot")
    malformed = _column(kwargs, n, MALFORMED)
    groups: dict[str, int] = {}
    sizes: Counter[int] = Counter()
    batch = []
    for i, text in enumerate(texts):
        prompt = prompts[i]  # type: ignore[index]  # checked above
        group = groups.setdefault(prompt_key(prompt), len(groups))
        try:
            completion = Completion(
                prompt,
                text,
                completion_ids=None if ids is None else ids[i],
                node=None if nodes[i] is None else str(nodes[i]),
                group=group,
                round=rounds[i] if rounds else step if isinstance(step, int) else None,
                slot=slots[i] if slots else sizes[group],
                reference=references[i] if isinstance(references[i], str) else None,
                task=tasks[i] if isinstance(tasks[i], str) else None,
                metadata={MALFORMED: malformed[i]} if isinstance(malformed[i], str) else {},
            )
        except CompletionError as error:
            error.add_note(f"in row {i} of the batch")
            raise
        batch.append(_with_prompt_ids(completion, prompt_ids[i]))
        sizes[group] += 1
    return batch


def tokenizer_of(trainer: Any) -> Any:
    """A trainer's tokenizer, of a processor the one in it; None where there is none."""
    processing = getattr(trainer, "processing_class", None)
    return getattr(processing, "tokenizer", processing)


def counts_slots(kwargs: Mapping[str, Any]) -> bool:
    """Whether slots are this process's own count of a group's rows, for want of a column."""
    return not _integers(kwargs, len(kwargs["completions"]), "slot")


def prompt_key(prompt: Any) -> str:
    """What two rows of one group have in common.

    An image is known by what it shows: each row of a group has an object of its own, and its `repr`
    would put each row into a group of its own.
    """
    return prompt if isinstance(prompt, str) else repr(_plain(prompt, depth=8))


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, str | int | float) or not depth:
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(part, depth - 1) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part, depth - 1) for part in value]
    if callable(getattr(value, "tobytes", None)):  # PIL's images and arrays
        digest = hashlib.sha256(value.tobytes()).hexdigest()
        return [type(value).__name__, str(getattr(value, "size", "")), digest]
    return repr(value)


def _with_prompt_ids(completion: Completion, prompt_ids: Any) -> Completion:
    try:
        return replace(completion, prompt_ids=prompt_ids)
    except CompletionError:
        return completion  # without them the verifier tokenises the prompt itself


def _column(kwargs: Mapping[str, Any], n: int, *names: str) -> Sequence[Any]:
    for name in names:
        values = kwargs.get(name)
        if isinstance(values, list | tuple) and len(values) == n:
            return values
    return [None] * n


def _integers(kwargs: Mapping[str, Any], n: int, name: str) -> list[int | None]:
    """A column of whole numbers, None where a row has none; empty where there is no column."""
    values = kwargs.get(name)
    if not isinstance(values, list | tuple) or len(values) != n:
        return []
    # A sender may have chosen them: Python refuses to print a number of 5,000 digits, and the
    # exception would cost all others of the batch their verdicts.
    return [
        int(value) if isinstance(value, Integral) and _is_int64(value) else None for value in values
    ]


def _is_int64(value: Any) -> bool:
    return not isinstance(value, bool) and -(2**63) <= value < 2**63


def _texts(completions: Sequence[Any], ids: Sequence[Any] | None, tokenizer: Any) -> list[Any]:
    """What each completion says.

    Where the tokenizer takes answers apart (``response_template``), what does not fit their form is
    in no message, yet trained on: words before a first "<think>", or beside the parameters of a
    call. An answer of one message is then read off its tokens; of several, tokens are tools' too.
    """
    forms = ("response_template", "response_schema")
    if ids is None or all(getattr(tokenizer, form, None) is None for form in forms):
        return [_text(completion) for completion in completions]
    return [
        tokenizer.decode(row, skip_special_tokens=True)
        if isinstance(completion, list) and len(completion) == 1
        else _text(completion)
        for completion, row in zip(completions, ids, strict=True)
    ]


def _text(completion: Any) -> Any:
    """A completion's text; of a conversation, all that the assistant's messages say."""
    if isinstance(completion, str):
        return completion
    messages = [completion] if isinstance(completion, Mapping) else completion
    if not isinstance(messages, list | tuple):
        return completion  # Completion says what is wrong with it
    parts: list[str] = []
    for message in messages:
        if isinstance(message, Mapping) and message.get("role") == "assistant":
            # A chat template may have split thoughts and calls of tools off. They are trained on
            # like the rest, so poison put there must not pass unread.
            for key in ("reasoning_content", "reasoning", "thinking", "content"):
                parts += _strings(message.get(key))
            parts += [f"\n{words}" for words in _called(message.get("tool_calls"))]
    return "".join(parts)


def _called(calls: Any) -> list[str]:
    """Names and arguments of tool calls, without the words that every call has.

    As they stand, not as JSON: its escapes would hide line breaks, and code with them. No
    recursion, since a sender decides how deep arguments are nested.
    """
    words: list[str] = []
    pending = [calls]
    while pending:
        part = pending.pop()
        if isinstance(part, Mapping):
            for key, value in reversed(list(part.items())):
                if key != "type" or value != "function":
                    pending += [value, None if key in _KEYS_OF_CALLS else key]
        elif isinstance(part, list | tuple):
            pending += reversed(part)
        elif isinstance(part, str | float) or (isinstance(part, int) and _is_int64(part)):
            words.append(str(part))
    return words


def _strings(content: Any) -> list[str]:
    """Content is a string, None, or a list of parts of which some have text."""
    parts = content if isinstance(content, list | tuple) else [content]
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    return [text for text in texts if isinstance(text, str)]
