"""A driver library without GPUs, and a process that reads it as a gate would."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CACHE = ROOT / ".cache" / "fake_nvml"
FLAGS = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden")


def built(old_driver: bool = False) -> Path:
    """The folder that holds libnvidia-ml.so.1, compiled unless that was done before."""
    source = HERE / "nvml.c"
    print_ = hashlib.sha256(source.read_bytes() + bytes([old_driver])).hexdigest()[:16]
    folder = CACHE / print_
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libnvidia-ml.so.1"
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            if shutil.which("cc") is None:
                pytest.skip("cannot be built: no C compiler")
            made = folder / "unfinished.so"
            define = ("-DOLD_DRIVER",) if old_driver else ()
            subprocess.run(["cc", *FLAGS, *define, "-o", made, source], check=True, timeout=60)
            made.rename(library)
    return folder


class Driver:
    """What the fake driver says, changed while it is in use."""

    def __init__(self, control: Path) -> None:
        self.control = control
        self.says({})

    def says(self, lines: Mapping[str, object]) -> None:
        """From now on exactly `lines`, and the defaults; see nvml.c."""
        text = "".join(f"{name} {value}\n" for name, value in lines.items())
        fresh = self.control.with_suffix(".new")
        fresh.write_text(text, encoding="latin-1")
        fresh.replace(self.control)

    def log(self) -> list[str]:
        """`init` and `shutdown` as they came."""
        path = Path(f"{self.control}.log")
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


class Host:
    """A process of its own in which NvmlSources live, so that the module pynvml finds and loads
    the library the way it always does. `library` None: there is none."""

    def __init__(self, control: Path, library: Path | None) -> None:
        if library is None:
            # Found before any that this machine may have, and cannot be loaded.
            (control.parent / "libnvidia-ml.so.1").touch()
        environment = {**os.environ, "FAKE_NVML": str(control), "PYTHONPATH": str(ROOT)}
        environment["LD_LIBRARY_PATH"] = str(library or control.parent)
        self.child = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.support.fake_nvml.host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def ask(self, do: str, **arguments: object) -> Any:
        """What the process answers; see host.py for what it understands."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        assert line, f"the process ended with {self.child.wait(10)}"
        return json.loads(line)

    def new(self, **settings: object) -> None:
        """Close the source that there is and make another."""
        assert self.ask("new", **settings) == {}

    def poll(self, now: float) -> Any:
        return self.ask("poll", now=now)

    def devices(self, now: float) -> dict[str, Any]:
        """The devices of a poll that has to succeed, by name."""
        answer = self.poll(now)
        assert "error" not in answer, answer
        return {device["device"]: device for device in answer["devices"]}

    def end(self) -> int:
        """Let the process end by itself; its exit status."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        return self.child.wait(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                pipe.close()


@dataclass(frozen=True)
class Rig:
    """A process that reads, and the driver it reads."""

    host: Host
    driver: Driver

    def renewed(self, lines: Mapping[str, object], settings: Mapping[str, Any]) -> Rig:
        """With a source that has read nothing yet, and an empty log."""
        self.driver.says(lines)
        self.host.new(**settings)
        Path(f"{self.driver.control}.log").unlink(missing_ok=True)
        return self


@contextmanager
def rig_in(folder: Path) -> Iterator[Rig]:
    """A process and its driver, whose control file lies in `folder`."""
    driver = Driver(folder / "control")
    with Host(driver.control, built()) as host:
        yield Rig(host, driver)
