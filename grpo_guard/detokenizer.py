"""Token ids to the text that verifiers read, so that what is judged is what is trained.

A trainer learns ids. A sender that may choose ids and text apart writes a clean text over poisoned
ids. So the text is decoded from the ids, and ids that decoding leaves out are refused: special
tokens inside an answer, padding, and whatever stands behind the token that ends it. One closing
token may stay hidden, since every honest answer has it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, Final

from grpo_guard.completion import Completion
from grpo_guard.given import Given, Span, between, stretches
from grpo_guard.model_paths import missing
from grpo_guard.quoting import shown

# Tokens that end a turn, by name: a model may have several, and its tokenizer names one. Others at
# the end, say <|im_start|>, are the author's.
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
    "or leave completion_ids out where you train on the text"
)


class UnreadableError(ValueError):
    """Ids of which the text would not show everything; the message says which, for a person."""


class Detokenizer:
    """Decodes completions, and refuses ids that the text would not show.

    Args:
        tokenizer: The policy's, or a processor that has it.
        special: Ids of special tokens that an answer may hold, for models that think or call tools
            in such. They are shown in the text. Closing tokens end an answer all the same.
        ends: Closing tokens beside the tokenizer's own and those named in `ENDS`.
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
        # Cleaning would take blanks out that are trained on.
        clean = hasattr(tokenizer, "clean_up_tokenization_spaces")
        self._options = {"clean_up_tokenization_spaces": False} if clean else {}

    @classmethod
    def of(cls, tokenizer: Any, **options: Collection[int]) -> Detokenizer:
        """The detokenizer of a tokenizer, made once; one that is given stays as it is.

        Args:
            tokenizer: One, or a `Detokenizer`.
            **options: ``special`` and ``ends``.
        """
        if isinstance(tokenizer, cls):
            return tokenizer
        if isinstance(tokenizer, str):
            raise TypeError(
                f"tokenizer: expected a tokenizer, got the name {shown(tokenizer)}; write "
                "Detokenizer.from_pretrained(NAME)"
            )
        own = tuple((name, frozenset(ids)) for name, ids in options.items())
        try:
            return _made(tokenizer, len(tokenizer), own)
        except TypeError:  # it has no length, or cannot be remembered
            return cls(tokenizer, **options)

    @classmethod
    def from_pretrained(cls, path_or_id: str, *, special: Collection[str] = ()) -> Detokenizer:
        """The detokenizer of a policy; runs nobody's code.

        Args:
            path_or_id: Folder or id of the tokenizer.
            special: As for the constructor, by name.

        Raises:
            ModuleNotFoundError: transformers is missing; with the command that installs it.
            ValueError: there is no tokenizer, or it has no such token.
        """
        if problem := missing(path_or_id):
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
        """Why a text would not show all of some ids; None where it would.

        Args:
            ids: Of a completion, [n].
            given: Spans of these that are not trained on. Each may have a closing token before it.
        """
        if self.known:
            place = next((i for i, token in enumerate(ids) if token not in self.known), None)
            if place is not None:
                return f"no token of the vocabulary at place {place}"
        for start, end in between(given, len(ids)):
            closed = end > start and ids[end - 1] in self.ends
            said = ids[start : end - closed]
            if not self.hidden.isdisjoint(said):
                place = next(i for i, token in enumerate(said) if token in self.hidden)
                what = "goes on after its end" if said[place] in self.ends else "special token"
                return f"{what} at place {start + place}"
        return None

    def plain(self, ids: Sequence[int]) -> str:
        """The text without special tokens, as trainers show it to reward functions."""
        return self._decode(ids, True)

    def raw(self, ids: Sequence[int]) -> str:
        """The text with all special tokens."""
        return self._decode(ids, False)

    def shown(self, ids: Sequence[int]) -> str:
        """The text with all special tokens but one that closes it."""
        closed = bool(len(ids)) and ids[-1] in self.ends
        return self.raw(ids[:-1] if closed else ids)

    def read(self, completion: Completion, *, claims: bool = False) -> Completion:
        """A completion with the text of its ids, in place of the one that its sender wrote.

        Args:
            completion: With ``completion_ids``.
            claims: Whether somebody asks again what its sender says was given; otherwise a span
                that is neither masked nor known excuses nothing in it.

        Raises:
            UnreadableError: the text would not show all of the ids, or they cannot be decoded.
        """
        ids, given = completion.completion_ids or (), completion.given
        spans = given.tokens if given else ()
        excused = given is not None and (claims or given.masked or given.known)
        if problem := self.problem(ids, spans if excused else ()):
            raise UnreadableError(problem)
        try:
            text, chars = self.turns(ids, spans, hide_given=given is not None and given.known)
        except BaseException as error:  # tokenizers in Rust may panic, which is no Exception
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
        """The text of several turns, and where in it stands what was given.

        Args:
            ids: Of all turns, [n].
            given: Spans of these between turns.
            hide: Leave special tokens out of turns; otherwise all but a closing one are shown.
            hide_given: Leave them out of what was given.
        """
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
            raise TypeError("ids: expected a list")  # another may have no end
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=skip, **self._options))


@lru_cache(maxsize=8)
def _made(
    tokenizer: Any, size: int, options: tuple[tuple[str, frozenset[int]], ...]
) -> Detokenizer:
    """A vocabulary of 150,000 takes a tenth of a second; ``size`` tells when tokens are added."""
    return Detokenizer(tokenizer, **dict(options))


def special_ids(tokenizer: Any) -> set[int]:
    """Special tokens, which decoding leaves out; more are added as special than are listed so."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    listed = getattr(tokenizer, "all_special_ids", ())
    return {*listed, *(i for i, token in added.items() if token.special)}
