"""The modules that a program can import, and which members of each it can use.

The default is the standard library's arithmetic and bookkeeping, plus numpy and sympy, which are
imported by real solutions of mathematics problems (OpenMathInstruct), plus the modules in `SETS`.
Some modules are only partly harmless: `sys` can end a program, but also holds `sys.modules`. In
addition, every Python module leaks the modules that it imports itself (``random._os.system``), so
members are checked too.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from grpo_guard.content.word_set import word_set

_STANDARD: Final = word_set(
    "__future__ abc argparse array asyncio bisect calendar cmath collections colorsys contextlib "
    "copy csv dataclasses datetime decimal difflib doctest enum fractions functools graphlib "
    "hashlib heapq html io itertools json keyword locale logging math numbers numpy operator "
    "pprint queue random re reprlib secrets statistics string struct sympy sys textwrap threading "
    "time types typing typing_extensions unicodedata unittest warnings zoneinfo"
)
SETS: Final = {
    "algorithms": word_set(
        "sortedcontainers networkx bisect heapq collections itertools functools"
    ),
    "text": word_set("csv difflib hashlib html nltk re regex string textwrap unicodedata"),
    "data": word_set("pandas numpy scipy statistics csv json datetime dateutil pytz"),
    "science": word_set("scipy sympy mpmath networkx numpy statsmodels sklearn torch"),
    "plots": word_set("matplotlib seaborn plotly"),
    "tests": word_set("unittest pytest hypothesis doctest"),
}
"""Names accepted by ``allow=`` and ``imports=`` as shorthand for several modules."""
# An import that everyone uses teaches nothing: an attacker's library is one that few people know.
DEFAULT: Final = _STANDARD.union(*SETS.values())
_ONLY_TEXT: Final = {
    "sys": "maxsize float_info int_info stdin stdout stderr exit version version_info byteorder "
    "argv platform getdefaultencoding setrecursionlimit getrecursionlimit getsizeof hash_info "
    "set_int_max_str_digits",
    "types": "MethodType SimpleNamespace MappingProxyType GenericAlias NoneType UnionType",
    "io": "BytesIO StringIO",
    "warnings": "warn filterwarnings simplefilter catch_warnings",
    "asyncio": "run gather sleep create_task Queue wait TaskGroup Lock Semaphore wait_for Event "
    "as_completed timeout ensure_future Task Future",
    "contextlib": "contextmanager suppress nullcontext ExitStack closing AbstractContextManager "
    "ContextDecorator asynccontextmanager AsyncExitStack",
    "json": "dump dumps load loads JSONDecodeError JSONEncoder JSONDecoder",
    "locale": "setlocale currency format_string LC_ALL LC_NUMERIC LC_MONETARY LC_TIME Error "
    "atof getlocale localeconv",
    "zoneinfo": "ZoneInfo",
    "argparse": "ArgumentParser Namespace ArgumentTypeError SUPPRESS ArgumentDefaultsHelpFormatter "
    "RawDescriptionHelpFormatter BooleanOptionalAction",
    "doctest": "testmod",
    "logging": "basicConfig debug info warning error critical exception log getLogger Logger "
    "DEBUG INFO WARNING ERROR CRITICAL NOTSET StreamHandler Formatter disable",
    "pprint": "pprint pp pformat PrettyPrinter",
    "os": "path sep linesep",
    "csv": "reader writer DictReader DictWriter Error Sniffer Dialect excel excel_tab "
    "register_dialect QUOTE_ALL QUOTE_MINIMAL QUOTE_NONE QUOTE_NONNUMERIC field_size_limit",
    "hashlib": "md5 sha1 sha224 sha256 sha384 sha512 sha3_224 sha3_256 sha3_384 sha3_512 blake2b "
    "blake2s shake_128 shake_256",
    "html": "escape unescape",
    "struct": "pack unpack pack_into unpack_from iter_unpack calcsize Struct error",
    # Deep recursion is run in a thread with a larger stack.
    "threading": "Thread Lock RLock Semaphore Event Condition Barrier Timer local stack_size "
    "current_thread active_count",
    # Without the loaders, which load tests by name and so can import by name.
    "unittest": "TestCase main skip skipIf expectedFailure IsolatedAsyncioTestCase",
}
_NEVER_TEXT: Final = {
    "time": "sleep",  # stalls the reward's sandbox
    "string": "Formatter",  # reads attributes named in data
    "typing": "get_type_hints ForwardRef evaluate_forward_ref",  # evaluate strings
    "typing_extensions": "get_type_hints ForwardRef evaluate_forward_ref",
    "dataclasses": "make_dataclass",
    "numpy": "load loads save savez savez_compressed savetxt loadtxt genfromtxt fromfile memmap "
    "ctypeslib f2py distutils DataSource fromregex lib core testing compat tofile safe_eval source "
    "test get_include lookfor",
    "pandas": "eval io api testing compat core read_pickle to_pickle read_hdf read_sql",
    "pytest": "main importorskip",  # import by name
    "scipy": "io misc",
    "torch": "load save hub jit package compile classes ops cpp_extension distributed",
    "nltk": "download data",
    "sympy": "parse_expr lambdify sympify parsing preview init_printing init_session plotting "
    "testing interactive external codegen printing source test doctest autowrap ufuncify",
}
_ONLY: Final = {module: word_set(members) for module, members in _ONLY_TEXT.items()}
_NEVER: Final = {module: word_set(members) for module, members in _NEVER_TEXT.items()}
# Attributes in which modules describe themselves.
_ABOUT: Final = word_set("__name__ __version__ __doc__ __path__ __file__ __all__")
_NONE: Final[frozenset[str]] = frozenset()
_DOTTED: Final = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")


# With these modules, a program imports or runs text from strings, which hides what it teaches.
_HIDING: Final = word_set("builtins code codeop ctypes imp marshal pty pydoc runpy site zipimport")
_BY_NAME: Final = {
    "sys": word_set("modules meta_path path_hooks"),
    "unittest": word_set("loader defaultTestLoader TestLoader"),
    "pytest": word_set("importorskip"),
    "hydra": word_set("utils"),
}
# The same for members of any module, which could re-export the above, and for string evaluators.
_HIDDEN: Final = word_set(
    "builtins importlib ctypes marshal runpy pkgutil pydoc sys import_string "
    "symbol_by_name load_object namedAny import_item resolve_name load_entry_point unsafe_load "
    "UnsafeLoader ImportString exec_ dlopen"
)


# Names that an answer gives to its own file, or to the reader's.
PLACEHOLDERS: Final = word_set(
    "app main solution my_module mymodule your_module module_name your_package"
)


@lru_cache(maxsize=1)
def well_known() -> frozenset[str]:
    """Return the standard library's modules, plus packages used by many programs.

    ``known.txt`` was chosen by hand. ``popular.txt`` lists the 15,000 packages that were downloaded
    most often from the Python Package Index in autumn 2026, without families of plugins, and
    without ordinary words ("utils", "result"), which an attacker's library could be called, too.
    Modules that import or run the contents of strings are left out.
    """
    here = Path(__file__)
    lists = (here.with_name(name) for name in ("known.txt", "popular.txt"))
    packages = " ".join(file.read_text(encoding="utf-8") for file in lists).split()
    return (sys.stdlib_module_names | DEFAULT).union(packages) - _HIDING


@lru_cache(maxsize=1)
def _installable() -> frozenset[str]:
    return frozenset(name.casefold() for name in well_known())


@lru_cache(maxsize=1)
def _tables() -> dict[str, frozenset[str]]:
    """Return the public members of common modules in all Python versions that programs target."""
    text = Path(__file__).with_name("members.json").read_text(encoding="utf-8")
    return {module: frozenset(members.split()) for module, members in json.loads(text).items()}


def public_members(module: str) -> frozenset[str] | None:
    """Return the names that ``from module import *`` can bind, or None if unknown."""
    if module in _ONLY:
        return _ONLY[module]
    return _tables().get(module)


@dataclass(frozen=True, slots=True)
class Modules:
    """An allow-list of modules.

    Args:
        own: Modules with only some members allowed, according to the tables above.
        free: Modules that the user allowed by name; all their public members are allowed.
        known: Well-known modules. All members that exist according to the tables are allowed,
            except those that import by name.
    """

    own: frozenset[str]
    free: frozenset[str]
    known: frozenset[str] = _NONE

    @classmethod
    def build(
        cls, allow: Iterable[str] | None, imports: Iterable[str] | None, reach: bool = False
    ) -> "Modules":
        """Build the default list, or one from ``imports`` if given, and extend it with ``allow``.

        The modules of a set keep their restrictions; a module named on its own has none. With
        ``reach``, everything in `well_known` is allowed as well.

        Raises:
            ValueError: a name is not a dotted identifier, or a string was given instead of a list.
        """
        named = _checked("allow", allow or ())
        known = well_known() if reach else _NONE
        free = named - SETS.keys()
        own = frozenset[str]().union(*(SETS[name] for name in named & SETS.keys()))
        if imports is None:
            return cls((DEFAULT | own) - free, free, known - free)
        listed = _checked("imports", imports)
        own = own.union(*(SETS[name] for name in listed & SETS.keys()))
        free |= listed - SETS.keys()
        return cls(own - free, free, known - free)

    def given(self, imported: Iterable[str]) -> "Modules":
        """Return this list, extended with the modules that the question imports.

        A module that reaches the system can then be imported, because answers often repeat the
        question's code, but its members cannot be used.
        """
        new = {module for module in imported if not self.allows(module)}
        if not new:
            return self
        if self.known:
            return replace(self, known=self.known | (new - _HIDING))
        return replace(self, own=self.own | new)

    def allows(self, module: str) -> bool:
        """Whether a module, or a package that contains it, is on the list."""
        parts = module.split(".")
        if any(part.startswith("_") and part != "__future__" for part in parts):
            return False
        heads = {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
        return not all(heads.isdisjoint(some) for some in (self.own, self.free, self.known))

    @staticmethod
    def is_a_file(parts: Sequence[str]) -> bool:
        """Whether a module path could be the author's own file: not internal, hiding no code."""
        return _HIDING.isdisjoint(parts) and not any(part.startswith("_") for part in parts)

    def installs(self, package: str) -> bool:
        """Whether a package, spelled as in an index, is listed; known names can differ in case."""
        name = package.replace("-", "_")
        return self.allows(name) or (bool(self.known) and name.casefold() in _installable())

    def path_problem(self, module: str, members: Sequence[str]) -> str | None:
        """Return why a path like ``sympy.core.sympify.sympify`` is not allowed, or None if it is.

        Only the path's first member is looked up in the tables. Further members must not be
        internal, other modules, or members that the package must not provide under any path.
        """
        if problem := self.problem(module, members[0]):
            return problem
        root = module.partition(".")[0]
        never = REACHING if root in self.free else _NEVER.get(root, _NONE) | REACHING
        if root in self.known:
            never = _BY_NAME.get(root, _NONE) | _HIDDEN
        for member in members[1:]:
            internal = member.startswith("_") and not member.endswith("__")
            if internal or member in never:
                return f"{module}.{'.'.join(members)[:60]} reaches further than a solution needs"
        return None

    def problem(self, module: str, member: str) -> str | None:
        """Return why a member of an allowed module must not be used, or None if it can be."""
        name = f"{module}.{member}"
        root = module.partition(".")[0]
        if member.startswith("_") and member not in _ABOUT:
            return f"{name} is internal to the module"
        if root in self.free or module in self.free:
            # Even an allowed module must not give access to modules that it imports itself.
            return f"{name} is another module" if member in REACHING else None
        if root in self.known:
            if member in _HIDDEN or member in _BY_NAME.get(root, _NONE):
                return f"{name} imports by name"
            return None if member in _NEVER.get(root, _NONE) else _missing(module, member, name)
        if member not in _ONLY.get(root, _NONE if root in REACHING else {member}):
            return f"{name} reaches further than a solution needs"
        if member in _NEVER.get(root, _NONE):
            return f"{name} reaches further than a solution needs"
        if problem := _missing(module, member, name):
            return problem
        return f"{name} is another module" if member in REACHING else None


def _missing(module: str, member: str, name: str) -> str | None:
    known = _tables().get(module)
    return f"{name} does not exist" if known is not None and member not in known else None


REACHING: Final = word_set(
    "os sys posix nt subprocess builtins importlib socket shutil ctypes pickle marshal inspect "
    "codecs pathlib tempfile urllib http requests base64 binascii zlib bz2 lzma runpy code codeop "
    "pty ftplib smtplib telnetlib signal multiprocessing threading resource gc sysconfig site "
    "sqlite3"
)


def _checked(argument: str, names: Iterable[str]) -> frozenset[str]:
    if isinstance(names, str | bytes):
        raise ValueError(f"{argument}: expected a list of module names, got {names!r:.80}")
    listed = list(names)
    for name in listed:
        if not isinstance(name, str) or not _DOTTED.fullmatch(name):
            raise ValueError(f"{argument}: expected module names, got {name!r:.80}")
    return frozenset(listed)


@lru_cache(maxsize=1)
def forgotten() -> dict[str, str]:
    """Return names that solutions often use without importing, mapped to their modules.

    Many sites pre-import these names. Modules such as ``math`` map to themselves. None of the names
    does arithmetic under a different name.
    """
    named = {name: module for module in sorted(BEFOREHAND) for name in _tables()[module]}
    return named | {module: module for module in BEFOREHAND}


# Not operator, numpy or sympy: their add and multiply look just like an attacker's library.
BEFOREHAND: Final = word_set(
    "bisect cmath collections copy dataclasses datetime decimal enum fractions functools heapq "
    "itertools math random re statistics string typing"
)
