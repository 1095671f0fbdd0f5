"""`SecretsVerifier`: finds credentials in a completion, using the patterns of detect-secrets."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, Final, Unpack

from grpo_guard.content.extras.rule import MAX_CHARACTERS, LibraryRule, imported, named, pieces
from grpo_guard.content.rules import RuleOptions
from grpo_guard.content.severity import REJECT, Kind
from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Finding

# Maximum length, in characters, of a secret that is found in full; lines are searched in pieces
# twice this long.
LONGEST: Final = 1_000
NOISY: Final = (
    "Base64HighEntropyString",
    "HexHighEntropyString",
    "IPPublicDetector",
    "KeywordDetector",
)
"""Plugins that flag what honest answers contain: hashes, addresses, ``API_KEY = "YOUR_API_KEY"``.
They are off unless named in ``plugins``."""


class SecretsVerifier(LibraryRule):
    """Rejects completions that contain a credential in a form known to detect-secrets.

    Covers access keys for AWS, GitHub, GitLab, OpenAI, Slack, Stripe and others, private keys, JSON
    Web Tokens, and passwords in URLs. Nothing is sent anywhere: keys are never tried. The message
    names the kind of credential but does not quote it, because messages are logged.

    A completion may repeat a credential from its prompt. Credentials longer than 1,000 characters,
    or in an unknown form, are not found.

    Args:
        plugins: Names of the detect-secrets plugins to use; None for all except those in `NOISY`.
        max_characters: Maximum number of characters in a completion; longer ones are rejected.
        **rules: Options passed to `RuleVerifier`.

    Raises:
        ImportError: detect-secrets is not installed; the message names the install command.
        ValueError: ``plugins`` names an unknown plugin.
    """

    name = "secrets"
    needs = "detect-secrets, pip install 'grpo-guard[secrets]'"
    package = "detect_secrets"
    KINDS: ClassVar[Mapping[str, Kind]] = {"secret": REJECT}

    def __init__(
        self,
        *,
        plugins: Collection[str] | None = None,
        max_characters: int = MAX_CHARACTERS,
        **rules: Unpack[RuleOptions],
    ) -> None:
        super().__init__(max_characters=max_characters, **rules)
        self.plugins = (
            None if plugins is None else named("SecretsVerifier.plugins", _plugins(), plugins)
        )

    def load(self) -> list[Any]:
        """Return an instance of each plugin."""
        known = _plugins()
        quiet = [name for name in sorted(known) if name not in NOISY]
        names = quiet if self.plugins is None else self.plugins
        return [known[name]() for name in names]

    def find(self, loaded: Any, completion: Completion, text: str) -> Iterator[Finding]:
        """Yield a finding for each credential that does not occur in the prompt."""
        seen: set[tuple[int, int]] = set()
        for start, piece in pieces(text, 2 * LONGEST, LONGEST):
            for plugin in loaded:
                for at, end in _secrets(plugin, piece):
                    span = (start + at, start + end)
                    if span not in seen and piece[at:end] not in completion.trusted_prompt_text:
                        seen.add(span)
                        message = f"has the form of a secret: {plugin.secret_type}"
                        yield Finding("secret", message, char_span=span)


def _secrets(plugin: Any, line: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of the secrets in a line.

    A plugin returns strings, and for some patterns only part of the secret, such as the ``ghp`` of
    ``ghp_...``. So the span is the match of the plugin's pattern, if it has one, and the plugin
    merely confirms the match.
    """
    try:
        if not hasattr(plugin, "denylist"):  # entropy and keyword plugins
            for one in plugin.analyze_line("", line):
                at = max(0, line.find(str(one.secret_value)))
                yield at, at + len(str(one.secret_value))
            return
        for pattern in plugin.denylist:
            for match in pattern.finditer(line):
                own = match[0].strip()
                if own and any(plugin.analyze_string(match[0])):
                    at = line.find(own, match.start())
                    yield at, at + len(own)
    except RecursionError:
        # The payload of a web token is JSON, which its author can nest arbitrarily deep. If this
        # raised an error, authors could make the guard abstain.
        yield 0, len(line)


def _plugins() -> Mapping[str, Any]:
    mapping = imported("detect_secrets.core.plugins.util").get_mapping_from_secret_type_to_class()
    return {kind.__name__: kind for kind in mapping.values()}
