"""`word_set`: builds a set of words from a single string."""


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text, split at whitespace."""
    return frozenset(text.split())
