"""Decode token ids to the text that verifiers read, so that they judge what is actually trained on.

A trainer learns from ids. A sender that could choose ids and text separately could hide poisoned
ids behind clean text. So the text is decoded from the ids, and ids that decoding would hide are
refused: special tokens inside an answer, padding, and anything after the token that ends the
answer. One closing token may stay hidden, because every honest answer has one.
"""

from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, Final

from grpo_guard.core.completion import Completion
from grpo_guard.core.given import Given, Span, between, stretches
from grpo_guard.core.model_paths import missing, unreached
from grpo_guard.core.quoting import shown

# Names of tokens that end a turn: a model can have several, but its tokenizer declares only one.
# Any other special token at the end, such as <|im_start|>, counts as part of the answer.
ENDS: Final = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|end_of_turn|>",
    "<|endofturn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|role_end|>",
    "<end_of_turn>",
    "<turn|>",
    "<eos>",
    "</s>",
    "<｜end▁of▁sentence｜>",
    "<|end_of_sentence|>",
    "[|endofturn|]",
    "[EOS]",
)
REMEDY: Final = (
    "give the guard the policy's tokenizer, Guard(tokenizer=...) or tokenizer: in the guard file, "
    "or leave completion_ids out if you train on the text"
)


class UnreadableError(ValueError):
    """The decoded text would not show all ids, or decoding failed; the message says why."""


class Detokenizer:
    """Decodes completions and refuses ids that would not show up in the text.

    Args:
        tokenizer: The policy's tokenizer, or a processor that contains it.
        special: Ids of special tokens that an answer may contain, for models that use them to think
            or call tools. They appear in the text. Closing tokens still end an answer.
        ends: Ids of closing tokens, in addition to the tokenizer's own and those named in `ENDS`.
    """

    def __init__(
        self, tokenizer: Any, *, special: Collection[int] = (), ends: Collection[int] = ()
    ) -> None:
        self.tokenizer = tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        own = getattr(tokenizer, "get_vocab", None)
        vocabulary: dict[str, int] = {} if own is None else own()
        eos = getattr(tokenizer, "eos_token_id", None)
        hidden = special_ids(tokenizer)
        named = {i for name in ENDS if (i := vocabulary.get(name)) in hidden and i is not None}
        size = len(tokenizer) if hasattr(tokenizer, "__len__") else 0
        self.known: Collection[int] = frozenset(vocabulary.values()) or range(size)
        own_ends = eos if isinstance(eos, list) else [eos]
        self.ends = frozenset(named | {*ends} | {i for i in own_ends if i is not None})
        self.hidden = frozenset(hidden - set(special)) | self.ends
        # Clean-up would remove spaces that the model is trained on.
        clean = hasattr(tokenizer, "clean_up_tokenization_spaces")
        self._options = {"clean_up_tokenization_spaces": False} if clean else {}

    @classmethod
    def of(cls, tokenizer: Any, **options: Collection[int]) -> "Detokenizer":
        """Return the cached detokenizer for a tokenizer; a `Detokenizer` is returned unchanged."""
        if isinstance(tokenizer, cls):
            return tokenizer
        if isinstance(tokenizer, str):
            raise TypeError(
                f"tokenizer: expected a tokenizer, got the name {shown(tokenizer)}; write "
                "Detokenizer.from_pretrained(NAME)"
            )
        inner = getattr(tokenizer, "tokenizer", tokenizer)  # a processor contains one
        if isinstance(tokenizer, type) or not callable(getattr(inner, "decode", None)):
            raise TypeError(f"tokenizer: expected a tokenizer, got {shown(tokenizer)}")
        own = tuple((name, frozenset(ids)) for name, ids in options.items())
        try:
            return _made(tokenizer, len(tokenizer), own)
        except TypeError:  # the tokenizer has no length or is not hashable
            return cls(tokenizer, **options)

    @classmethod
    def from_pretrained(cls, path_or_id: str, *, special: Collection[str] = ()) -> "Detokenizer":
        """Load a policy's tokenizer without running code from the hub.

        Args:
            path_or_id: Folder or hub id of the tokenizer.
            special: Names of special tokens that an answer may contain; see the constructor.

        Raises:
            ModuleNotFoundError: transformers is missing; the message names the install command.
            ValueError: there is no such tokenizer, or it lacks a token named in ``special``.
        """
        if problem := missing(path_or_id) or unreached(path_or_id):
            raise ValueError(f"{path_or_id}: {problem.replace('model', 'tokenizer', 1)}")
        try:
            from transformers import AutoTokenizer
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "expected transformers, got none; pip install 'grpo-guard[torch]'"
            ) from None
        try:
            tokenizer = AutoTokenizer.from_pretrained(path_or_id)
        except (OSError, ValueError) as error:
            why = str(error).strip().partition("\n")[0]
            raise ValueError(
                f"expected a tokenizer's folder or id, got {path_or_id!r}: {why:.300}"
            ) from None
        vocabulary = tokenizer.get_vocab()
        if unknown := [name for name in special if name not in vocabulary]:
            raise ValueError(f"special: expected tokens of {path_or_id}, got {unknown[0]!r}")
        return cls(tokenizer, special=[vocabulary[name] for name in special])

    def problem(self, ids: Sequence[int], given: Sequence[Span] = ()) -> str | None:
        """Explain why the text would not show all of a completion's ids, [n]; None if it would. A
        closing token may precede each of the ``given`` spans of ids, which are not trained on."""
        if self.known:
            place = next((i for i, token in enumerate(ids) if token not in self.known), None)
            if place is not None:
                return f"unknown token id at position {place}"
        for start, end in between(given, len(ids)):
            closed = end > start and ids[end - 1] in self.ends
            turn = ids[start : end - closed]
            if not self.hidden.isdisjoint(turn):
                place = next(i for i, token in enumerate(turn) if token in self.hidden)
                what = "continues after its end" if turn[place] in self.ends else "special token"
                return f"{what} at position {start + place}"
        return None

    def plain(self, ids: Sequence[int]) -> str:
        """Decode ids without special tokens, as trainers show the text to reward functions."""
        return self._decode(ids, True)

    def raw(self, ids: Sequence[int]) -> str:
        """Decode ids with all special tokens."""
        return self._decode(ids, False)

    def shown(self, ids: Sequence[int]) -> str:
        """Decode ids with all special tokens, except for a closing token at the end."""
        closed = bool(len(ids)) and ids[-1] in self.ends
        return self.raw(ids[:-1] if closed else ids)

    def read(self, completion: Completion, *, claims: bool = False) -> Completion:
        """Return a copy of a completion with its text decoded from its ids. Raises UnreadableError
        if the text would not show all of the ids, or the ids cannot be decoded.

        Args:
            completion: A completion with ``completion_ids``.
            claims: Whether the environment will check the given spans claimed by the sender. If
                not, special tokens inside given spans are excused only if the spans are masked or
                known.
        """
        ids, given = completion.completion_ids or (), completion.given
        spans = given.tokens if given else ()
        excused = given is not None and (claims or given.masked or given.known)
        if problem := self.problem(ids, spans if excused else ()):
            raise UnreadableError(problem)
        try:
            text, chars = self.turns(ids, spans, hide_given=given is not None and given.known)
        except BaseException as error:  # a panic in a Rust tokenizer is not an Exception
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise UnreadableError(f"it could not be decoded: {type(error).__name__}") from error
        if given is None:
            return completion.with_labels(text=text)
        placed = Given(spans, chars, given.masked, given.known)
        return completion.with_labels(text=text, given=placed)

    def turns(
        self,
        ids: Sequence[int],
        given: Sequence[Span],
        *,
        hide: bool = False,
        hide_given: bool = False,
    ) -> tuple[str, tuple[Span, ...]]:
        """Return the text of several turns, whose ids are [n], with the given spans of tokens
        between the author's turns as character offsets into it. Special tokens are shown, except a
        closing token at the end of a turn, but left out of the author's turns with ``hide``, and of
        the given spans with ``hide_given``."""
        parts = []
        for i, (start, end) in enumerate(stretches(given, len(ids))):
            part = ids[start:end]
            if i % 2:
                parts.append(self._decode(part, hide_given))
            else:
                parts.append(self.plain(part) if hide else self.shown(part))
        chars = tuple(pairwise(accumulate(map(len, parts), initial=0)))[1::2]
        return "".join(parts), chars

    def _decode(self, ids: Sequence[int], skip: bool) -> str:
        if not isinstance(ids, list | tuple) and getattr(ids, "ndim", None) != 1:
            raise TypeError("ids: expected a list")  # any other iterable could be endless
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=skip, **self._options))


@lru_cache(maxsize=8)
def _made(
    tokenizer: Any, size: int, options: tuple[tuple[str, frozenset[int]], ...]
) -> Detokenizer:
    """Create a detokenizer, cached because a vocabulary of 150,000 tokens takes 0.1 s to read.

    ``size`` is only part of the cache's key: it changes when tokens are added to the tokenizer.
    """
    return Detokenizer(tokenizer, **dict(options))


def special_ids(tokenizer: Any) -> set[int]:
    """Return the ids of tokens that decoding skips. Tokens can be added as special without being
    listed as such."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    listed = getattr(tokenizer, "all_special_ids", ())
    return {*listed, *(i for i, token in added.items() if token.special)}
