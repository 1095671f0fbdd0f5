"""verl: read a trajectory's completions, as a reward worker receives them.

A trajectory is one DataProto with one or more rows, one for each output of the agent loop, padded
on the right. verl rewards the last and trains on all of them, so each is judged. Tool answers are
among the response tokens; the agent-loop hook, which has the mask, marks them.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from grpo_guard.adapters.plain_numbers import log_probs_from
from grpo_guard.adapters.received import Row, as_malformed, claimed, received
from grpo_guard.adapters.transcript import spans_given, transcript
from grpo_guard.core.completion import Completion
from grpo_guard.core.detokenizer import Detokenizer
from grpo_guard.core.given import MAX_SPANS
from grpo_guard.core.verdict import Cause, Verdict, abstain, reject

# Column that the agent-loop hook adds. The agent loop cannot set it: what a remote environment
# returns cannot claim to be validation, or to be one of fewer siblings.
HOOK_DATA: Final = "grpo_guard"


@dataclass(frozen=True, slots=True)
class HookData:
    """Facts about a trajectory that only the agent loop's worker knows.

    Args:
        siblings: Number of trajectories for its prompt, including this one.
        validation: Nothing is trained on it.
        masks: One per row, [R]: 1 if the model wrote the token.
        log_probs: One per row, [R] or None: from the rollout, natural logarithm.
        unusable: Whether the log-probs were invalid and were replaced by zeros.
        score: The agent loop's own reward, instead of the reward function's; of any type.
        step: Training step.
    """

    siblings: int
    validation: bool = False
    masks: tuple[tuple[int, ...], ...] = ()
    log_probs: tuple[tuple[float, ...] | None, ...] = ()
    unusable: bool = False
    score: Any = None
    step: int | None = None


def hook_data_of(columns: Mapping[str, Any]) -> HookData | None:
    """The hook's facts about a trajectory; None without the hook."""
    column = columns.get(HOOK_DATA)
    hook_data = None if column is None or not len(column) else column[-1]
    return hook_data if isinstance(hook_data, HookData) else None


def last_row(data: Any) -> Any:
    """The trajectory for a reward manager to grade: its last output, without padding. verl 0.9.1
    counts a response's tokens from the right end of a mask that is padded there, and so grades an
    answer without its end if an earlier output was longer."""
    row = data[-1:]
    extra = row.non_tensor_batch.get("extra_info")
    if extra is not None and isinstance(extra[0], dict):
        # Siblings may share it, and verl writes each agent loop's output into it.
        row.non_tensor_batch["extra_info"] = made = np.empty(1, dtype=object)
        made[0] = dict(extra[0])
    lengths = row.non_tensor_batch.get("response_len")
    if lengths is None:
        return row  # a padded batch: prompts to the left, responses to the right
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
    """All rows that a trajectory (a reward worker's DataProto) trains on, in order.

    verl trains on all of a response's tokens, including those after an EOS, and the text that a
    reward function sees omits special tokens. So another node's ids with any except one closing
    token per turn are malformed. A response of ``max_tokens`` without an EOS has
    ``finish_reason="length"``. ``rejects_unread`` rejects what cannot be read instead of
    abstaining: the author decides how many turns a trajectory has, and if abstentions pass, that
    would be a reward at will.
    """
    hook_data = hook_data_of(data.non_tensor_batch)
    turns = data.non_tensor_batch.get("__num_turns__")
    detokenizer = Detokenizer.of(tokenizer)
    rows: list[Row] = []
    # Not a name from the agent loop, which may be a peer's: siblings are judged in one batch.
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
                continue  # it trains nothing
            ids, given = [], ()
        problem = (
            _uneven(mask, all_ids, max_tokens)
            or _unread_ids(ids, given, len(tokenizer))
            or ("invalid log-probs" if hook_data and hook_data.unusable else None)
            or (detokenizer.problem(ids, given) if theirs else None)
        )
        given = given if len(given) <= MAX_SPANS else ()
        text, among = transcript(detokenizer, ids, given, theirs=theirs)
        # Later segments of a trajectory have prompts that no data set has; an agent loop that
        # fetches a peer's turns has the prompt from there, too.
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
    """A row's log-probs, if they are valid: verl's own come from the hook, which has checked."""
    claimed = hook_data.log_probs[i] if hook_data else None
    found = log_probs_from(claimed[:length], length) if isinstance(claimed, tuple) else None
    return None if found is None else tuple(found)


def _ids(data: Any, i: int) -> tuple[list[int], list[int]]:
    """A row's prompt and response without padding."""
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
    """The problem with a mask that is longer than its ids, so that its positions are ambiguous. If
    verl cut off a response at its limit, the mask may be complete."""
    if mask is None or len(ids) >= min(len(mask), max_tokens):
        return None
    return f"response_mask: expected {len(ids)}, one per token, got {len(mask)}"


def _unread_ids(
    ids: Sequence[int], given: Sequence[tuple[int, int]], vocabulary: int
) -> str | None:
    """The problem with too many turns, or with ids without text: embeddings are padded beyond the
    tokenizer's ids."""
    if len(given) > MAX_SPANS:
        return f"{len(given)} turns, more than the limit {MAX_SPANS}"
    place = next((i for i, token in enumerate(ids) if not 0 <= token < vocabulary), None)
    return None if place is None else f"no token of the vocabulary at place {place}"


def _columns(data: Any, i: int) -> dict[str, Any]:
    return {k: v[i] for k, v in data.non_tensor_batch.items() if k != HOOK_DATA and len(v)}


def _plain(data: Any, i: int) -> Completion:
    """A completion from the data set's columns, without tokens; an unreadable prompt is ""."""
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
    """The sender according to the data set, else according to the agent loop that fetched it."""
    own = claimed(columns.get("extra_info"), "node", "peer")
    return claimed(columns.get("tool_extra_fields"), "node", "peer") if own is None else own
