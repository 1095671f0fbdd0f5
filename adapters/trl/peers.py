"""TRL: other nodes' completions as the rows of a batch, through `rollout_func`.

    def sent(prompts, trainer):
        turns = [NODES[i % len(NODES)] for i in range(len(prompts))]
        return [Sent(node, receive(node, prompt)) for node, prompt in zip(turns, prompts)]

    GuardedGRPOTrainer(..., rollout_func=PeerRollouts(sent))

A guarded trainer refuses at its construction what would trust peers; a `rollout_func` of one's own
that calls `peer_rollouts` is refused at its first call.

TRL gives each prompt as often as its group has members, and wants one row for each. A row of ids
that the model does not have stops the whole run, and TRL has no place for a completion that never
came. Such rows are filled and marked, and the guard rejects them whatever its verifiers think of
the filler.

Prompts are text; rows with images need a `rollout_func` of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from grpo_guard.completion import Completion
from grpo_guard.detokenizer import special_ids
from grpo_guard.framework import FrameworkError
from grpo_guard.given import Given, Span, between
from grpo_guard.identity.gate import is_admitted
from grpo_guard.prompts import prompt_key
from grpo_guard.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Sent:
    """What a node sent for one row.

    Args:
        node: Who, as you know it (from the connection or a signature), not as the sender says; None
            = nobody knows.
        completion: Token ids, ending with an EOS where it terminated, padding behind that allowed;
            or text, which then counts as terminated; None = nothing came.
        slot: Which of the completions that the node owes for this prompt; None = not said.
        refused: Why it is not to be used; None = it may be.
        admitted: Whether `Identity.admit` has admitted it: what a guard with an identity asks for.
        round: Round that its node signed it for, which may be one that is just over; None = the one
            given to `peer_rollouts`.
        given: Of ids, half-open spans of what tools and users said, which the node claims not to
            have written. TRL masks them; the guard believes them where its ``environment`` says
            the same. Within them special tokens may stand, and before each an EOS.
    """

    node: str | None
    completion: Sequence[int] | str | None
    slot: int | None = None
    refused: str | None = None
    admitted: bool = False
    round: int | None = None
    given: Sequence[Span] = ()

    @classmethod
    def of(cls, completion: Completion, given: Verdict | None) -> Sent:
        """What `Identity.admit` made of a completion, with its ids where it has them.

            batch, given = identity.admit(received, round=trainer.state.global_step)
            sent = [Sent.of(*one) for one in zip(batch, given)]

        ``received`` has the row's prompt as TRL gives it, and all else as its sender signed it.
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
    """What a `rollout_func` returns, with columns for the guard.

    Args:
        prompts: As TRL gives them to the `rollout_func`, one per row.
        sent: One per prompt, in the same order.
        trainer: As TRL gives it; its tokenizer, vocabulary and ``max_completion_length`` count.
        round: The swarm's; None = the trainer's step.
        special: Ids of special tokens that a completion may hold, for models that think in such. No
            others but an EOS at the end: the text that rewards and verifiers read leaves them out,
            and TRL trains on them.

    Returns:
        ``prompt_ids``, ``completion_ids`` and ``logprobs`` (None: what peers claim is not used),
        and the columns ``node``, ``round``, ``slot``, `MALFORMED` and `AUTHENTICATED`; where
        something is given, ``env_mask`` and `MASK` as well.

    Raises:
        ValueError: not one completion per prompt.
        FrameworkError: the trainer has tools, which it would run as peers say, or weighs rows by
            their sampler's log-probs, which only peers could claim.
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
        # Under the coin of another round honest work would look like poison.
        "round": [at if claim.round is None else claim.round for claim in claims],
        # Whoever sent nothing usable holds no slot, so that no coin is asked about the filler.
        "slot": [None if bad else c.slot for c, bad in zip(claims, problems, strict=True)],
        MALFORMED: problems,
        AUTHENTICATED: [Checked() if one.admitted is True else None for one in sent],
    }


@dataclass(frozen=True, slots=True)
class PeerRollouts:
    """A `rollout_func` of what nodes send.

    Args:
        sent: From the prompts and the trainer, as TRL gives them: one `Sent` per prompt.
        round: The swarm's, from the trainer; None = the trainer's step.
        special: As for `peer_rollouts`.
    """

    sent: Callable[[Sequence[Any], Any], Sequence[Sent]]
    round: Callable[[Any], int] | None = None
    special: Collection[int] = ()

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """As TRL calls it; raises as `peer_rollouts`."""
        at = None if self.round is None else self.round(trainer)
        given = self.sent(prompts, trainer)
        return peer_rollouts(prompts, given, trainer, round=at, special=self.special)


@dataclass(frozen=True, slots=True)
class _Allowed:
    """What the ids of a row may be: below ``vocabulary``, at most ``longest``, none ``hidden``."""

    vocabulary: int
    longest: int
    hidden: frozenset[int]
    ends: frozenset[int]


def refuse_what_peers_could_use(settings: Any, tools: Any = None) -> None:
    """Raises FrameworkError where a trainer would believe what only peers could claim.

    Args:
        settings: The trainer, or the arguments that it is about to be made with.
        tools: Beside them.
    """
    if tools or getattr(settings, "tools", None):
        raise FrameworkError(
            "peer_rollouts: the trainer has tools, and TRL would run here what a peer's completion "
            "calls, before any guard sees it; train on peers' completions without tools"
        )
    corrects = getattr(settings, "vllm_importance_sampling_correction", False)
    if getattr(settings, "use_vllm", False) and corrects:
        raise FrameworkError(
            "peer_rollouts: with vllm_importance_sampling_correction TRL needs the sampler's "
            "log-probs of each row, and what peers claim is not used; set it to False"
        )


def _vocabulary(config: Any, tokenizer: Any) -> int:
    """How many ids both the model and the tokenizer know.

    Of the configuration: where weights are sharded, a rank has none of the embedding's rows. A
    multimodal model's has the text model's within it. Embeddings are often padded beyond the
    tokenizer's ids, and what has no text passes unread.
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return min(int(text.vocab_size), len(tokenizer))


def _masks(rows: Sequence[tuple[list[int], Sequence[Span]]]) -> dict[str, list[list[int]]]:
    """The masks that TRL trains by; none where nothing is given."""
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
    """`_row` with what is given, whatever a field does when it is read; each is read once, since a
    generator says something else the second time."""
    filler = [int(tokenizer.eos_token_id)]
    if one.refused is not None:
        return filler, (), one.refused if isinstance(one.refused, str) else "refused"
    try:
        given = Given(one.given).tokens  # type: ignore[arg-type]  # it checks
        ids, problem = _row(one.completion, tokenizer, allowed, given)
    except Exception as error:
        ids, given, problem = filler, (), f"it could not be read: {type(error).__name__}"
    return ids, () if problem else given, problem


def _row(
    completion: Any, tokenizer: Any, allowed: _Allowed, given: Sequence[Span]
) -> tuple[list[int], str | None]:
    """(ids that TRL can train on, why they are not the node's)"""
    filler = [int(tokenizer.eos_token_id)]
    too_long = f"longer than {allowed.longest} tokens"
    if completion is None:
        return filler, "nothing was sent"
    if given and isinstance(completion, str):
        return filler, "what is given stands nowhere in its tokens"
    if isinstance(completion, str):
        # A token has at least one byte in most tokenizers; a text far beyond is not worth reading.
        if len(completion) > 64 * allowed.longest:
            return filler, too_long
        if not completion.isascii() and not _is_unicode(completion):
            return filler, "no valid text"
        completion = [*tokenizer.encode(completion, add_special_tokens=False), *filler]
    tokens = _run(completion)
    if tokens is None:
        return filler, "no token ids"
    ids: list[int] = []
    for token in tokens:
        # Not what merely looks like a number: True, 1.0 and "1" are no ids.
        value = token if type(token) is int else _whole(token)
        if value is None or not 0 <= value < allowed.vocabulary:
            return filler, f"no token of the vocabulary at place {len(ids)}"
        ids.append(value)
        if len(ids) > allowed.longest:
            return filler, too_long
    if given and given[-1][1] > len(ids):
        return filler, "what is given stands nowhere in its tokens"
    turns = between(given, len(ids))
    last = turns.pop()
    tail, problem = _until_end(ids[slice(*last)], allowed.ends, tokenizer.pad_token_id)
    if given and not tail:
        problem = None  # its last word is a tool's
    ids = ids[: last[0]] + tail
    for start, end in (*turns, (last[0], len(ids))):
        ended = end - 1 if end > start and ids[end - 1] in allowed.ends else end
        place = next((i for i in range(start, ended) if ids[i] in allowed.hidden), None)
        if problem is None and place is not None:
            problem = f"special token at place {place}"
    return (ids, None) if problem is None else (filler, problem)


def _run(completion: Any) -> Iterator[Any] | None:
    """One token after the other, None where it is no run of any."""
    if isinstance(completion, bytes | Mapping):
        return None
    try:
        tokens: Iterator[Any] = iter(completion)
    except TypeError:  # a tensor without a dimension has an `__iter__`, which raises
        return None
    return tokens


def _until_end(
    ids: list[int], ends: Collection[int], pad: int | None
) -> tuple[list[int], str | None]:
    """(the row without the padding behind its end, what is wrong with it)

    TRL trains on every id of a row, and verifiers do not look at padding: left in, pads behind a
    good answer would teach the model to send pads. The text does not show special tokens, so that
    what stands behind an EOS must not pass as part of the answer.
    """
    first = next((i for i, token in enumerate(ids) if token in ends), None)
    if first is not None:
        goes_on = any(token != pad and token not in ends for token in ids[first + 1 :])
        return ids[: first + 1], f"goes on after its end at place {first}" if goes_on else None
    end = len(ids)
    while end and ids[end - 1] == pad:
        end -= 1
    return ids[:end], None if end else "empty"


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")  # tokenizers raise on a lone surrogate, which JSON can carry
    except UnicodeEncodeError:
        return False
    return True


def _whole(token: Any) -> int | None:
    """A whole number of NumPy or torch."""
    if isinstance(token, bool | str | bytes | float) or getattr(token, "dtype", None) is None:
        return None
    try:
        value = token.item()
    except (TypeError, ValueError, RuntimeError):
        return None  # more than one number
    return value if type(value) is int else None


def _prompt_ids(prompt: Any, tokenizer: Any, trainer: Any) -> list[int]:
    """As the trainer tokenises it for itself: with its template and the template's arguments."""
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
