"""Read the YAML of a guard file as one mapping, with errors that say what is wrong."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from grpo_guard.core.options import ConfigError

_SUCH = "`preset: different_weights`"
_OF_TAGS = (ValueError, TypeError, LookupError, AttributeError)
"""The exceptions that PyYAML raises for a value that a tag such as ``!!bool`` cannot convert."""


def _got(data: object) -> str:
    if data is None:
        return "an empty file; grpo-guard init writes one"
    if isinstance(data, str):
        return "a single text; write a space after each colon"
    return "a list" if isinstance(data, list) else f"a {type(data).__name__}"


def mapping_from(text: str, name: str) -> dict[Any, Any]:
    """Parse a mapping from the YAML of the guard file ``name``. Raises ConfigError if the text is
    not YAML, or not a mapping."""
    import yaml

    try:
        data = yaml.load(text, _yaml_loader())
    except (yaml.YAMLError, RecursionError, *_OF_TAGS) as error:
        raise unreadable(name, error, text) from None
    if not isinstance(data, dict):
        raise ConfigError(f"{name}: (file): expected a mapping such as {_SUCH}, got {_got(data)}")
    return data


@cache
def _yaml_loader() -> Any:
    """Return a safe loader that also reads 1e-3 as a number, which YAML 1.1 treats as text."""
    import yaml

    class Loader(yaml.SafeLoader):
        def get_single_node(self) -> Any:
            """Return the document; raise for a repeated key, whose second value would silently
            override the first."""
            node = super().get_single_node()
            for key in _repeated_keys(node):
                raise yaml.constructor.ConstructorError(
                    None, None, "a repeated key; write each key once", key.start_mark
                )
            return node

    exponent = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+\Z")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+.0123456789"))
    return Loader


def _repeated_keys(root: Any) -> Iterator[Any]:
    """Yield keys that occur twice in a mapping. Overriding a merged key (``<<``) is allowed."""
    open_, known = [root], {id(None)}
    while open_:
        node = open_.pop()
        if id(node) in known or isinstance(node.value, str):
            continue
        known.add(id(node))  # a node with an anchor can occur more than once
        if node.id == "sequence":
            open_ += node.value
            continue
        seen = set()
        for key, value in node.value:
            one = (key.tag, key.value)
            if isinstance(key.value, str) and key.tag != "tag:yaml.org,2002:merge":
                if one in seen:
                    yield key
                seen.add(one)
            open_ += (key, value)


def unreadable(name: str, error: Exception, text: str = "") -> ConfigError:
    """Build the error for a guard file that cannot be read. Of the contents, ``text``, only the
    indentation, dashes and key of the faulty line are quoted, because the rest could contain a
    backend's API key."""
    return ConfigError(f"{name}: (file): expected readable YAML, got {_unquoting(error, text)}")


def _unquoting(error: Exception, text: str) -> str:
    """Rewrite a YAML reader's message without quoted text, and with a remedy if one is known."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem" if mark is not None else "strerror", None)
    what = re.sub(r"""(["']).{5,}\1""", "'...'", problem or type(error).__name__, flags=re.DOTALL)
    if mark is None:
        return f"{what:.200}"
    lines = _LINE_BREAK.split(text)
    line = _shape(lines[mark.line]) if mark.line < len(lines) else ""
    quoted = f": `{line}`" if line.strip() else ""
    begun = getattr(getattr(error, "context_mark", None), "line", mark.line) + 1
    remedy = _remedy(f"{getattr(error, 'context', '')} {problem}", lines, mark.line, begun)
    place = f"an error in line {mark.line + 1}, column {mark.column + 1}{quoted}"
    return f"{place}; {remedy}" if remedy else f"{place} ({what:.200})"


_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_LINE = re.compile(r"([ \t]{0,60})((?:- {1,20}|-$){0,4})(?:([a-z_]{1,24}:)(?= |$))?(.?)")


def _shape(line: str) -> str:
    """Reduce a line to its indentation, dashes and key, without its values."""
    found = _LINE.match(line)
    if found is None:
        return ""
    indent, dashes, key, rest = found.groups()
    more = " ..." if key and (rest or line[found.end() :]) else "..." if rest else ""
    return f"{indent}{dashes}{key or ''}{more}".replace("\t", "\\t")


def _remedy(problem: str, lines: list[str], at: int, begun: int) -> str | None:
    """Suggest what to look at; None if the YAML reader's own message, ``problem``, is just as good.
    ``at`` is the index of the faulty line, and ``begun`` the number, from 1, of the line at which
    the structure being read begins."""
    line = lines[at] if at < len(lines) else ""
    if r"\t" in problem or "\t" in line[: len(line) - len(line.lstrip())]:
        return "indent YAML with spaces, not with tabs"
    if "quoted scalar" in problem:
        return f"is the quote that opens in line {begun} closed?"
    if "',' or" in problem:
        return f"is the bracket that opens in line {begun} closed, with a comma between entries?"
    if "<block end>" in problem or "mapping values" in problem or "expected ':'" in problem:
        colon = "" if "<block" in problem else ", and is every text with `: ` in quotes"
        dash = line.lstrip().startswith("-")
        above = range(at, 0, -1) if dash else ()
        same = next((n for n in above if lines[n - 1].lstrip().startswith("-")), None)
        which = "the keys next to it" if same is None else f"the one in line {same}"
        return f"is {'`-`' if dash else 'it'} indented as {which}{colon}?"
    return None
