"""Programs that try to escape from the sandbox, each with a harmless effect.

``sandbox_attempts.txt`` holds them, each after a line ``=== KIND NAME``; those of the kind
``exhaustion`` name the statuses that they may end with. Those of the kind ``later`` were written
when the sandbox was finished, and run once before anything else was looked at. All but
``exhaustion`` run after `PRELUDE`, and find
these names: MARKER (a word that must turn up nowhere), FOLDER (a folder that anybody may write to),
VICTIM (a file in it), TCP and UDP (ports on 127.0.0.1), UNIX (a socket's path), PARENT (the test's
process), and SECRET_START (how a text begins that must not be printed). Whatever works is printed
with ESCAPED.
"""

from pathlib import Path

# Imported beforehand, so that no attempt fails for lack of a module.
TOOLS = [
    *("concurrent.futures.thread", "ctypes", "encodings.idna", "fcntl", "importlib.util"),
    *("logging", "mmap", "multiprocessing.pool", "multiprocessing.shared_memory", "pathlib"),
    *("py_compile", "shutil", "signal", "socket", "sqlite3", "subprocess", "tempfile"),
    *("threading", "urllib.request"),
]

PRELUDE = """
import os, sys
os.close(0)  # so that an attempt does not fail only for the limit on descriptors
os.close(2)
def each(function, *items):
    for item in items:
        try:
            result = function(item)
        except BaseException:
            continue
        print("ESCAPED", item, str(result)[:300])
def libc(name, *arguments):
    import ctypes
    library = ctypes.CDLL(None, use_errno=True)
    result = getattr(library, name)(*arguments)
    if result == -1:
        raise OSError(ctypes.get_errno())
    return result
def native(number, *arguments):
    return libc("syscall", number, *arguments)
PLACES = [FOLDER, "/tmp", "/dev/shm", "/var/tmp", "/run", ".", "/", os.path.expanduser("~")]
"""


def _read() -> dict[str, tuple[str, frozenset[str]]]:
    found = {}
    text = Path(__file__).with_suffix(".txt").read_text()
    for section in text.split("=== ")[1:]:
        head, _, source = section.partition("\n")
        kind, name, *statuses = head.split()
        found[f"{kind}-{name}"] = source, frozenset(statuses)
    return found


_ALL = _read()
ATTEMPTS = {name: source for name, (source, statuses) in _ALL.items() if not statuses}
EXHAUSTION = {name: found for name, found in _ALL.items() if found[1]}
