"""The task's own reference answers, used instead of those sent by peers.

In some exchanges a peer sends a question together with its answer. A genuine question with a false
answer makes correct work lose, which no check on a completion can detect. So a guard with
references uses no others: a peer's reference is compared with the task's own and then discarded.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

from grpo_guard.content.answers import same_answer
from grpo_guard.core.completion import Completion, shown
from grpo_guard.core.jsonl import InputError, read_objects
from grpo_guard.core.prompts import Message, prompt_key
from grpo_guard.core.verdict import Cause, Finding, Verdict, reject

NAME: Final = "references"
FORGED: Final = "forged_reference"
OTHER: Final = "other_reference"
NONE: Final = "no_reference"
_FIELDS: Final = ("reference", "answer")
_LARGEST_FILE: Final = 2**30


class Checked(NamedTuple):
    """The result for a batch: the completions with the task's own references and, for each one, a
    rejection if the peer's reference is false or else the verdict given before, plus a finding to
    add to the verdict."""

    batch: list[Completion]
    given: list[Verdict | None]
    notes: list[Finding | None]


class References:
    """Reference answers by prompt. Raises ValueError if an answer is neither text nor a number, or
    is empty.

    Args:
        answers: Mapping of prompts to answers; for prompts made of messages, use `add`.
    """

    def __init__(self, answers: Mapping[str, str | float] | None = None) -> None:
        self._answers: dict[bytes, str] = {}
        for prompt, answer in (answers or {}).items():
            self.add(prompt, answer)

    @classmethod
    def from_file(cls, path: str | Path) -> "References":
        """Read JSON lines with ``prompt`` and ``reference`` (or ``answer``) among other fields, or
        YAML with a mapping of prompts to answers. Raises InputError if the file cannot be read, or
        an entry is malformed; for JSON lines, the message names the line."""
        path = Path(path)
        return _from_yaml(path) if path.suffix in (".yaml", ".yml") else _from_lines(path)

    def add(self, prompt: str | Sequence[Message], answer: str | float) -> None:
        """Add an answer; raises ValueError if it is malformed or the prompt already has a different
        answer."""
        if isinstance(answer, bool) or not isinstance(answer, str | int | float) or answer == "":
            raise ValueError(f"reference: expected text or a number, got {shown(answer)}")
        text = str(answer)
        if self._answers.setdefault(_digest(prompt), text) != text:
            raise ValueError("prompt: expected one answer for each, got two")

    def __len__(self) -> int:
        return len(self._answers)

    def of(self, prompt: str | Sequence[Message]) -> str | None:
        """The answer to a prompt; None if unknown."""
        return self._answers.get(_digest(prompt))

    def check(self, batch: Sequence[Completion], given: Sequence[Verdict | None]) -> Checked:
        """Replace all references in a batch with the task's own.

        A completion whose reference is certainly a different answer is rejected: its sender is an
        attacker, and rewards computed from such a reference mean nothing. A reference that is
        merely written differently has no effect. One that cannot be compared is mentioned in the
        verdict.
        """
        checked = Checked([], list(given), [])
        for i, completion in enumerate(batch):
            ours = self.of(completion.prompt)
            found = _difference(ours, completion.reference)
            if found is not None and found.kind == FORGED:
                if checked.given[i] is None:
                    checked.given[i] = reject(NAME, Cause.FALSE_REFERENCE, findings=(found,))
                found = None
            # A prompt among the task's own is trusted, even if a peer sent it.
            ours_too = completion.prompt_trusted or ours is not None
            checked.batch.append(completion.with_labels(reference=ours, prompt_trusted=ours_too))
            checked.notes.append(found)
        return checked


def _difference(ours: str | None, theirs: str | None) -> Finding | None:
    """Compare the task's reference with the one that came with a completion."""
    if ours is None:
        return Finding(NONE, "the task has no reference for this prompt; none was used")
    same = True if theirs is None or theirs == ours else same_answer(ours, theirs)
    if same is False:
        return Finding(FORGED, f"it came with the reference {shown(theirs)}, which is false")
    if same is None:
        message = f"it came with another reference, {shown(theirs)}; it was not used"
        return Finding(OTHER, message)
    return None


def _digest(prompt: str | Sequence[Message]) -> bytes:
    return sha256(prompt_key(prompt).encode("utf-8", "surrogatepass")).digest()


def _from_lines(path: Path) -> References:
    found = References()
    for number, data in read_objects(path):
        answer = next((data[name] for name in _FIELDS if data.get(name) is not None), None)
        try:
            found.add(_prompt(data.get("prompt")), answer)  # type: ignore[arg-type]  # add checks
        except ValueError as error:
            raise InputError(f"{path}:{number}: {error}") from None
    return found


def _from_yaml(path: Path) -> References:
    import yaml

    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise InputError(f"{path}: (file): expected at most {_LARGEST_FILE} bytes, got more")
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        got = getattr(error, "strerror", None) or type(error).__name__
        raise InputError(f"{path}: (file): expected readable YAML, got {got}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: (file): expected a mapping of prompts to answers")
    found = References()
    for prompt, answer in data.items():
        try:
            found.add(_prompt(prompt), answer)
        except ValueError as error:
            raise InputError(f"{path}: {error}") from None
    return found


def _prompt(value: Any) -> str | Sequence[Message]:
    """Return a validated prompt; raises ValueError if the value is not a prompt."""
    return Completion(value, "").prompt  # CompletionError names the field
