"""`LibraryRule`: the base class of rules built on third-party libraries."""

import importlib
import importlib.util
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar, Final, Unpack

from grpo_guard.content.rules import RuleOptions, RuleVerifier
from grpo_guard.core.arguments import require_count
from grpo_guard.core.completion import Completion
from grpo_guard.core.forks import Lock
from grpo_guard.core.registry import UnknownNameError, choose, with_remedy
from grpo_guard.core.scope import Scope
from grpo_guard.core.verdict import Finding, Verdict, accept, reject

MAX_CHARACTERS: Final = 400_000
MAX_FINDINGS: Final = 8
_SURROGATE = re.compile("[\ud800-\udfff]")


class LibraryRule(RuleVerifier):
    """A rule whose findings come from a third-party library, loaded on first use.

    Text longer than ``max_characters`` is rejected as overlong, because its author controls its
    length. Anything that also occurs in the prompt is ignored, except by `ToxicityVerifier`.

    Attributes:
        package: Name of the module to import; `grpo_guard.core.registry` lists the extra that
            installs it.
    """

    package: ClassVar[str]
    scope: Scope = "completion"

    def __init__(
        self, *, max_characters: int = MAX_CHARACTERS, **rules: Unpack[RuleOptions]
    ) -> None:
        super().__init__(**rules)
        require_count(f"{type(self).__name__}.max_characters", max_characters)
        if lacking(self.package) is not None:
            raise with_remedy(ModuleNotFoundError(name=self.package))
        self.max_characters = max_characters
        self._loaded: Any = None
        self._lock = Lock()

    @abstractmethod
    def load(self) -> Any:
        """Return what `find` needs from the library; called once per process."""

    @abstractmethod
    def find(self, loaded: Any, completion: Completion, text: str) -> Iterator[Finding]:
        """Yield the findings in ``text``: the completion's text with lone surrogates replaced."""

    def check(self) -> None:
        """Load the library.

        Raises:
            Exception: whatever `load` raises.
        """
        self.loaded()

    def loaded(self) -> Any:
        """Return the result of `load`, calling it on first use."""
        with self._lock:
            if self._loaded is None:
                self._loaded = self.load()
            return self._loaded

    def find_each(
        self, loaded: Any, completions: Sequence[Completion]
    ) -> Iterable[Iterable[Finding]]:
        """Return the findings of each completion, as yielded by `find`. Override this method if the
        library is faster on several texts at once."""
        return (self.find(loaded, one, without_surrogates(one.text)) for one in completions)

    def look(self, batch: Sequence[Completion]) -> list[Verdict]:
        """Return one verdict per completion, with its first `MAX_FINDINGS` findings."""
        verdicts = [self.overlong(one.text, self.max_characters) for one in batch]
        read = [one for one, overlong in zip(batch, verdicts, strict=True) if overlong is None]
        found = iter(self.find_each(self.loaded(), read) if read else ())
        return [self._verdict(next(found)) if v is None else v for v in verdicts]

    def _verdict(self, found: Iterable[Finding]) -> Verdict:
        findings = tuple(islice(found, MAX_FINDINGS))
        return reject(self.name, findings=findings) if findings else accept(self.name)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the loaded library; the process that unpickles the rule loads it again."""
        return vars(self) | {"_loaded": None}


def lacking(package: str) -> str | None:
    """Return a sentence on how to install the package, or None if it is already installed."""
    try:
        if importlib.util.find_spec(package) is not None:
            return None
    except (ImportError, ValueError):
        pass
    return str(with_remedy(ModuleNotFoundError(name=package)))


def imported(name: str) -> Any:
    """Import a module from a third-party library.

    Raises:
        ImportError: the module is not installed; the message names the install command.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise with_remedy(error) from None


def named(where: str, known: Iterable[str], names: Iterable[str]) -> tuple[str, ...]:
    """Return the names as a tuple, after checking that they are all known.

    Raises:
        ValueError: a name is unknown; the message suggests the closest known name.
    """
    found, options = tuple(names), sorted(known)
    for name in found:
        try:
            choose(options, str(name))
        except UnknownNameError as error:
            raise ValueError(f"{where}: {error}") from None
    return found


def without_surrogates(text: str) -> str:
    """Replace lone surrogates, which make libraries raise; the length of the text is unchanged."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def pieces(text: str, longest: int, overlap: int) -> Iterator[tuple[int, str]]:
    """Yield (offset, piece) for each line of the text; lines over ``longest`` are cut into pieces.

    Pieces of a line overlap by ``overlap`` characters. Lines are cut because the libraries'
    patterns take time quadratic in the length of the text searched.
    """
    start = 0
    for line in text.split("\n"):
        for at in range(0, max(1, len(line) - overlap), longest - overlap):
            yield start + at, line[at : at + longest]
        start += len(line) + 1
