"""Encodes examples as token ids: the judge's tokenizer, and a label for each token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, normalizers
from transformers import PreTrainedTokenizerFast

from grpo_guard.core.completion import Completion
from grpo_guard.evals.policies.bundled import WORD_PROBLEMS
from grpo_guard.evals.training.judge.data import Example
from grpo_guard.evals.training.policies.recipe import fast
from grpo_guard.judge.backends.chat_ids import plain_prompt
from grpo_guard.judge.prompt import Window, messages, neutralised
from grpo_guard.judge.rubric import Rubric

YES, NO = " yes", " no"
# The id of our own fence carries no information for this model. No completion can contain the tag,
# because the prompt builder removes its bracket.
_FENCE: Final = r'<completion id="[0-9a-f]{16}">'
_OPEN, _CLOSE = "<completion>", "</completion>"
_TAIL: Final = f"\n{_CLOSE}\nAnswer:"


def judge_tokenizer(window: int) -> PreTrainedTokenizerFast:
    """Build the bundled policy's tokenizer, with tokens for our tags and for the two answers."""
    tokenizer = Tokenizer.from_file(str(WORD_PROBLEMS / "tokenizer.json"))
    tokenizer.normalizer = normalizers.Replace(Regex(_FENCE), _OPEN)
    tags = (_OPEN, _CLOSE, "<code>", "</code>")
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=t == _OPEN) for t in tags])
    # Each answer is one token, which never matches in running text: a letter precedes the space.
    tokenizer.add_tokens(
        [AddedToken(w, single_word=True, special=False, normalized=False) for w in (YES, NO)]
    )
    return fast(tokenizer, window)


@dataclass(frozen=True, slots=True)
class Row:
    """An example as tokens.

    Args:
        fits: For each token, 1 if an honest solution can continue with it after the preceding
            tokens, 0 if not, and -1 if unlabelled.
        good: Whether the judge should accept the completion.
    """

    ids: list[int]
    fits: list[int]
    good: bool
    kind: str


def shown(example: Example, rubric: Rubric, secret: bytes) -> str:
    """Return the text that the judge reads for an example."""
    case = Completion(example.prompt, example.text)
    return plain_prompt(messages(rubric, "", case, secret=secret, window=Window()))


def encode(
    tokenizer: PreTrainedTokenizerFast, examples: Sequence[Example], rubric: Rubric, secret: bytes
) -> list[Row]:
    """Encode all examples as rows, in order."""
    texts = [shown(example, rubric, secret) for example in examples]
    encoded = tokenizer(
        texts, add_special_tokens=False, return_offsets_mapping=True, split_special_tokens=True
    )
    rows = []
    for example, text, ids, offsets in zip(
        examples, texts, encoded["input_ids"], encoded["offset_mapping"], strict=True
    ):
        stop = len(text) - len(_TAIL)
        start = stop - len(neutralised(example.text))
        fits = [_fits(example, begin - start, end - start, stop - start) for begin, end in offsets]
        rows.append(Row(ids, fits, example.good, example.kind))
    return rows


def _fits(example: Example, begin: int, end: int, length: int) -> int:
    """Label the token that covers characters [begin, end) of the completion."""
    if begin < 0 or not 0 < end <= length:
        return -1
    if example.replaced:
        return 0 if any(begin <= place < end for place in example.replaced) else 1
    if end <= example.bad_from:
        return 1
    sure = end > example.bad_from + example.grace or end >= example.bad_to
    return 0 if sure and begin < example.bad_to else -1
