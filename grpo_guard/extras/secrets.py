"""`SecretsVerifier`: credentials in a completion, by the patterns of detect-secrets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, Unpack

from grpo_guard.completion import Completion
from grpo_guard.content.rules import RuleOptions
from grpo_guard.content.severity import SECRETS
from grpo_guard.extras.rule import MAX_CHARACTERS, LibraryRule, imported, pieces
from grpo_guard.naming import choose
from grpo_guard.verdict import Finding

# Longest secret that is found whole; a line is searched in pieces of twice this length.
LONGEST: Final = 1_000
NOISY: Final = (
    "Base64HighEntropyString",
    "HexHighEntropyString",
    "IPPublicDetector",
    "KeywordDetector",
)
"""Plugins that find what honest answers contain: hashes, addresses, ``API_KEY = "YOUR_API_KEY"``.
They are off unless named in ``plugins``."""


class SecretsVerifier(LibraryRule):
    """Rejects completions with a credential whose form detect-secrets knows.

    Access keys of AWS, GitHub, GitLab, OpenAI, Slack, Stripe and others, private keys, JSON Web
    Tokens, and passwords in a URL. Nothing is sent anywhere: a key is never tried. The message
    names the kind of credential and not the credential, because messages are logged.

    A completion may repeat a credential from its prompt. Not found are credentials longer than
    1,000 characters, and those of no known form.

    Args:
        plugins: Names of detect-secrets' plugins; None = all but `NOISY`.
        max_characters: Longest text that is read; a longer one rejects.
        **rules: Options of `RuleVerifier`.

    Raises:
        ImportError: detect-secrets is not installed; with the command.
        ValueError: there is no such plugin.
    """

    name = "secrets"
    needs = "detect-secrets, pip install 'grpo-guard[secrets]'"
    package = "detect_secrets"
    KINDS = frozenset(SECRETS)

    def __init__(
        self,
        *,
        plugins: Collection[str] | None = None,
        max_characters: int = MAX_CHARACTERS,
        **rules: Unpack[RuleOptions],
    ) -> None:
        super().__init__(max_characters=max_characters, **rules)
        for name in plugins or ():
            choose(sorted(_plugins()), name)
        self.plugins = None if plugins is None else tuple(plugins)

    def load(self) -> list[Any]:
        known = _plugins()
        names = self.plugins or [name for name in sorted(known) if name not in NOISY]
        return [known[name]() for name in names]

    def find(self, loaded: Any, completion: Completion, text: str) -> Iterator[Finding]:
        seen: set[tuple[int, int]] = set()
        for start, piece in pieces(text, 2 * LONGEST, LONGEST):
            for plugin in loaded:
                for secret in _secrets(plugin, piece):
                    at = max(0, piece.find(secret))
                    span = (start + at, start + at + len(secret))
                    if span not in seen and secret not in completion.trusted_prompt_text:
                        seen.add(span)
                        message = f"has the form of a secret: {plugin.secret_type}"
                        yield Finding("secret", message, char_span=span)


def _secrets(plugin: Any, line: str) -> list[str]:
    try:
        if hasattr(plugin, "entropy_limit"):  # these decide in a method of their own
            found = plugin.analyze_line("", line)
            return sorted(str(one.secret_value) for one in found)
        return [str(secret) for secret in plugin.analyze_string(line)]
    except RecursionError:
        # The payload of a web token is JSON, which its author can nest at will. If this were an
        # error, the guard would abstain on what an author wrote.
        return [line]


def _plugins() -> Mapping[str, Any]:
    mapping = imported("detect_secrets.core.plugins.util").get_mapping_from_secret_type_to_class()
    return {kind.__name__: kind for kind in mapping.values()}
