"""`PiiVerifier`: finds personal data in a completion, using the patterns of presidio-analyzer."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, Final, Unpack

from grpo_guard.content.extras.rule import MAX_CHARACTERS, LibraryRule, imported, named, pieces
from grpo_guard.content.rules import RuleOptions
from grpo_guard.content.severity import REJECT, Kind
from grpo_guard.core.completion import Completion
from grpo_guard.core.verdict import Finding

RECOGNISERS: Final[Mapping[str, str]] = {
    "EMAIL_ADDRESS": "EmailRecognizer",
    "CREDIT_CARD": "CreditCardRecognizer",
    "IBAN_CODE": "IbanRecognizer",
    "CRYPTO": "CryptoRecognizer",
    "MAC_ADDRESS": "MacAddressRecognizer",
    "US_SSN": "UsSsnRecognizer",
    "IP_ADDRESS": "IpRecognizer",
    "PHONE_NUMBER": "PhoneRecognizer",
    "URL": "UrlRecognizer",
}
"""Kinds of personal data that can be found without a language model, with presidio's recogniser
for each."""
QUIET: Final = ("EMAIL_ADDRESS", "CREDIT_CARD", "IBAN_CODE", "CRYPTO", "MAC_ADDRESS", "US_SSN")
"""The default kinds, which are very rare in honest answers. presidio mistakes ``1.1256 - 3.4264``
for a phone number and ``quotient.degree`` for a URL."""
# presidio gives a bare run of digits, with no words around it, a lower score than this.
_LEAST_SCORE: Final = 0.4
_LONGEST: Final = 500
# Precedes digits that belong to a longer number: one in ten runs of 16 decimals passes the
# credit-card checksum.
_NUMBER_BEFORE = re.compile(r"[\w.,]")


class PiiVerifier(LibraryRule):
    """Rejects completions in which presidio finds an e-mail address, card number or account number.

    Only presidio's pattern recognisers are used, without a language model. So names of people and
    places are not found, and nothing is downloaded. The message names the kind of data but does not
    quote it, because messages are logged. A completion may repeat data from its prompt.

    Args:
        entities: Kinds of personal data to look for, from `RECOGNISERS`; None for those in `QUIET`.
        max_characters: Maximum number of characters in a completion; longer ones are rejected.
        **rules: Options passed to `RuleVerifier`.

    Raises:
        ImportError: presidio-analyzer is not installed; the message names the install command.
        ValueError: ``entities`` names an unknown kind.
    """

    name = "pii"
    needs = "presidio-analyzer, pip install 'grpo-guard[pii]'"
    package = "presidio_analyzer"
    KINDS: ClassVar[Mapping[str, Kind]] = {"personal_data": REJECT}

    def __init__(
        self,
        *,
        entities: Collection[str] | None = None,
        max_characters: int = MAX_CHARACTERS,
        **rules: Unpack[RuleOptions],
    ) -> None:
        super().__init__(max_characters=max_characters, **rules)
        asked = QUIET if entities is None else entities
        self.entities = named("PiiVerifier.entities", RECOGNISERS, asked)

    def load(self) -> list[Any]:
        """Return the recognisers."""
        known = imported("presidio_analyzer.predefined_recognizers")
        found = [getattr(known, RECOGNISERS[name])() for name in self.entities]
        for recogniser in found:
            if recogniser.supported_entities == ["EMAIL_ADDRESS"]:
                recogniser.validate_result = _Domain()
        return found

    def find(self, loaded: Any, completion: Completion, text: str) -> Iterator[Finding]:
        """Yield a finding for each piece of personal data that does not occur in the prompt."""
        seen: set[tuple[int, int]] = set()
        for start, piece in pieces(text, 2 * _LONGEST, _LONGEST):
            if not any(map(str.isdigit, piece)) and not any(mark in piece for mark in "@.:"):
                continue
            for recogniser in loaded:
                for one in recogniser.analyze(piece, recogniser.supported_entities):
                    span, own = (start + one.start, start + one.end), piece[one.start : one.end]
                    if one.score < _LEAST_SCORE or span in seen:
                        continue
                    decimals = own[0].isdigit() and _NUMBER_BEFORE.match(text, span[0] - 1)
                    if not decimals and own not in completion.trusted_prompt_text:
                        seen.add(span)
                        what = one.entity_type.replace("_", " ").lower()
                        yield Finding("personal_data", f"has the form of: {what}", char_span=span)


class _Domain:
    """Checks that an e-mail address ends in a known public suffix and is not an example.

    Honest models write programs that send mail to ``user@example.com``, a domain reserved for
    examples.

    presidio relies on tldextract, which fetches the suffix list from the web. Authors must not be
    able to make this process open connections, so only the list bundled with tldextract is used.
    """

    def __init__(self) -> None:
        self._extract = imported("tldextract").TLDExtract(suffix_list_urls=(), cache_dir=None)

    def __call__(self, address: str) -> bool:
        found = self._extract(address)
        return bool(found.fqdn) and found.domain != "example"
