"""Turn a completion into the token ids to score, and refuse anything its author could have faked.

Nothing sent by a peer is taken on trust: ids must be in the vocabulary, decode to the text the
reward sees, stop at EOS, and follow the prompt that was actually given, not one of the author's
choosing.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from grpo_guard.core.completion import Completion
from grpo_guard.core.detokenizer import Detokenizer
from grpo_guard.core.given import Given, Span, between, stretches
from grpo_guard.core.sampling import SamplingSpec
from grpo_guard.core.verdict import Cause
from grpo_guard.logprob.encoded import Encoded, EncodeError, malformed

__all__ = ["EncodeError", "Encoded", "Encoder"]


class Encoder:
    """Checks completions and turns them into ids, for one tokenizer and one declared sampler.

    Args:
        tokenizer: A transformers tokenizer.
        sampling: The declared sampler.
        vocab_size: Number of rows in the model's embedding.
        window: Maximum sequence length of the model, in tokens, or None if unknown.

    The other options are the same as for `LogProbVerifier`.
    """

    def __init__(
        self,
        tokenizer: Any,
        sampling: SamplingSpec,
        *,
        vocab_size: int,
        window: int | None = None,
        trust_prompt_ids: bool = False,
        require_ids: bool = False,
        check_text: bool = True,
        check_end: bool = True,
        special: Collection[int] = (),
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.sampling = sampling
        self.window = window
        self.trust_prompt_ids = trust_prompt_ids
        self.require_ids = require_ids
        self.check_text, self.check_end = check_text, check_end
        self.chat_template_kwargs = dict(chat_template_kwargs or {})
        self._last_prompt: tuple[str | None, list[tuple[int, ...]]] = (None, [])
        vocabulary = tokenizer.get_vocab()
        self.known_ids = frozenset(i for i in vocabulary.values() if i < vocab_size)
        self.longest_token = max(map(len, vocabulary))
        self.eos_ids = frozenset(
            sampling.eos_token_ids
            or ([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id])
        )
        self.detokenizer = Detokenizer(tokenizer, special=special, ends=self.eos_ids)

    def encode(self, completion: Completion) -> Encoded:
        """Encode a completion; raises EncodeError with MALFORMED or OVERLONG if the author is to
        blame, or UNSUPPORTED if it cannot be scored through no fault of its author."""
        # Lone surrogates pass json.loads but crash tokenizers; only the author can have sent them.
        _require_utf8("text", completion.text)
        from_text = completion.completion_ids is None
        context = completion.context or Given()
        if from_text:
            ids, given = self._from_text(completion.text, context.chars)
        else:
            ids, given = self._checked_ids(completion, context)
        if sum(end - start for start, end in given) == len(ids):
            raise malformed("all of its tokens are given: none was sampled")
        prompt_ids = self._prompt_ids(completion)
        if self.window is not None and len(prompt_ids) >= self.window:
            raise EncodeError(
                Cause.UNSUPPORTED,
                f"the prompt has {len(prompt_ids)} tokens, the model's window {self.window}",
            )
        length = len(prompt_ids) + len(ids)
        if self.window is not None and length > self.window:
            raise EncodeError(
                Cause.OVERLONG,
                f"prompt and completion have {length} tokens, the model's window {self.window}",
            )
        if self.check_end and not from_text:
            self._require_end(completion.finish_reason, len(prompt_ids), ids, given)
        return Encoded(prompt_ids, ids, from_text, given=given, author=completion.node)

    def char_span(
        self, completion: Completion, encoded: Encoded, start: int, end: int
    ) -> tuple[int, int] | None:
        """Locate tokens [start, end) in ``completion.text``; None if they produce no text."""
        whole = encoded.whole or encoded
        if whole.given:
            return self._span_in_turns(completion, whole, *encoded.span(start, end))
        ids, text = list(encoded.completion_ids), completion.text
        for skip_special in (True, False):
            decoded = self._decode(ids, skip_special)
            if decoded.strip() == text.strip():
                break
        shift = (len(text) - len(text.lstrip())) - (len(decoded) - len(decoded.lstrip()))
        first, last = (
            min(max(len(self._decode(ids[:i], skip_special)) + shift, 0), len(text))
            for i in (start, end)
        )
        return (first, last) if first < last else None

    def _span_in_turns(
        self, completion: Completion, encoded: Encoded, start: int, end: int
    ) -> Span | None:
        chars = completion.context.chars if completion.context else ()
        places = []
        for token in (start, end):
            for tokens, (first, last) in zip(
                stretches(encoded.given, len(encoded.completion_ids)),
                stretches(chars, len(completion.text)),
                strict=False,
            ):
                if tokens[0] <= token <= tokens[1]:
                    before = encoded.completion_ids[tokens[0] : token]
                    places.append(min(first + len(self._decode(before, True)), last))
                    break
        return (places[0], places[1]) if len(places) == 2 and places[0] < places[1] else None

    def _from_text(
        self, text: str, chars: Sequence[Span]
    ) -> tuple[tuple[int, ...], tuple[Span, ...]]:
        if self.require_ids:
            raise malformed("no completion_ids, and this guard requires them")
        if not text:
            raise malformed("the completion is empty")
        # Tokenising is linear, but 100 MB of text does not deserve even a second of work.
        limit = self.sampling.max_new_tokens or self.window
        written = len(text) - sum(end - start for start, end in chars)
        if limit is not None and written > limit * self.longest_token:
            raise EncodeError(
                Cause.OVERLONG, f"{written} characters cannot be {limit} tokens or fewer"
            )
        parts: list[list[int]] = [
            self.tokenizer(text[a:b], add_special_tokens=False, verbose=False)["input_ids"]
            for a, b in stretches(chars, len(text))
        ]
        given = tuple(pairwise(accumulate(map(len, parts), initial=0)))[1::2]
        ids = tuple(token for part in parts for token in part)
        if not ids:
            raise malformed("the text has no tokens")
        # The text can spell out a token that was added to the tokenizer but not to the model.
        self._require_known("text", ids)
        # In text, special tokens are visible, so only tokens after an EOS can be smuggled in.
        for start, end in between(given, len(ids)):
            if not self.eos_ids.isdisjoint(ids[start : max(start, end - 1)]):
                raise malformed("the text continues after the end of the sequence")
        self._require_declared_length(ids, given, retokenised=True)
        return ids, given

    def _checked_ids(
        self, completion: Completion, context: Given
    ) -> tuple[tuple[int, ...], tuple[Span, ...]]:
        ids, given = completion.completion_ids or (), context.tokens
        if not ids:
            raise malformed("the completion has no tokens")
        window, declared = self.window, self.sampling.max_new_tokens
        most = max((n for n in (window, declared) if n is not None), default=None)
        drawn = len(ids) - sum(end - start for start, end in given)
        if most is not None and drawn > most:  # before any check that loops over every id
            why = (
                f"max_new_tokens is declared as {most}"
                if most == declared
                else f"the model has {most} positions, its max_position_embeddings"
            )
            raise EncodeError(
                Cause.OVERLONG,
                f"{drawn} completion_ids, but at most {most} are possible: {why}",
            )
        self._require_known("completion_ids", ids)
        # Special tokens inside an answer, padding and anything after an EOS do not show up in the
        # text, but trainers train on them unless they mask them out.
        if problem := self.detokenizer.problem(ids, given):
            raise malformed(
                f"completion_ids: {problem}. If the policy answers in special tokens, pass "
                "special=; remove your own padding",
            )
        self._require_declared_length(ids, given, retokenised=False)
        # The reward reads the text and the update trains on the ids: if they could differ, the text
        # could carry the answer and the ids the poison. If the spans could differ, a rule would
        # skip the poison as tool output while the update trained on it.
        if self.check_text and not self._same(completion.text, ids, given, context):
            turns = ", turn by turn" if given else ""
            raise malformed(
                f"completion_ids do not decode to the text{turns}. If your own trainer renders the "
                "text from the ids (stop strings, reasoning or tool calls taken apart), pass "
                "check_text=False",
            )
        return ids, given

    def _same(
        self, text: str, ids: tuple[int, ...], given: tuple[Span, ...], context: Given
    ) -> bool:
        tokens, parts = between(given, len(ids)), between(context.chars, len(text))
        own = len(tokens) == len(parts) and all(
            any(_same_text(text[a:b], decoded) for decoded in self._decodings(ids[slice(*span)]))
            for span, (a, b) in zip(tokens, parts, strict=True)
        )
        # Masked tokens were decoded by the trainer's adapter. In other given spans, special tokens
        # must match too: the environment reads only the text, and hidden tokens would change what
        # follows.
        return own and (
            context.masked
            or all(
                _same_text(text[a:b], self._decode(ids[start:end], False))
                for (start, end), (a, b) in zip(given, context.chars, strict=True)
            )
        )

    def _decodings(self, ids: tuple[int, ...]) -> Iterator[str]:
        """Yield the texts that honest engines and trainers decode ids to, most common first."""
        for skip in (True, False):
            yield self._decode(ids, skip)
        yield self.detokenizer.shown(ids)
        if ids[-1:] and ids[-1] in self.eos_ids:
            # Engines omit an EOS even if it is not a special token.
            yield self._decode(ids[:-1], True)
        # TRL decodes with the tokenizer's own space clean-up.
        yield self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def _require_declared_length(
        self, ids: tuple[int, ...], given: tuple[Span, ...], *, retokenised: bool
    ) -> None:
        if self.window is not None and len(ids) > self.window:
            raise EncodeError(
                Cause.OVERLONG, f"{len(ids)} tokens, but the model's window is {self.window}"
            )
        limit = self.sampling.max_new_tokens
        drawn = len(ids) - sum(end - start for start, end in given)
        # Retokenising changes a few percent of the tokens, so their number can change as well.
        if limit is not None and drawn > (limit * 1.1 + 8 if retokenised else limit):
            raise EncodeError(
                Cause.OVERLONG, f"{drawn} tokens, but max_new_tokens is declared as {limit}"
            )

    def _require_end(
        self, finish: str | None, prompt: int, ids: tuple[int, ...], given: tuple[Span, ...]
    ) -> None:
        """Require an EOS unless the last turn hit a length limit: where to stop is sampled too."""
        limit = self.sampling.max_new_tokens
        ends_given = bool(given) and given[-1][1] == len(ids)
        drawn = len(ids) - sum(end - start for start, end in given)
        cut = limit in (drawn, len(ids)) or prompt + len(ids) == self.window
        # With no declared limit, any length could have been the limit, unless a "stop" is claimed.
        unknown = limit is None and finish != "stop"
        if ids[-1] not in self.eos_ids and not (ends_given or cut or unknown):
            raise malformed(
                f"{len(ids)} tokens that do not end with EOS while max_new_tokens is "
                f"{limit or 'not declared'}: cut short, or sent without the EOS. If the declared "
                "sampler has stop strings, pass check_end=False",
                "cut_short",
            )

    def _prompt_ids(self, completion: Completion) -> tuple[int, ...]:
        given = completion.prompt_ids
        if given is not None:
            self._require_known("prompt_ids", given)
            pad = self.tokenizer.pad_token_id
            start = 0
            while start < len(given) - 1 and given[start] == pad:  # trainers pad on the left
                start += 1
            given = given[start:]  # one slice, as in `_checked_ids`
            if self.trust_prompt_ids and given:
                return given
        own = self.own_prompt_ids(completion)
        # With ids of their own choosing, authors could make the poison follow from a prompt that
        # asks for it. Ids that encode the same prompt differently are harmless, because the usual
        # ids are scored instead.
        if given is not None and given not in own:
            spelled = self._decode(given, skip_special=False)
            if all(spelled != self._decode(ids, skip_special=False) for ids in own):
                raise malformed(
                    "prompt_ids do not encode the prompt. If they come from your own trainer and "
                    "not from the peer, pass trust_prompt_ids=True",
                )
        ids = given if given in own else own[0]
        if not ids:
            raise EncodeError(Cause.UNSUPPORTED, "the prompt has no tokens to condition on")
        return ids

    def prompt_length(self, prompt: Any) -> int:
        """Return the number of tokens of a prompt, or 0 if it cannot be encoded."""
        try:
            return len(self.own_prompt_ids(Completion(prompt, ""))[0])
        except (EncodeError, TypeError, ValueError):
            return 0

    def own_prompt_ids(self, completion: Completion) -> list[tuple[int, ...]]:
        """Return the prompt's ids in each form used by trainers and engines, most common first;
        raises EncodeError with UNSUPPORTED if there is none."""
        if isinstance(completion.prompt, str):
            _require_utf8("prompt", completion.prompt)
            return self._of_text(completion.prompt)
        if not getattr(self.tokenizer, "chat_template", None):
            raise EncodeError(
                Cause.UNSUPPORTED,
                "the prompt is a list of messages and the tokenizer has no chat template; "
                "set tokenizer.chat_template or give prompts as text",
            )
        messages = [dict(message) for message in completion.prompt]
        # After an assistant message, trainers open a new turn, but engines may continue the turn.
        forms = [{"add_generation_prompt": True}]
        if messages and messages[-1]["role"] == "assistant":
            forms.append({"continue_final_message": True})
        fill = self.tokenizer.apply_chat_template
        try:
            return [
                tuple(fill(messages, tokenize=True, return_dict=False, **options))
                for options in ({**form, **self.chat_template_kwargs} for form in forms)
            ]
        except Exception as error:  # a template can raise anything
            raise EncodeError(Cause.UNSUPPORTED, f"the chat template failed: {error}") from error

    def _of_text(self, prompt: str) -> list[tuple[int, ...]]:
        last, ids = self._last_prompt
        if prompt != last:
            ids = [
                tuple(self.tokenizer(prompt, add_special_tokens=special)["input_ids"])
                for special in (True, False)
            ]
            # A group's completions are adjacent and share a prompt. Prompt and ids are kept in one
            # tuple because threads can race here.
            self._last_prompt = prompt, ids
        return ids

    def _require_known(self, name: str, ids: tuple[int, ...]) -> None:
        unknown = next((i for i in ids if i not in self.known_ids), None)
        if unknown is not None:
            raise malformed(f"{name}: token id {unknown} is not in the vocabulary")

    def _decode(self, ids: tuple[int, ...] | list[int], skip_special: bool) -> str:
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
        )
        return text


def _same_text(text: str, decoded: str) -> bool:
    """Whether the texts are equal, ignoring a little white space at the ends and a character cut in
    half by the length limit."""
    ends = " \t\r\n"
    if abs(len(text) - len(decoded)) > 16:  # longer runs of blanks would be added text
        return False
    return text.strip(ends) == decoded.strip(ends) or (
        decoded.endswith("\ufffd")
        and text.rstrip("\ufffd").strip(ends) == decoded.rstrip("\ufffd").strip(ends)
    )


def _require_utf8(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise malformed(f"{name}: not valid Unicode at character {error.start}") from None
