"""Plays other settings of those rivals that have some, beside the compared ones: once each, half a
minute a run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from loadtest.compare.comparing import line
from loadtest.compare.filters import GRADIENT, REJECTING, Gradient, Rejecting
from loadtest.compare.playing import play
from loadtest.compare.site import Site, site_of
from loadtest.compare.table import SCENARIOS
from loadtest.compare.variants import Variant, adaptive_concurrency, admission_control
from loadtest.processes import end_with_what_was_started

TRIED = ("overload-1.5x", "heavy-tail")
GRADIENTS = {
    "as compared": GRADIENT,
    # The example of Envoy's documentation: it measures the minimum itself, once a minute.
    "as documented": Gradient(90.0, interval_s=60.0, updates=0.0),
    "minimum measured, slower": Gradient(interval_s=60.0),
    "minimum measured, with 8 at once": Gradient(
        interval_s=30.0, request_count=25, min_concurrency=8
    ),
    "set anew every 0.1 s": Gradient(updates=0.0),
    "half as much again is no overload": Gradient(buffer_ratio=0.5),
    "twice as much is no overload": Gradient(buffer_ratio=1.0),
    "by the 90th percentile": Gradient(90.0, buffer_ratio=0.5),
}
REJECTINGS = {
    "as compared, the defaults": REJECTING,
    "a window of 10 s": Rejecting(window_s=10.0, max_rejected_ratio=0.95),
    "a window of 5 s, more aggressive": Rejecting(
        window_s=5.0, aggression=1.5, max_rejected_ratio=0.95
    ),
    "a window of 3 s, below 0.9": Rejecting(
        window_s=3.0, threshold_ratio=0.9, max_rejected_ratio=0.95
    ),
}


def tried(site: Site) -> Iterator[tuple[str, Variant]]:
    """Each setting with its words."""
    for words, gradient in GRADIENTS.items():
        yield words, adaptive_concurrency(site, gradient)
    for words, rejecting in REJECTINGS.items():
        yield words, admission_control(site, rejecting)


def main(argv: list[str] | None = None) -> int:
    """Play and print."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.compare.settings", description=__doc__
    )
    parser.add_argument("names", nargs="*", default=TRIED, metavar="NAME", help="scenarios")
    parser.add_argument("--only", metavar="WORDS", help="one setting, as 'as documented'")
    given = parser.parse_args(argv)
    if unknown := [name for name in given.names if name not in SCENARIOS]:
        parser.error(f"there is no {unknown[0]}; known are {', '.join(SCENARIOS)}")
    if given.only not in (None, *GRADIENTS, *REJECTINGS):
        parser.error(
            f"there is no {given.only!r}; known are {', '.join((*GRADIENTS, *REJECTINGS))}"
        )
    end_with_what_was_started()
    for name in given.names:
        for words, variant in tried(site_of(SCENARIOS[name])):
            if given.only in (None, words):
                print(f"{words}: {line(play(SCENARIOS[name], variant))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
