"""verl: read a trajectory's completions, as a reward worker receives them.

A trajectory is one DataProto with one or more rows, one for each output of the agent loop, padded
on the right. verl rewards the last row and trains on all of them, so every row is judged. The
response tokens include tool answers, which are marked by the agent-loop hook because it has the
mask.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from grpo_guard.adapters.plain_numbers import log_probs_from
from grpo_guard.adapters.received import Row, as_malformed, claimed, received
from grpo_guard.adapters.sequences import spans_given, transcript
from grpo_guard.core.completion import Completion
from grpo_guard.core.detokenizer import Detokenizer
from grpo_guard.core.given import MAX_SPANS
from grpo_guard.core.verdict import Cause, Verdict, abstain, reject

# Column that the agent-loop hook adds. The agent loop itself cannot set it, so a remote environment
# cannot pass off its output as validation, or claim to have fewer siblings.
HOOK_DATA: Final = "grpo_guard"


@dataclass(frozen=True, slots=True)
class HookData:
    """Facts about a trajectory that only the agent loop's worker knows: the number of trajectories
    for the same prompt; whether it is for validation; each row's training mask, [R], with 1 for the
    model's tokens, and log-probs, [R] or None; whether log-probs were invalid and were replaced
    with zeros; the agent loop's own reward, of any type, which replaces that of the reward
    function; and the training step."""

    siblings: int
    validation: bool = False
    masks: tuple[tuple[int, ...], ...] = ()
    log_probs: tuple[tuple[float, ...] | None, ...] = ()
    unusable: bool = False
    score: Any = None
    step: int | None = None


def hook_data_of(columns: Mapping[str, Any]) -> HookData | None:
    """The facts about a trajectory that the agent-loop hook added; None without the hook."""
    column = columns.get(HOOK_DATA)
    hook_data = None if column is None or not len(column) else column[-1]
    return hook_data if isinstance(hook_data, HookData) else None


def last_row(data: Any) -> Any:
    """The part of a trajectory that a reward manager grades: its last output, without padding,
    because verl 0.9.1 counts a response's tokens from the right end of a mask that is padded there,
    and would grade an answer without its end if an earlier output was longer."""
    row = data[-1:]
    extra = row.non_tensor_batch.get("extra_info")
    if extra is not None and isinstance(extra[0], dict):
        # Copied, because siblings can share the dict, and verl writes each agent loop's output into
        # it.
        row.non_tensor_batch["extra_info"] = made = np.empty(1, dtype=object)
        made[0] = dict(extra[0])
    lengths = row.non_tensor_batch.get("response_len")
    if lengths is None:
        return row  # a padded batch: prompts are left-padded, responses right-padded
    response = int(lengths[-1])
    prompt = int(row.non_tensor_batch["prompt_len"][-1])
    row.batch = row.batch.clone(recurse=False)
    row.batch["prompts"] = row.batch["prompts"][:, :prompt]
    row.batch["responses"] = row.batch["responses"][:, :response]
    for name in ("input_ids", "attention_mask"):
        row.batch[name] = row.batch[name][:, : prompt + response]
    return row


def rows_from(
    data: Any, tokenizer: Any, max_tokens: int, *, rejects_unread: bool = False
) -> list[Row]:
    """Return all rows of a trajectory (a reward worker's DataProto) that are trained on, in order.

    verl trains on all tokens of a response, including those after an EOS, and the text that a
    reward function sees omits special tokens. So another node's ids are malformed if they contain
    special tokens other than one closing token per turn. A response of ``max_tokens`` tokens
    without an EOS has ``finish_reason="length"``. With ``rejects_unread``, unreadable trajectories
    are rejected rather than abstained on: the author decides how many turns a trajectory has, and
    if abstentions pass, could make it unreadable to be sure of a reward.
    """
    hook_data = hook_data_of(data.non_tensor_batch)
    turns = data.non_tensor_batch.get("__num_turns__")
    detokenizer = Detokenizer.of(tokenizer)
    rows: list[Row] = []
    # A fresh name, because a name from the agent loop could be a peer's, and siblings share a
    # batch.
    rollout = uuid.uuid4().hex if len(data) > 1 else None
    for i in range(len(data)):
        first, (prompt_ids, all_ids) = _plain(data, i), _ids(data, i)
        mask = hook_data.masks[i] if hook_data else None
        if mask is None and turns is not None and int(turns[i] or 0) > 2:
            rows.append(Row(first, _unread(rejects_unread)))
            continue
        theirs = _node(_columns(data, i)) is not None  # even if the name cannot be read
        # If a mask ends too early, verl trains on nothing after its end.
        drawn = None if mask is None else (*mask, *[0] * (len(all_ids) - len(mask)))
        ids, given = all_ids, spans_given(drawn or (), len(all_ids))
        if given == ((0, len(ids)),):
            if i < len(data) - 1 or rows:
                continue  # the row trains nothing
            ids, given = [], ()
        problem = (
            _uneven(mask, all_ids, max_tokens)
            or _unread_ids(ids, given, len(tokenizer))
            or ("invalid log-probs" if hook_data and hook_data.unusable else None)
            or (detokenizer.problem(ids, given) if theirs else None)
        )
        given = given if len(given) <= MAX_SPANS else ()
        text, among = transcript(detokenizer, ids, given, theirs=theirs)
        # Prompts of later segments do not come from a data set. If an agent loop fetches a peer's
        # turns, the peer also wrote these prompts.
        own = bool(first.prompt) and not i
        completion = replace(
            first,
            prompt=first.prompt if own else tokenizer.decode(prompt_ids),
            prompt_trusted=own or not theirs,
            prompt_ids=tuple(prompt_ids),
            text=text,
            completion_ids=tuple(ids),
            given=among,
            rollout=rollout,
            finish_reason="stop" if _ends(ids, max_tokens, tokenizer) else "length",
            sampler_logprobs=_log_probs(hook_data, i, len(ids)),
        )
        rows.append(Row(completion, as_malformed(problem) if problem else None, decoded=True))
    return rows


def _ends(ids: Sequence[int], max_tokens: int, tokenizer: Any) -> bool:
    return len(ids) < max_tokens or ids[-1:] == [tokenizer.eos_token_id]


def _log_probs(hook_data: HookData | None, i: int, length: int) -> tuple[float, ...] | None:
    """The log-probs of row ``i`` from the hook's data; None if they are missing or invalid."""
    claimed = hook_data.log_probs[i] if hook_data else None
    found = log_probs_from(claimed[:length], length) if isinstance(claimed, tuple) else None
    return None if found is None else tuple(found)


def _ids(data: Any, i: int) -> tuple[list[int], list[int]]:
    """Token ids of a row's prompt and response, without padding."""
    columns, batch = data.non_tensor_batch, data.batch
    prompts, responses = batch["prompts"][i], batch["responses"][i]
    if "response_len" in columns:
        prompt, response = int(columns["prompt_len"][i]), int(columns["response_len"][i])
        return prompts[:prompt].tolist(), responses[:response].tolist()
    mask, width = batch["attention_mask"][i].bool(), len(prompts)
    return prompts[mask[:width]].tolist(), responses[mask[width:]].tolist()


def _unread(rejects: bool) -> Verdict:
    why = "several turns: which tokens are the model's is known to the agent-loop hook only"
    if rejects:
        return reject("verl", Cause.MALFORMED, why)
    return abstain("verl", Cause.UNSUPPORTED, why)


def _uneven(mask: Sequence[int] | None, ids: Sequence[int], max_tokens: int) -> str | None:
    """Describe the problem if a mask is longer than its ids, which makes its positions ambiguous;
    otherwise None. A longer mask is fine if verl has cut off the response at its token limit."""
    if mask is None or len(ids) >= min(len(mask), max_tokens):
        return None
    return f"response_mask: expected {len(ids)}, one per token, got {len(mask)}"


def _unread_ids(
    ids: Sequence[int], given: Sequence[tuple[int, int]], vocabulary: int
) -> str | None:
    """Describe the problem if there are too many turns, or token ids outside the tokenizer's
    vocabulary; otherwise None. Embeddings are padded beyond the vocabulary, so such ids do not fail
    on their own."""
    if len(given) > MAX_SPANS:
        return f"{len(given)} turns, more than the limit {MAX_SPANS}"
    place = next((i for i, token in enumerate(ids) if not 0 <= token < vocabulary), None)
    return None if place is None else f"unknown token id at position {place}"


def _columns(data: Any, i: int) -> dict[str, Any]:
    return {k: v[i] for k, v in data.non_tensor_batch.items() if k != HOOK_DATA and len(v)}


def _plain(data: Any, i: int) -> Completion:
    """A completion with the data set's columns but without text and tokens; an unreadable prompt
    becomes ""."""
    columns = _columns(data, i)
    hook_data = hook_data_of(data.non_tensor_batch)
    return received(
        columns.get("raw_prompt", ""),
        "",
        node=_node(columns),
        group=str(columns.get("uid", "")),
        round=hook_data.step if hook_data else columns.get("global_steps"),
        slot=columns.get("session_id"),
        reference=claimed(columns.get("reward_model"), "ground_truth"),
        task=columns.get("data_source"),
    ).completion


def _node(columns: Mapping[str, Any]) -> Any:
    """The sender of a row according to the data set or, failing that, the agent loop that fetched
    the row."""
    own = claimed(columns.get("extra_info"), "node", "peer")
    return claimed(columns.get("tool_extra_fields"), "node", "peer") if own is None else own
