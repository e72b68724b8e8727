"""What every process of ours does when it begins: which event loop it runs, how it logs, and which
build of the package it is."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec


def log_to_stderr(level: int | str) -> None:
    """Write log records of `level` (a number or a name) and above to standard error."""
    logging.basicConfig(
        level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loop; None is the standard one."""
    try:
        import uvloop  # the `fast` extra; the standard loop serves as well
    except ImportError:
        return None
    return uvloop.new_event_loop


def is_compiled() -> bool:
    """Whether decisions run compiled to C; docs/adr/0010-compiled-build.md."""
    found = find_spec("ext_authz.admission.controller")
    return found is not None and not (found.origin or "").endswith(".py")


def build() -> str:
    """Which build of the package this is, in words."""
    try:
        number = version("ext-authz")
    except PackageNotFoundError:
        number = "not installed"
    return f"{number} ({'compiled' if is_compiled() else 'plain Python'})"
