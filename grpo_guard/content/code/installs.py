"""Find what a completion installs: in commands, lists of requirements and a script's own header.

Installing a library teaches its use just as an import does, and could make a sandbox download it.
"""

import re
from collections.abc import Iterator
from itertools import chain
from typing import Final, TypeAlias

from grpo_guard.content.code.modules import Modules
from grpo_guard.content.code.source import Note
from grpo_guard.content.code.wrapped import Block
from grpo_guard.content.word_set import word_set

MAX_INSTALLS: Final = 50
_COMMAND: Final = re.compile(
    r"\b(?:(?:pip[\d.]{0,5}+|pipx|conda|mamba|micromamba|pipenv)(?:[ \t]++-[\w=-]{1,30}+){0,4}+"
    r"[ \t]++install|(?:poetry|uv|pdm|rye|pixi)[ \t]++add|uv[ \t]++(?:run|tool[ \t]++install)"
    r"|uvx|pipx[ \t]++run)"
    r"[ \t]++((?:[^`\r\n;&|#()\"\\]|\\(?!\\{0,3}n)|(?<=[ \t])\"[\w.,\[\]=<>~!-]{1,80}+\"){1,400})",
    re.I,
)
_MENTIONS: Final = ("install", " add ", "uv ", "uvx ", "pipx ")
_TOOLS: Final = ("pip", "conda", "mamba", "poetry", "uv", "pdm", "rye", "pixi")
# ["-m", "pip", "install", "calc"], and calls to pip from within a program.
_ARGUMENTS: Final = re.compile(
    r"[\"'](?:install|add)[\"']\s{0,8}+((?:,\s{0,8}+[\"'][^\"'\r\n]{1,120}[\"']\s{0,8}+){1,40}+)"
)
# Words that continue a sentence: "pip install the package", "pip install numpy if you need it".
_PROSE: Final = word_set(
    "the a an any all this these those your it them packages package following required missing "
    "if or and to in on for with before first command commands is it's"
)
# PEP 723: packages needed by a script, listed in its comments.
_HEADER: Final = re.compile(
    r"^#[ \t]*+///[ \t]*+script[ \t]*+$((?:\r?\n#[^\r\n]{0,500}+){1,200}+)", re.M
)
_QUOTED: Final = re.compile(r"[\"']([^\"'\r\n]{1,120})[\"']")
_LISTED: Final = re.compile(r"dependencies\s{0,4}=\s{0,4}\[([^\]]{0,4000})\]")
_REQUIREMENT: Final = re.compile(
    r"([A-Za-z][\w.-]{0,60}+)(?:\[[\w, -]{0,80}\])?\s*+(?:[=<>!~;@,]|\Z)"
)
_PINNED: Final = re.compile(r"[A-Za-z][\w.\[\]-]{0,80}[=<>~]=[\w.*]{1,20}\Z")
_INSTALLERS: Final = frozenset({"pip", "wheel", "setuptools", "uv"})
# Packages whose import name differs from the package name.
_IMPORTED: Final = {
    "python_dateutil": "dateutil", "scikit_learn": "sklearn", "pyyaml": "yaml", "pillow": "PIL",
    "beautifulsoup4": "bs4", "opencv_python": "cv2", "python_constraint": "constraint",
}  # fmt: skip

_Installed: TypeAlias = tuple[tuple[int, int], str]  # a span of the completion and a package


def mentions_installs(text: str) -> bool:
    """Whether the text could contain an install command."""
    small = text.lower()  # ten times as fast as a case-insensitive regular expression
    if not any(mention in small for mention in _MENTIONS):
        return False
    small = small.replace("\u0131", "i").replace("\u0307", "")  # which the patterns match as i
    return any(tool in small for tool in _TOOLS)


def check_installs(text: str, blocks: list[Block], modules: Modules) -> list[Note]:
    """Find installed packages that are not on the allow-list; spans refer to the completion."""
    notes = []
    for place, package in chain(_in_commands(text), *map(_in_block, blocks)):
        name = package.partition("[")[0].replace("-", "_")
        name = _IMPORTED.get(name.lower(), name)
        if name.lower() in _INSTALLERS or modules.installs(name):
            continue
        message = f"installs {package[:60]}, which is not on the list of allowed modules"
        notes.append(Note("unlisted_import", message, *place))
        if len(notes) == MAX_INSTALLS:
            break
    return notes


def _in_commands(text: str) -> Iterator[_Installed]:
    if not mentions_installs(text):
        return
    for command in _COMMAND.finditer(text):
        for package in _arguments(command[1]):
            yield command.span(), package
    if "pip" in text or "conda" in text:
        for command in _ARGUMENTS.finditer(text):
            for package in _arguments(" ".join(_QUOTED.findall(command[1]))):
                yield command.span(), package


def _in_block(block: Block) -> Iterator[_Installed]:
    """Yield the packages that a block requires as a requirements file or in a script's header."""
    lines = block.text.split()
    pinned = bool(lines) and not block.explicit and all(map(_PINNED.match, lines))
    required: list[str] = []
    if pinned or block.label.startswith("requirements"):
        required += [line.partition("#")[0].strip() for line in block.text.splitlines()]
    for header in _HEADER.finditer(block.text) if "///" in block.text else ():
        content = re.sub(r"^#", "", header[1], flags=re.M)
        required += chain.from_iterable(_QUOTED.findall(m[1]) for m in _LISTED.finditer(content))
    for requirement in required:
        if match := _REQUIREMENT.match(requirement):
            yield (block.start, block.start + len(block.text)), match[1]


def _arguments(line: str) -> Iterator[str]:
    """Yield the packages in an install command; a URL or archive counts as an unlisted package."""
    skip = False
    for argument in line.split()[:40]:
        word = argument.strip("'\"“”‘’")
        if not word.isascii():
            continue  # a sentence in another language: "pip install numpy в консоли"
        if skip or word.startswith("-"):
            skip = not skip and word in ("-r", "-c", "-n", "-i", "--index-url", "--requirement")
            continue
        if word.lower() in _PROSE:
            return
        word = word.rstrip(".,:")
        if not word or not word[0].isalnum() or word.endswith((".py", ".txt")):
            continue
        match = _REQUIREMENT.match(word)
        yield match[1] if match and "://" not in word and "git+" not in word else word
