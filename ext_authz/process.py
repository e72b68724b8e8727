"""What every process of ours does when it begins: which event loop it runs, and how it logs."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable


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
