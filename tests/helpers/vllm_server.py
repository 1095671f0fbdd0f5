"""A vLLM server for the length of a `with` block, for tests."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

# Seconds between SIGTERM, which lets the engine processes end, and SIGKILL.
GRACE = 15.0


class ServerError(RuntimeError):
    """The server ended, or did not answer in time; the message has the end of its log."""


@contextmanager
def vllm_server(
    python: Path,
    model: Path,
    *,
    max_model_len: int,
    max_logprobs: int,
    dtype: str = "float32",
    prefix_caching: bool = True,
    max_num_seqs: int = 8,
    served_name: str = "policy",
    startup_timeout: float = 300.0,
    options: Sequence[str] = (),
) -> Iterator[tuple[str, str]]:
    """Start a server on a free port of 127.0.0.1 and stop it at the end, whatever happens.

    Args:
        python: Interpreter of the environment that has vLLM.
        model: Folder with weights and tokenizer. Nothing is downloaded.
        max_model_len: Longest sequence in tokens, the generated one included.
        max_logprobs: Most log-probs per position that a request may ask for.
        dtype: Number format of the weights and the arithmetic.
        prefix_caching: vLLM's own default.
        max_num_seqs: Sequences computed at once.
        served_name: The model's name in requests.
        startup_timeout: Seconds until the server must be healthy.
        options: Further command-line options.

    Yields:
        (base URL with ``/v1``, API key). The key is random: other users of the machine can reach
        the port as well.

    Raises:
        ServerError: the server did not become healthy.
    """
    key, port = secrets.token_hex(16), _free_port()
    command = [
        *(str(python), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model), "--served-model-name", served_name),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", dtype, "--max-model-len", str(max_model_len)),
        *("--max-logprobs", str(max_logprobs), "--max-num-seqs", str(max_num_seqs)),
        "--enable-prefix-caching" if prefix_caching else "--no-enable-prefix-caching",
        # Without it, requests inherit sampling settings from a file in the model's folder.
        *("--generation-config", "vllm", "--enforce-eager"),
        *options,
    ]
    with tempfile.TemporaryFile() as log:
        server = start(command, env=_environment(key), log=log.fileno())
        try:
            _wait_until_healthy(server, port, startup_timeout, log.fileno())
            yield f"http://127.0.0.1:{port}/v1", key
        finally:
            stop(server)


def start(command: Sequence[str], *, env: Mapping[str, str], log: int) -> subprocess.Popen[bytes]:
    """Start a server that `stop` ends, and that ends by itself if this process is killed.

    Args:
        command: The server's command line.
        env: Its whole environment.
        log: File descriptor for its output.
    """
    launcher = Path(__file__).with_name("dies_with_parent.py")
    # A process group of its own: the engine's processes end with it even if they hang.
    return subprocess.Popen(
        [sys.executable, "-I", str(launcher), str(os.getpid()), *command],
        env=dict(env),
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def stop(server: subprocess.Popen[bytes]) -> None:
    """End a server and all its processes: SIGTERM first, SIGKILL for the rest."""
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(GRACE)
        except subprocess.TimeoutExpired:
            server.kill()
    with suppress(ProcessLookupError):  # nothing was left
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def _environment(key: str) -> dict[str, str]:
    quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    # The key goes through the environment, because command lines are visible to other users.
    return {"VLLM_CPU_KVCACHE_SPACE": "1", **os.environ, **quiet, "VLLM_API_KEY": key}


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def _wait_until_healthy(
    server: subprocess.Popen[bytes], port: int, timeout: float, log: int
) -> None:
    deadline = time.monotonic() + timeout
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise ServerError(f"the server ended with code {server.returncode}:\n{_end(log)}")
        try:
            with opener.open(f"http://127.0.0.1:{port}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.25)
    raise ServerError(f"the server was not healthy after {timeout} s:\n{_end(log)}")


def _end(log: int) -> str:
    """The last 4 KB of the log. `pread`, because server and reader share one file position."""
    size = os.fstat(log).st_size
    return os.pread(log, 4096, max(0, size - 4096)).decode(errors="replace")
