"""Names shared by the capture, the servers and the load."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).with_name("data")
# What every endpoint shows.
PAGE = ROOT / "tests" / "data" / "metrics" / "vllm-0.32.0-cpu-loaded.txt"
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
TENANTS = 100
# All of one length, so that one captured Check serves for every tenant.
KEYS = tuple(f"sk-bench-{number:04d}-f3a9c17be2" for number in range(TENANTS))
# Stands in the captured access-log entry for the id of the decision it settles.
DECISION_ID = "0123456789ab-12345"
CHECK_PATH = "/envoy.service.auth.v3.Authorization/Check"
LOGS_PATH = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"
