"""`word_set`: tables of words, written as one string."""


def word_set(text: str) -> frozenset[str]:
    """The words of a text, split at blanks."""
    return frozenset(text.split())
