"""A completion as nodes exchange it: what was asked, what was answered, and who sent it."""

import hashlib
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import partial
from typing import Any, Final

from grpo_guard.core.arguments import is_gap, number_text, whole_number, worded_class
from grpo_guard.core.completion_row import row_of
from grpo_guard.core.given import Given
from grpo_guard.core.moved import renamed
from grpo_guard.core.naming import FIELD_CALLED
from grpo_guard.core.prompts import MAX_PROMPT_PARTS, Message, content_text
from grpo_guard.core.quoting import fits
from grpo_guard.core.quoting import shown as shown

# Names are kept for a whole run, and an untrusted sender's name could be as long as a request.
MAX_NAME: Final = 1_000
# Maximum number of ids or log-probs: twice the longest context in use. A `range` can be of any
# length at no cost.
MAX_TOKENS: Final = 2**21

# Maximum nesting depth of a chat prompt; tools' JSON schemas are 10 levels deep.
MAX_PROMPT_DEPTH: Final = 64

# Our own descriptions of values in errors; anything else comes from a sender and is quoted.
_WORDS: Final = ("nothing", "an unknown field", "a larger one", "larger ones")


class CompletionError(ValueError):
    """A field of a completion has the wrong form.

    Attributes:
        field: Name of the field.
        problem: What is wrong with the value, as ``expected ..., got ...``.
    """

    def __init__(self, field_name: str, expected: str, got: Any) -> None:
        # An unknown field's name comes from the sender; unescaped, it could control the terminal.
        self.field = shown(field_name)[1:-1]
        plain = type(got) is str and got in _WORDS
        self.problem = f"expected {expected}, got {got if plain else shown(got)}"
        super().__init__(f"{self.field}: {self.problem}")


class _Marked:
    """A slot for values derived once from a completion and then reused."""

    __slots__ = ("mark",)
    mark: tuple[bytes | None, bytes, bytes, bytes]
    """Digests by which ledgers recognise the completion; see `nodes.intake`."""


@partial(worded_class, elsewhere=FIELD_CALLED)
@dataclass(frozen=True, slots=True)
class Completion(_Marked):
    """One completion of one prompt.

    Token ids are the primary input: retokenising text changes 1-3 % of the tokens, so a completion
    without ids is scored under a looser profile. Fields marked as claims come from the sender and
    may be false. Raises CompletionError if a field has the wrong type or an impossible value. No
    other exception is raised, whatever a field holds, because the fields are chosen by senders.

    Args:
        prompt: The prompt, as text or as chat messages such as
            ``[{"role": "user", "content": "What is 7 - 5?"}]``. Messages are copied; at most
            `MAX_PROMPT_PARTS` parts, nested at most `MAX_PROMPT_DEPTH` levels deep.
        text: Text of the completion, as the reward function sees it. A `Guard` with a tokenizer
            decodes the ids instead.
        prompt_ids: Token ids of the prompt, including special tokens, shape [P].
        completion_ids: Token ids of the completion, without padding and ending with EOS if the
            completion terminated, shape [n].
        node: Name of the sender. A number becomes its text, so 7, 7.0 and "7" are one node. Names
            longer than `MAX_NAME` characters are truncated, with a digest appended.
        group: The sender's label for the GRPO group. A claim: `Guard` and the verifiers compare
            completions with equal prompts, whatever their labels.
        round: Training round in which the completion was generated.
        slot: Position of the completion within its group.
        rollout: Label shared by the segments of a rollout, see `grpo_guard.core.rollouts`. A claim.
        reference: Reference answer, for verifiers that use one. A number becomes its text, as data
            sets hold answers of both kinds; 942.0 becomes "942".
        task: Name of the task, for `only(..., task=...)`.
        finish_reason: Why the sender's engine stopped, such as ``"stop"`` or ``"length"``. A claim.
        sampler_logprobs: The sender's log-probs, natural logarithm, shape [n]. A claim.
        given: Spans of tokens and characters that were not sampled, such as tool results and user
            turns. A claim unless `Given.masked` or `Given.known` is set, which a mapping cannot do.
        prompt_trusted: Whether the prompt is the trainer's own. If not, the sender may have written
            it, so the prompt excuses nothing (`trusted_prompt`), and the reference may be false
            (`trusted_reference`).
        metadata: Anything else. `SeedReplayVerifier` compares the key ``run`` with its own run if
            present; other verifiers read only the keys that they are configured with.
    """

    prompt: str | Sequence[Message]
    text: str
    prompt_ids: tuple[int, ...] | None = field(default=None, kw_only=True)
    completion_ids: tuple[int, ...] | None = field(default=None, kw_only=True)
    node: str | None = field(default=None, kw_only=True)
    group: str | int | None = field(default=None, kw_only=True)
    round: int | None = field(default=None, kw_only=True)
    slot: int | None = field(default=None, kw_only=True)
    rollout: str | None = field(default=None, kw_only=True)
    reference: str | None = field(default=None, kw_only=True)
    task: str | None = field(default=None, kw_only=True)
    finish_reason: str | None = field(default=None, kw_only=True)
    sampler_logprobs: tuple[float, ...] | None = field(default=None, kw_only=True)
    given: Given | None = field(default=None, kw_only=True)
    prompt_trusted: bool = field(default=True, kw_only=True)
    metadata: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        for name, read in _READ.items():
            given = getattr(self, name)
            try:
                value = read(name, given)
            except CompletionError:
                raise
            except Exception:  # an object can raise anything, from any of its methods
                raise CompletionError(name, "a value that can be read", given) from None
            object.__setattr__(self, name, value)
        if self.given is not None:
            tokens = None if self.completion_ids is None else len(self.completion_ids)
            try:
                object.__setattr__(self, "given", self.given.placed(tokens, len(self.text)))
            except ValueError as error:
                raise CompletionError("given", str(error), self.given) from None

    @property
    def told(self) -> Given | None:  # before 0.3.0
        raise renamed(type(self), "told")

    @property
    def context(self) -> Given | None:
        """The given spans if log-prob checks may use them as unjudged context; otherwise None."""
        return self.given if self.given and (self.given.masked or self.given.known) else None

    @property
    def verified_spans(self) -> Given | None:
        """The given spans if the author is known not to have written them; otherwise None."""
        return self.given if self.given and self.given.known else None

    def with_labels(self, **fields: Any) -> "Completion":
        """Copy the completion with new values, which must be in stored form: they are not validated
        again."""
        own = dict(zip(_READ, _values(self), strict=True))
        return _restored(*(own | fields).values())

    def __reduce__(self) -> tuple[Any, ...]:
        # Three times as fast as the dataclass default, which validates nothing again either.
        return _restored, _values(self)

    @property
    def prompt_text(self) -> str:
        """The whole prompt as one string; for a chat, the contents of its messages in order."""
        if isinstance(self.prompt, str):
            return self.prompt
        return "\n".join(content_text(message.get("content")) for message in self.prompt)

    @property
    def trusted_prompt(self) -> str | Sequence[Message]:
        """The prompt, or "" if an untrusted sender may have written it. Such a prompt must not
        excuse the answer: it could ask for the very import or equation that the answer contains."""
        return self.prompt if self.prompt_trusted else ""

    @property
    def trusted_reference(self) -> str | None:
        """The reference answer, or None if an untrusted sender may have supplied it. With a false
        one a judge rejects right answers, and it reads whatever text is put there."""
        return self.reference if self.prompt_trusted else None

    @property
    def trusted_prompt_text(self) -> str:
        """The text of `trusted_prompt`, as one string."""
        return self.prompt_text if self.prompt_trusted else ""

    @classmethod
    def from_dict(cls, data: Any, also: Sequence[str] = ()) -> "Completion":
        """Read a parsed line of IN.jsonl or a row of a table, where NaN is no value and TRL's
        ``step`` the round. Unknown fields are errors, which list ``also``, fields taken out."""
        if not isinstance(data, Mapping):
            raise CompletionError("(line)", "a JSON object", data)
        data = {k: v for k, v in data.items() if not (k in _OPTIONAL and is_gap(v))}
        if "step" in data and "round" not in data:
            data["round"] = data.pop("step")
        for name in data:  # first, so that "completion" is reported as a name for "text"
            if name not in _READ:
                known = [*(f.name for f in fields(cls)), *also]
                near = get_close_matches(str(name)[:40], known, n=1)  # cut: the sender chose it
                meant = FIELD_CALLED.get(name) or "".join(near)
                expected = f"{meant!r} in its place, " if meant else ""
                expected += f"one of {', '.join(known)}"
                raise CompletionError(str(name), expected, "an unknown field")
        for name in ("prompt", "text"):
            if name not in data:
                raise CompletionError(name, "to be present", "nothing")
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` reads, for ``json.dumps``: all fields that are set."""
        return row_of(self)


def plain_prompt(value: Any) -> str | tuple[Message, ...]:
    """Convert a prompt to the form stored in a `Completion`. Raises CompletionError if the value is
    not a prompt. Other exceptions occur only if an object inside the prompt raises them."""
    name = "prompt"
    if isinstance(value, str):
        return str.__str__(value)
    value = _listed(value)
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise CompletionError(name, "a string or a list of messages", value)
    room = [MAX_PROMPT_PARTS]
    messages = tuple(_plain(message, MAX_PROMPT_DEPTH, room) for message in value)
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise CompletionError(name, "messages with a role and content", message)
    return messages


def _plain(value: Any, depth: int, room: list[int]) -> Any:
    """Copy a value into built-in types, so that printing or walking a prompt always terminates.

    The limits stop cycles and shared parts, which take only a few bytes to build. Images are kept
    unchanged; numbers too long to print and objects whose ``repr`` fails are refused.
    """
    room[0] -= 1
    if not depth or room[0] < 0:
        raise CompletionError("prompt", "messages of bounded size and depth", "larger ones")
    if value is None or type(value) in (bool, bytes):
        return value
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {
            _plain(key, depth - 1, room): _plain(part, depth - 1, room)
            for key, part in value.items()
        }
    value = _listed(value)
    if isinstance(value, list):
        return [_plain(part, depth - 1, room) for part in value]
    if isinstance(value, tuple):
        return tuple(_plain(part, depth - 1, room) for part in value)
    repr(value)
    return value


def _listed(value: Any) -> Any:
    """Convert an array of objects, as found in data sets, to a list; other values are unchanged."""
    objects = getattr(getattr(value, "dtype", None), "kind", "") == "O"
    return value.tolist() if objects else value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise CompletionError(name, "a string", value)
    return str.__str__(value)  # drops a subclass's own methods


def _text_or_none(name: str, value: Any, kind: str = "a string") -> str | None:
    if not isinstance(value, str | None):
        raise CompletionError(name, f"{kind} or null", value)
    return None if value is None else str.__str__(value)


def _text_or_number(name: str, value: Any) -> str | None:
    return number_text(value) or _text_or_none(name, value, "a string, a finite number")


def _node(name: str, value: Any) -> str | None:
    text = _text_or_number(name, value)
    if text is None or len(text) <= MAX_NAME:
        return text
    # A node always gets the same short name, and no two nodes share one.
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{text[: MAX_NAME - 40]}...{digest}"


def _integer(name: str, value: Any, kind: str = "an integer") -> int | None:
    number = whole_number(value)
    if number is None and value is not None:
        raise CompletionError(name, f"{kind} or null", value)
    if number is not None and not fits(number):
        raise CompletionError(name, f"{kind} of 64 bits or null", "a larger one")
    return number


def _group(name: str, value: Any) -> str | int | None:
    if isinstance(value, str):
        return str.__str__(value)
    return _integer(name, value, "a string, an integer")


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise CompletionError(name, "true or false", value)
    return value


def _metadata(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CompletionError(name, "an object", value)
    return value


def _given(name: str, value: Any) -> Given | None:
    if value is None or isinstance(value, Given):
        return value
    if not isinstance(value, Mapping):
        raise CompletionError(name, "an object with tokens and chars, or null", value)
    try:
        return _given(name, Given.from_dict(value))
    except ValueError as error:
        raise CompletionError(name, str(error), value) from None


def token_ids(name: str, value: Iterable[Any] | None) -> tuple[int, ...] | None:
    """Read token ids from a list, tuple, NumPy array or tensor of integers; None stays None. Raises
    CompletionError if the value is not a list of ids. Other exceptions occur only if iterating over
    the value raises them."""
    if value is None:
        return None
    ids = []
    for item in _items(name, value, "integers"):
        try:
            if isinstance(item, bool):
                raise TypeError
            ids.append(operator.index(item))
        except Exception:
            raise CompletionError(name, "a list of integers or null", item) from None
        if not fits(ids[-1]):
            raise CompletionError(name, "integers of 64 bits", "a larger one")
    return tuple(ids)


def _items(name: str, value: Any, kind: str) -> Iterator[Any]:
    """Yield the items of a list. An error is raised before the first item if the length is known to
    exceed `MAX_TOKENS`."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise CompletionError(name, f"a list of {kind} or null", value)
    if isinstance(value, Sized) and len(value) > MAX_TOKENS:
        raise CompletionError(name, f"at most {MAX_TOKENS}", "larger ones")
    for place, item in enumerate(value):
        if place == MAX_TOKENS:
            raise CompletionError(name, f"at most {MAX_TOKENS}", "larger ones")
        yield item


def _log_probs(name: str, value: Iterable[Any] | None) -> tuple[float, ...] | None:
    if value is None:
        return None
    numbers = []
    for item in _items(name, value, "numbers"):
        if isinstance(item, bool | str | bytes):
            raise CompletionError(name, "a list of numbers or null", item)
        try:
            number = float(item)
        except Exception:
            raise CompletionError(name, "a list of numbers or null", item) from None
        if math.isnan(number):
            raise CompletionError(name, "numbers, not NaN", item)
        numbers.append(number)
    return tuple(numbers)


_READ: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "prompt": lambda _, value: plain_prompt(value),
    "text": _text,
    "prompt_ids": token_ids,
    "completion_ids": token_ids,
    "sampler_logprobs": _log_probs,
    **dict.fromkeys(("node", "rollout"), _node),
    "reference": _text_or_number,
    "task": _text_or_none,
    "finish_reason": _text_or_none,
    "round": _integer,
    "slot": _integer,
    "group": _group,
    "given": _given,
    "prompt_trusted": _flag,
    "metadata": _metadata,
}

_OPTIONAL: Final = {*_READ, "step"} - {"prompt", "text", "prompt_trusted"}
_values: Final = operator.attrgetter(*_READ)
_SLOTS: Final = [getattr(Completion, name).__set__ for name in _READ]


def _restored(*values: Any) -> Completion:
    """Build a completion from another completion's stored values, in the order of `_READ`."""
    one = object.__new__(Completion)
    for put, value in zip(_SLOTS, values, strict=True):
        put(one, value)
    return one
