"""The product without a bound on what it takes in at once, run as `python -m
tests.benchmarks.naive_server` with the arguments of `ext-authz`.

What it shows is the price of working off a message of the access log in one go.
"""

from __future__ import annotations

import math
import sys

from ext_authz import cli
from ext_authz.serving import access_log

access_log.SLICE_S = math.inf
sys.exit(cli.main(sys.argv[1:]))
