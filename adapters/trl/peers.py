"""TRL: other nodes' completions as rows of the batch, through `rollout_func` (docs/trl.md).

A guarded trainer whose `rollout_func` is a `PeerRollouts` refuses settings that would trust peers
as soon as it is constructed; with your own `rollout_func` that calls `peer_rollouts`, they are
refused at the first call.

TRL repeats each prompt for every member of its group, and expects one row for each. A row with
token ids outside the model's vocabulary stops the whole run, and TRL cannot represent a completion
that never arrived. Such rows are filled in and marked, and the guard rejects them no matter what
its verifiers make of the filler. Prompts are text; rows with images need your own `rollout_func`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from grpo_guard.adapters.received import received
from grpo_guard.adapters.trl.batch import (
    AUTHENTICATED,
    MALFORMED,
    MASK,
    Checked,
    ends_of,
    tokenizer_of,
)
from grpo_guard.core.completion import Completion, CompletionError, token_ids
from grpo_guard.core.detokenizer import special_ids
from grpo_guard.core.given import Given, Span, between
from grpo_guard.core.prompts import prompt_key
from grpo_guard.core.verdict import Verdict
from grpo_guard.guard.framework import FrameworkError
from grpo_guard.nodes.identity.gate import is_admitted


@dataclass(frozen=True, slots=True)
class Sent:
    """A node's completion for one row of the batch.

    Args:
        node: The sender as you know it (from the connection or a signature), rather than who it
            claims to be; None if unknown.
        completion: Token ids, with an EOS at the end if the completion terminated, optionally
            followed by padding; or text, which counts as terminated. None if nothing arrived.
        slot: Index among the completions that the node owes for this prompt; None if not given.
        refused: The reason why the completion must not be used; None if it may be used.
        admitted: Whether `Identity.admit` has admitted the completion, which a guard with an
            identity requires.
        round: The round that the node signed the completion for, which may be the previous round.
            Defaults to the round given to `peer_rollouts`.
        given: Half-open spans of the ids that contain text of tools and users, which the node
            claims not to have written. TRL masks these spans; the guard trusts them if its
            ``environment`` confirms them. Special tokens may occur within a span, and an EOS before
            it.
    """

    node: str | None
    completion: Sequence[int] | str | None
    slot: int | None = None
    refused: str | None = None
    admitted: bool = False
    round: int | None = None
    given: Sequence[Span] = ()

    @classmethod
    def of(cls, completion: Completion, given: Verdict | None) -> "Sent":
        """Convert a completion from `Identity.admit` and its verdict; the ids are used if known.

            batch, given = identity.admit(received, round=trainer.state.global_step)
            sent = [Sent.of(*one) for one in zip(batch, given)]

        Completions in ``received`` have the row's prompt as TRL gives it, and all other fields as
        signed.
        """
        return cls(
            completion.node,
            completion.completion_ids or completion.text,
            completion.slot,
            refused=None if given is None else given.reason,
            admitted=is_admitted(completion),
            round=completion.round,
            given=() if completion.given is None else completion.given.tokens,
        )


def peer_rollouts(
    prompts: Sequence[Any],
    sent: Sequence[Sent],
    trainer: Any,
    *,
    round: int | None = None,
    special: Collection[int] = (),
) -> dict[str, Any]:
    """Build the result of a `rollout_func`, with columns for the guard.

    Args:
        prompts: The prompts that TRL passes to the `rollout_func`, one per row.
        sent: The peers' completions, one per prompt, in the same order.
        trainer: The trainer, which provides the tokenizer, the vocabulary and
            ``max_completion_length``.
        round: The swarm's round. Defaults to the trainer's step.
        special: Ids of special tokens that a completion may contain, for models that use them to
            think. Other special tokens are refused, except an EOS at the end: they do not appear in
            the text that rewards and verifiers read, but TRL trains on them.

    Returns:
        ``prompt_ids``, ``completion_ids`` and ``logprobs`` (None, because peers' claims are not
        used), and the columns ``node``, ``round``, ``slot``, `MALFORMED` and `AUTHENTICATED`; if
        spans are given, also ``env_mask`` and `MASK`.

    Raises:
        ValueError: there is not exactly one completion per prompt.
        FrameworkError: the trainer has tools, which it would run on peers' behalf, or it weights
            rows by the sampler's log-probs, which only peers could supply.
    """
    if len(sent) != len(prompts):
        raise ValueError(f"sent: expected {len(prompts)}, one per prompt, got {len(sent)}")
    refuse_what_peers_could_use(trainer)
    tokenizer = tokenizer_of(trainer)
    allowed = _Allowed(
        vocabulary=_vocabulary(trainer.accelerator.unwrap_model(trainer.model).config, tokenizer),
        longest=int(trainer.max_completion_length),
        hidden=frozenset(special_ids(tokenizer) - set(special)) | ends_of(trainer),
        ends=ends_of(trainer),
    )
    rows = [_read(one, tokenizer, allowed) for one in sent]
    claims = [received("", "", node=s.node, round=s.round, slot=s.slot).completion for s in sent]
    keys = [prompt_key(prompt) for prompt in prompts]
    by_key = dict(zip(keys, prompts, strict=True))
    prompt_ids = {key: _prompt_ids(prompt, tokenizer, trainer) for key, prompt in by_key.items()}
    at = trainer.state.global_step if round is None else round
    problems = [problem for _, _, problem in rows]
    return {
        "prompt_ids": [list(prompt_ids[key]) for key in keys],
        "completion_ids": [ids for ids, _, _ in rows],
        **_masks([(ids, given) for ids, given, _ in rows]),
        "logprobs": None,
        "node": [claim.node for claim in claims],
        # Under another round's coin, honest work would look like poison.
        "round": [at if claim.round is None else claim.round for claim in claims],
        # Unusable completions have no slot, so that no coin is checked for the filler.
        "slot": [None if bad else c.slot for c, bad in zip(claims, problems, strict=True)],
        MALFORMED: problems,
        AUTHENTICATED: [Checked() if one.admitted is True else None for one in sent],
    }


@dataclass(frozen=True, slots=True)
class PeerRollouts:
    """A `rollout_func` that takes completions from other nodes.

    Args:
        sent: Called with TRL's prompts and trainer; returns one `Sent` per prompt.
        round: Returns the swarm's round for the trainer. Defaults to the trainer's step.
        special: Ids of special tokens that a completion may contain, see `peer_rollouts`.
    """

    sent: Callable[[Sequence[Any], Any], Sequence[Sent]]
    round: Callable[[Any], int] | None = None
    special: Collection[int] = ()

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Collect the completions for TRL's prompts; raises the same errors as `peer_rollouts`."""
        at = None if self.round is None else self.round(trainer)
        given = self.sent(prompts, trainer)
        return peer_rollouts(prompts, given, trainer, round=at, special=self.special)


@dataclass(frozen=True, slots=True)
class _Allowed:
    """Limits on a row's ids: all must be below ``vocabulary``, there can be at most ``longest`` of
    them, and none may be in ``hidden``, except one of ``ends`` at the end of a turn."""

    vocabulary: int
    longest: int
    hidden: frozenset[int]
    ends: frozenset[int]


def refuse_what_peers_could_use(settings: Any, tools: Any = None) -> None:
    """Raise FrameworkError if a trainer, or the arguments that a trainer will be constructed with,
    would trust claims that only peers could make."""
    if tools or getattr(settings, "tools", None):
        raise FrameworkError(
            "peer_rollouts: the trainer has tools, and TRL would run here what a peer's completion "
            "calls, before any guard reads it; train on peers' completions without tools"
        )
    corrects = getattr(settings, "vllm_importance_sampling_correction", False)
    if getattr(settings, "use_vllm", False) and corrects:
        raise FrameworkError(
            "peer_rollouts: with vllm_importance_sampling_correction TRL needs the sampler's "
            "log-probs of each row, but those of peers are not used; set it to False"
        )


def _vocabulary(config: Any, tokenizer: Any) -> int:
    """The number of ids that both the model and the tokenizer know: embeddings are often padded
    beyond the tokenizer's ids, and ids without text would go unread. The number is read from the
    configuration (of the text part in a multimodal model), because with sharded weights a rank
    might hold no rows of the embedding."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return min(int(text.vocab_size), len(tokenizer))


def _masks(rows: Sequence[tuple[list[int], Sequence[Span]]]) -> dict[str, list[list[int]]]:
    """The columns with the training masks of all rows; empty if no row has given spans."""
    if not any(given for _, given in rows):
        return {}
    masks = []
    for ids, given in rows:
        mask = [1] * len(ids)
        for start, end in given:
            mask[start:end] = [0] * (end - start)
        masks.append(mask)
    return {"env_mask": masks, MASK: masks}


def _read(
    one: Sent, tokenizer: Any, allowed: _Allowed
) -> tuple[list[int], tuple[Span, ...], str | None]:
    """Read a peer's completion as (ids, given spans, problem), even if reading a field raises. Each
    field is read only once, because a generator could yield something else the second time."""
    filler = [int(tokenizer.eos_token_id)]
    if one.refused is not None:
        return filler, (), one.refused if isinstance(one.refused, str) else "refused"
    try:
        given = Given(one.given).tokens  # type: ignore[arg-type]  # Given checks
        ids, problem = _row(one.completion, tokenizer, allowed, given)
    except Exception as error:
        ids, given, problem = filler, (), f"it could not be read: {type(error).__name__}"
    return ids, () if problem else given, problem


def _row(
    completion: Any, tokenizer: Any, allowed: _Allowed, given: Sequence[Span]
) -> tuple[list[int], str | None]:
    """Return ids that TRL can train on, plus the reason if they are filler, or None if they are the
    node's own."""
    filler = [int(tokenizer.eos_token_id)]
    too_long = filler, f"longer than {allowed.longest} tokens"
    if completion is None:
        return filler, "nothing was sent"
    if isinstance(completion, str):
        if given:
            return filler, "given spans are outside its tokens"
        # Most tokenizers need at least one byte per token; far longer text is not worth reading.
        if len(completion) > 64 * allowed.longest:
            return too_long
        # Tokenizers raise on a lone surrogate, which JSON can carry.
        if completion.encode(errors="ignore").decode() != completion:
            return filler, "no valid text"
        completion = [*tokenizer.encode(completion, add_special_tokens=False), *filler]
    tokens = _iterator(completion)
    if tokens is None:
        return filler, "no token ids"
    ids = list(map(_id_of, islice(tokens, allowed.longest + 1)))  # may be endless
    unknown = next((i for i, token in enumerate(ids) if not 0 <= token < allowed.vocabulary), None)
    if unknown is not None:
        return filler, f"unknown token id at position {unknown}"
    if len(ids) > allowed.longest:
        return too_long
    if given and given[-1][1] > len(ids):
        return filler, "given spans are outside its tokens"
    turns = between(given, len(ids))
    last = turns.pop()
    tail, problem = _until_end(ids[slice(*last)], allowed.ends, tokenizer.pad_token_id)
    if given and not tail:
        problem = None  # the completion ends with a tool's text
    ids = ids[: last[0]] + tail
    for start, end in (*turns, (last[0], len(ids))):
        ended = end - 1 if end > start and ids[end - 1] in allowed.ends else end
        place = next((i for i in range(start, ended) if ids[i] in allowed.hidden), None)
        if problem is None and place is not None:
            problem = f"special token at position {place}"
    return (ids, None) if problem is None else (filler, problem)


def _iterator(completion: Any) -> Iterator[Any] | None:
    """An iterator over a completion's tokens, or None if the value is not iterable."""
    if isinstance(completion, bytes | Mapping):
        return None
    try:
        tokens: Iterator[Any] = iter(completion)
    except TypeError:  # a tensor without a dimension has an `__iter__`, which raises
        return None
    return tokens


def _id_of(token: Any) -> int:
    """Convert a token id to an int; -1 for values that merely look like one, such as True, 1.0 and
    "1"."""
    if type(token) is int:
        return token
    try:
        return (token_ids("completion", [token]) or (-1,))[0]
    except CompletionError:
        return -1


def _until_end(
    ids: list[int], ends: Collection[int], pad: int | None
) -> tuple[list[int], str | None]:
    """Return a row's ids without the padding after their end, plus the problem with them, if any.

    TRL trains on all of a row's ids, and verifiers do not read padding: if kept, padding after a
    good answer would teach the model to send padding. The text does not show special tokens, so
    tokens after an EOS must not pass as part of the answer.
    """
    first = next((i for i, token in enumerate(ids) if token in ends), None)
    if first is not None:
        goes_on = any(token != pad and token not in ends for token in ids[first + 1 :])
        return ids[: first + 1], f"continues after its end at position {first}" if goes_on else None
    end = len(ids)
    while end and ids[end - 1] == pad:
        end -= 1
    return ids[:end], None if end else "empty"


def _prompt_ids(prompt: Any, tokenizer: Any, trainer: Any) -> list[int]:
    """Token ids of a prompt as the trainer tokenises it, with the trainer's chat template and
    template arguments."""
    if isinstance(prompt, str):
        return list(tokenizer(text=prompt)["input_ids"])
    rendered = tokenizer.apply_chat_template(
        prompt,
        chat_template=getattr(trainer, "chat_template", None),
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        **(getattr(trainer, "chat_template_kwargs", None) or {}),
    )
    return list(rendered["input_ids"])
