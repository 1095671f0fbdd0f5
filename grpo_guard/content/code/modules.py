"""Which modules a program may import, and what it may use of them.

The default is the standard library's arithmetic and bookkeeping plus numpy and sympy, which real
solutions of mathematics problems import (OpenMathInstruct). Some modules are useful in part only:
`sys` ends a program and holds `sys.modules`. And every Python module leaks the modules that it
imports itself (``random._os.system``), so members are checked too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from grpo_guard.content.code.names import words

DEFAULT: Final = words(
    "__future__ abc argparse array asyncio bisect calendar cmath collections colorsys contextlib "
    "copy dataclasses datetime decimal difflib doctest enum fractions functools graphlib heapq io "
    "itertools json keyword locale logging math numbers numpy operator pprint queue random re "
    "reprlib secrets "
    "statistics string sympy sys textwrap time types typing typing_extensions unicodedata "
    "warnings zoneinfo"
)
_ONLY_TEXT: Final = {
    "sys": "maxsize float_info int_info stdout stderr exit version version_info byteorder argv "
    "platform getdefaultencoding setrecursionlimit getrecursionlimit getsizeof hash_info "
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
    "sympy": "parse_expr lambdify sympify parsing preview init_printing init_session plotting "
    "testing interactive external codegen printing source test doctest autowrap ufuncify",
}
_ONLY: Final = {module: words(members) for module, members in _ONLY_TEXT.items()}
_NEVER: Final = {module: words(members) for module, members in _NEVER_TEXT.items()}
_NONE: Final[frozenset[str]] = frozenset()
_DOTTED: Final = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")


@lru_cache(maxsize=1)
def _tables() -> dict[str, frozenset[str]]:
    """Public members of standard modules over the Python versions that programs are written for."""
    text = Path(__file__).with_name("members.json").read_text(encoding="utf-8")
    return {module: frozenset(members.split()) for module, members in json.loads(text).items()}


def public_members(module: str) -> frozenset[str] | None:
    """What ``from module import *`` can bring, as far as it is known."""
    if module in _ONLY:
        return _ONLY[module]
    return _tables().get(module)


@dataclass(frozen=True, slots=True)
class Modules:
    """An allow-list of modules.

    Args:
        own: Modules whose use is restricted as above.
        free: Modules that the user allowed by name: any public member of theirs.
    """

    own: frozenset[str]
    free: frozenset[str]

    @classmethod
    def build(cls, allow: Iterable[str] | None, imports: Iterable[str] | None) -> Modules:
        """The default list extended by ``allow``, or ``imports`` in its place.

        Raises:
            ValueError: a name is not a dotted identifier, or a string stands for a list.
        """
        extra = _checked("allow", allow or ())
        if imports is None:
            return cls(DEFAULT - extra, extra)
        return cls(frozenset(), _checked("imports", imports) | extra)

    def allows(self, module: str) -> bool:
        """Whether a module, or a package around it, is on the list."""
        if module in self.own:
            return True
        parts = module.split(".")
        if any(part.startswith("_") and part != "__future__" for part in parts):
            return False
        heads = {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
        return parts[0] in self.own or not heads.isdisjoint(self.free)

    def path_problem(self, module: str, members: Sequence[str]) -> str | None:
        """Why a walk like ``sympy.core.sympify.sympify`` is not to be taken.

        Only its first member is looked up in the tables; further ones must not be internal, other
        modules, or what the package must not give by any way.
        """
        if problem := self.problem(module, members[0]):
            return problem
        root = module.partition(".")[0]
        never = _NONE if root in self.free else _NEVER.get(root, _NONE)
        for member in members[1:]:
            internal = member.startswith("_") and not member.endswith("__")
            if internal or member in never or member in REACHING:
                return f"{module}.{'.'.join(members)[:60]} reaches further than a solution needs"
        return None

    def problem(self, module: str, member: str) -> str | None:
        """Why an allowed module's member is not to be used; None where it may be."""
        name = f"{module}.{member}"
        root = module.partition(".")[0]
        if member.startswith("_") and member not in {"__name__", "__version__", "__doc__"}:
            return f"{name} is internal to the module"
        if root in self.free or module in self.free:
            # Even an allowed module must not hand on what it imports itself.
            return f"{name} is another module" if member in REACHING else None
        if root in _ONLY and member not in _ONLY[root]:
            return f"{name} reaches further than a solution needs"
        if member in _NEVER.get(root, _NONE):
            return f"{name} reaches further than a solution needs"
        known = _tables().get(module)
        if known is not None and member not in known:
            return f"{name} does not exist"
        return f"{name} is another module" if member in REACHING else None


REACHING: Final = words(
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
