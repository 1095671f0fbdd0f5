"""TRL: read the batch from the keywords that a reward function is called with."""

import logging
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

from grpo_guard.adapters.received import Row, read, received
from grpo_guard.adapters.sequences import mask_from, masked_in, spans_given, transcript
from grpo_guard.core.detokenizer import Detokenizer, special_ids
from grpo_guard.core.given import Given
from grpo_guard.core.prompts import MAX_PROMPT_PARTS, prompt_key
from grpo_guard.nodes.identity.envelope import ENVELOPE
from grpo_guard.nodes.identity.gate import ADMITTED

logger = logging.getLogger("grpo_guard")
MALFORMED: Final = "guard_malformed"
"""The column in which `peer_rollouts` records a row's problem, or None."""
AUTHENTICATED: Final = "guard_authenticated"
"""The column in which `peer_rollouts` marks, with `Checked`, rows that their ``node`` signed."""

MASK: Final = "guard_mask"
"""The column with a row's training mask: 1 if its author wrote the token."""


_SENDERS: Final = frozenset(
    {"node_id", "node_name", "nodes", "peer_id", "peers", "sender", "worker", "worker_id", "client"}
)
"""Columns that name a sender in other software. They are not read, because a data set might use
these names for something else."""


@cache
def _warn_of_column(name: str) -> None:
    logger.warning(
        "the column %r is not read: the guard expects each completion's sender in a column 'node'; "
        "if it holds that, rename it: dataset.rename_column(%r, 'node')",
        name, name,
    )  # fmt: skip


class Checked:
    """Marks a row in the column `AUTHENTICATED`. Neither a data set nor JSON from a peer can
    contain this object. It can be pickled, because TRL sends rows to other ranks."""


_KEYS_OF_CALLS: Final = ("id", "type", "function", "name", "arguments")


def rows_from(
    kwargs: Mapping[str, Any], *, tokenizer: Any = None, trainer: Any = None
) -> list[Row]:
    """Read the batch from TRL's keywords, in the trainer's order.

    Columns that are used if present: ``node`` or ``peer``; ``answer``, ``solution`` or
    ``ground_truth``; ``task``; ``round``; ``slot``; ``prompt_ids``, your own tokenisation of the
    prompt, because whoever chooses the prompt decides which completion looks likely after it. A
    ``round`` or ``slot`` that is not an integer becomes None and is not replaced with this
    function's own count: a sender who omits it must not get a slot. Rows that `peer_rollouts` could
    not pass on (column `MALFORMED`) and invalid completions are rejected. In messages with images
    only the text is judged, though the images still distinguish groups.

    A column `MASK` marks the tokens of tool results. The text of a row with a mask is decoded from
    its tokens; without the column, the text consists of the assistant's messages, and has no tokens
    to score. If a row has a node, or comes from an unknown peer, its mask is the sender's claim,
    even if the trainer uses the mask; its text is decoded from its ids, with all special tokens
    except one that closes it, and ids that would not appear in this text are malformed. Without a
    tokenizer, the guard decodes the ids.

    Raises ValueError if prompts, completions and completion_ids differ in length.
    """
    n = len(kwargs["completions"])
    prompts, ids = _one_per_completion(kwargs, n)
    labels = _labels(kwargs, n)
    malformed, masks = _column(kwargs, n, MALFORMED), _column(kwargs, n, MASK)
    # Only `peer_rollouts` sets this; its rows are never the trainer's own, even without a node.
    from_peers = bool(_present(kwargs, n, MALFORMED))
    longest, ends = getattr(trainer, "max_completion_length", None), ends_of(trainer)
    theirs_in = _detokenizer(tokenizer, from_peers, ends)
    batch: list[Row] = []
    for i, completion in enumerate(kwargs["completions"]):
        row_ids, theirs = (
            None if ids is None else ids[i],
            from_peers or labels[i]["node"] is not None,
        )
        # A sender's completion is decoded from its ids, because TRL's own text omits some of them.
        detokenizer = theirs_in if theirs and row_ids is not None else None
        text, given = _text_and_given(completion, row_ids, masks[i], detokenizer, tokenizer)
        row = received(
            prompts[i],
            text,
            malformed=malformed[i] or _uneven(masks[i], row_ids),
            detokenizer=detokenizer,
            # TRL's text shows everything that `peer_rollouts` accepts, even without a tokenizer.
            decoded=from_peers or not theirs,
            given=given,
            completion_ids=row_ids,
            **labels[i],
            finish_reason="length" if read(_cut_off, row_ids, longest, ends) is True else None,
        )
        batch.append(row)
    keys = [prompt_key(row.completion.prompt) for row in batch]
    return numbered(batch, keys, counted=counts_slots(kwargs))


def _labels(kwargs: Mapping[str, Any], n: int) -> list[dict[str, Any]]:
    """The column values of each completion, as fields of `Completion`, [n]."""
    if not {"node", "peer"} & kwargs.keys():
        for name in sorted(_SENDERS & kwargs.keys()):
            _warn_of_column(name)
    step = getattr(kwargs.get("trainer_state"), "global_step", None)
    columns = {
        "prompt_ids": _column(kwargs, n, "prompt_ids"),  # None: the verifier tokenises the prompt
        "node": _column(kwargs, n, "node", "peer"),
        "round": _present(kwargs, n, "round") or [step] * n,
        "slot": _column(kwargs, n, "slot"),
        "reference": _column(kwargs, n, "answer", "solution", "ground_truth"),
        "task": _column(kwargs, n, "task"),
        "metadata": [
            {ENVELOPE: ADMITTED} if type(checked) is Checked else {}
            for checked in _column(kwargs, n, AUTHENTICATED)
        ],
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _detokenizer(tokenizer: Any, from_peers: bool, ends: Any) -> Detokenizer | None:
    if tokenizer is None:
        return None
    # `peer_rollouts` has already refused all other special tokens.
    special = special_ids(tokenizer) if from_peers else ()
    return Detokenizer.of(tokenizer, special=special, ends=ends)


def _uneven(mask: Any, ids: Any) -> str | None:
    """Describe the problem if the lengths of a mask and its ids differ; None if they match. If such
    a mask were read as far as it goes, the tokens it marks here could differ from those it marks
    after the trainer's padding."""
    if not isinstance(mask, list | tuple) or ids is None or len(mask) == len(ids):
        return None
    return f"mask: expected {len(ids)}, one per token, got {len(mask)}"


def _one_per_completion(kwargs: Mapping[str, Any], n: int) -> tuple[Any, Any]:
    """A batch's prompts and token ids (or None), after checking that there is one of each per
    completion."""
    prompts, ids = kwargs.get("prompts"), kwargs.get("completion_ids")
    for name, values in (("prompts", prompts), ("completion_ids", ids)):
        if (values is None and name == "prompts") or (values is not None and len(values) != n):
            got = "nothing" if values is None else len(values)
            raise ValueError(f"{name}: expected {n}, one per completion, got {got}")
    return prompts, ids


def numbered(rows: Sequence[Row], keys: Sequence[Hashable], *, counted: bool) -> list[Row]:
    """Set each row's group, a number for its key, and, if ``counted``, its slot in the group."""
    groups: dict[Hashable, int] = {}
    sizes: Counter[int] = Counter()
    placed: list[Row] = []
    for row, key in zip(rows, keys, strict=True):
        group = groups.setdefault(key, len(groups))
        slot = sizes[group] if counted else row.completion.slot
        placed.append(replace(row, completion=row.completion.with_labels(group=group, slot=slot)))
        sizes[group] += 1
    return placed


def _text_and_given(
    completion: Any, ids: Any, mask: Any, theirs_in: Detokenizer | None, tokenizer: Any
) -> Any:
    """A row's text, and the given spans in it; the text of several turns is decoded from all
    tokens. For a row from another node only the spans are read: `received` decodes its text from
    the ids."""
    drawn = None if mask is None or ids is None else read(lambda: mask_from(mask, len(ids)))
    if not isinstance(drawn, list | None):
        return drawn, None  # an invalid mask makes its row malformed
    whole = drawn is None or 0 not in drawn
    if theirs_in is not None:
        given = None if whole else read(masked_in, drawn, len(ids))
        return ("", given) if isinstance(given, Given | None) else (given, None)
    if whole:
        return read(_text, completion, ids, tokenizer), None
    several = read(_turns, ids, drawn, tokenizer)
    return several if isinstance(several, tuple) else (several, None)


def tokenizer_of(trainer: Any) -> Any:
    """A trainer's tokenizer, or the one inside its processor, or None."""
    processing = getattr(trainer, "processing_class", None)
    return getattr(processing, "tokenizer", processing)


def ends_of(trainer: Any) -> frozenset[int]:
    """The token ids that end a completion in TRL. Releases of TRL store them in different places,
    and some models have several."""
    own = getattr(tokenizer_of(trainer), "eos_token_id", None)
    configured = getattr(getattr(trainer, "generation_config", None), "eos_token_id", None)
    several = [*(getattr(trainer, "eos_token_ids", None) or ())]
    several += configured if isinstance(configured, list | tuple) else [configured]
    return frozenset(int(end) for end in (own, *several) if end is not None)


def _cut_off(ids: Any, longest: int | None, ends: frozenset[int]) -> bool:
    return bool(longest and ends and ids and len(ids) >= longest and ids[-1] not in ends)


def counts_slots(kwargs: Mapping[str, Any]) -> bool:
    """Whether slots are counted by this process, row by row within a group, because there is no
    column ``slot``."""
    return not _present(kwargs, len(kwargs["completions"]), "slot")


def _column(kwargs: Mapping[str, Any], n: int, *names: str) -> Sequence[Any]:
    """The first of these columns that exists, or a list of None if none does."""
    return next((values for name in names if (values := _present(kwargs, n, name))), [None] * n)


def _present(kwargs: Mapping[str, Any], n: int, name: str) -> Sequence[Any]:
    """A column, possibly an array, as a list with one value per row; empty if there is no such
    column."""
    values = kwargs.get(name)
    if not isinstance(values, list | tuple) and getattr(values, "ndim", None) != 1:
        return []
    return list(values) if len(values) == n else []  # type: ignore[arg-type]


def _text(completion: Any, ids: Any, tokenizer: Any) -> Any:
    """The text of a completion; for a conversation, the text of all the assistant's messages.

    If the tokenizer splits answers (``response_template``), text that does not fit its format is
    missing from the messages but still trained on: words before a first "<think>", or between the
    parameters of a tool call. An answer of one message is then decoded from its tokens; an answer
    of several messages is not, because its tokens include those of the tools.
    """
    forms = ("response_template", "response_schema")
    apart = any(getattr(tokenizer, form, None) is not None for form in forms)
    if ids is not None and apart and isinstance(completion, list) and len(completion) == 1:
        return tokenizer.decode(ids, skip_special_tokens=True)
    if isinstance(completion, str):
        return completion
    messages = [completion] if isinstance(completion, Mapping) else completion
    if not isinstance(messages, list | tuple):
        return completion  # Completion reports the problem
    roles = [message.get("role") for message in messages if isinstance(message, Mapping)]
    if len(roles) < len(messages) or (roles and "assistant" not in roles):
        return completion
    parts: list[str] = []
    for message in messages:
        if message.get("role") == "assistant":
            # A chat template might have split off reasoning and tool calls. They are trained on
            # like the rest, so poison in them must not go unread.
            for key in ("reasoning_content", "reasoning", "thinking", "content"):
                parts += _strings(message.get(key))
            parts += [f"\n{words}" for words in _called(message.get("tool_calls"))]
    return "".join(parts)


def _turns(ids: Any, mask: Any, tokenizer: Any) -> Any:
    given = spans_given(mask, len(ids))
    return transcript(Detokenizer.of(tokenizer), ids, given, theirs=False)


def _called(calls: Any) -> list[str]:
    """Names and arguments of tool calls, without the keys that every call has. Raises ValueError
    for more than `MAX_PROMPT_PARTS` parts, or for a number with more digits than Python prints.

    The values are used as they are, not as JSON, whose escapes would hide line breaks and so code.
    Iterative, because a sender decides how deeply arguments are nested.
    """
    words: list[str] = []
    pending = [calls]
    room = MAX_PROMPT_PARTS
    while pending:
        room -= 1
        if not room:
            raise ValueError("tool calls: too many parts")
        part = pending.pop()
        if isinstance(part, Mapping):
            for key, value in reversed(list(part.items())):
                if key != "type" or value != "function":
                    pending += [value, None if key in _KEYS_OF_CALLS else key]
        elif isinstance(part, list | tuple):
            pending += reversed(part)
        elif isinstance(part, str | int | float) and not isinstance(part, bool):
            words.append(str(part))
    return words


def _strings(content: Any) -> list[str]:
    """The pieces of text in a message's content, which can be a string, None, or a list of
    parts."""
    parts = content if isinstance(content, list | tuple) else [content]
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    return [text for text in texts if isinstance(text, str)]
