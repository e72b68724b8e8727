"""Rules over more than one key: names that must exist, times that must fit, nothing twice."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from pathlib import Path

from ext_authz.config import build
from ext_authz.config.discovery import check_discovery
from ext_authz.config.enforcing import check_enforcing
from ext_authz.config.hold import check_hold
from ext_authz.config.journal import check_journal
from ext_authz.config.locate import Loc
from ext_authz.config.model_shapes import check_shapes
from ext_authz.config.modes import check_modes
from ext_authz.config.pipelines import check_pipelines
from ext_authz.config.report import Report
from ext_authz.config.schema import AdmissionControl, PoolBody
from ext_authz.config.sources import check_sources


def check(config: AdmissionControl, report: Report) -> None:
    """Note every problem and warning of a file whose parts are well formed."""
    for rule in _RULES:
        rule(config, report)


def _slos(config: AdmissionControl, report: Report) -> None:
    slo = config.slo
    margin_ms = config.safety_margin_ms
    if slo.default_ms is not None and slo.default.e2e_ms is not None:
        report.problem(
            ("slo", "default", "e2e_ms"), "says the same as slo.default_ms", "delete one of them"
        )
    entries: list[tuple[Loc, float | None]] = [(("slo", "default"), build.default_e2e_ms(slo))]
    for path, body in slo.requests.items():
        where = ("slo", "requests", path)
        if body.slo_ms is not None and body.e2e_ms is not None:
            report.problem((*where, "e2e_ms"), "says the same as slo_ms", "delete one of them")
        if not body.model_fields_set and report.whole("slo"):
            report.problem(where, "promises nothing", "write slo_ms, or delete the path")
        entries.append((where, body.slo_ms or body.e2e_ms))
    for loc, e2e_ms in entries:
        if e2e_ms is not None and e2e_ms <= margin_ms:
            report.warn(
                loc,
                f"{e2e_ms:g} ms is not above safety_margin_ms: only idle endpoints will admit",
                "raise the promise or lower safety_margin_ms",
            )


def _type_rules(config: AdmissionControl, report: Report) -> None:
    types = build.type_names(config)
    tenants = {tenant.name for tenant in config.tenants}
    for index, rule in enumerate(config.scheduling.type_rules):
        loc = ("scheduling", "type_rules", index)
        if rule.type not in types and report.whole("scheduling"):
            report.problem(
                (*loc, "type"), f"no type is named {rule.type}", "add it to scheduling.types"
            )
        if rule.tenant is not None and rule.tenant not in tenants and report.whole("tenants"):
            report.problem(
                (*loc, "tenant"), f"no tenant is named {rule.tenant}", "add it to tenants"
            )


def _pools(config: AdmissionControl, report: Report) -> None:
    if not config.pools and report.whole("pools"):
        report.warn((), "there are no pools: nothing can be admitted", "add pools")
    names: dict[str, int] = {}
    addresses: dict[str, int] = {}
    for index, pool in enumerate(config.pools):
        loc: Loc = ("pools", index, "name")
        if pool.name in names:
            report.problem(
                loc, f"the pool on line {names[pool.name]} has this name too", "rename one of them"
            )
        names.setdefault(pool.name, report.line(loc))
        _found_endpoints(index, pool, report)
        check_shapes(("pools", index, "model_shapes"), pool.model_shapes, pool.models, report)
        for place, body in enumerate(pool.endpoints):
            loc = ("pools", index, "endpoints", place)
            key = build.address_of(body.url)
            if key in addresses:
                report.problem(
                    loc,
                    f"{key} is an endpoint already, on line {addresses[key]}",
                    "list each server once; several models of one server go into one pool",
                )
            addresses.setdefault(key, report.line(loc))


def _found_endpoints(index: int, pool: PoolBody, report: Report) -> None:
    loc: Loc = ("pools", index)
    if pool.discover is not None:
        check_discovery((*loc, "discover"), pool.discover, report)
        for place, body in enumerate(pool.endpoints):
            host = build.address_of(body.url).rpartition(":")[0].strip("[]")
            if not _is_address(host):
                report.warn(
                    (*loc, "endpoints", place),
                    "is a name: beside endpoints that are found, Envoy takes addresses only",
                    "write its IP address, or put it into a pool of its own",
                )
    elif not pool.endpoints and report.whole("pools"):
        report.problem(
            (*loc, "endpoints"), "names no server", "list at least one, or write `discover:`"
        )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _demotion(config: AdmissionControl, report: Report) -> None:
    if not report.whole("pools"):
        return
    pools = {pool.name: pool for pool in config.pools}
    seen: set[str] = set()
    for index, pool in enumerate(config.pools):
        loc = ("pools", index, "demote_to")
        if pool.demote_to is None:
            continue
        target = pools.get(pool.demote_to)
        if target is None:
            report.problem(loc, f"no pool is named {pool.demote_to}", "name one of the pools")
            continue
        cycle = _cycle(pool.name, pools)
        if cycle and not seen.intersection(cycle):
            seen.update(cycle)
            report.problem(
                loc,
                f"demotion goes in a circle: {' > '.join([*cycle, cycle[0]])}",
                "delete one demote_to of the circle",
            )
        if target.models and not (pool.models and set(pool.models) <= set(target.models)):
            missing = sorted(set(pool.models) - set(target.models))
            what = ", ".join(missing[:5]) or "any model"
            report.problem(
                loc,
                f"{target.name} does not serve {what}, which {pool.name} does",
                f"add it to the models of {target.name} (served-name aliases count), "
                "or delete demote_to",
            )


def _cycle(start: str, pools: dict[str, PoolBody]) -> list[str]:
    """The pools on the circle that leads from `start` back to it, or nothing."""
    path = [start]
    while (name := pools[path[-1]].demote_to) in pools and name is not None:
        if name == start:
            return path
        if name in path:
            return []
        path.append(name)
    return []


def _listeners(config: AdmissionControl, report: Report) -> None:
    edge, server = config.edge, config.server
    if not report.whole("edge", "server", "hold"):
        return
    least_s = build.least_check_timeout_s(config)
    if edge.check_timeout is not None and edge.check_timeout < least_s:
        report.problem(
            ("edge", "check_timeout"),
            "is shorter than hold.limit + 300ms, or than 500ms",
            f"write at least {round(least_s * 1000)}ms, or delete it",
        )
    if server.lease is not None and server.lease < 2 * edge.access_log_periodic:
        report.problem(
            ("server", "lease"),
            "is shorter than two reports of edge.access_log_periodic: running work would expire",
            f"write at least {2 * edge.access_log_periodic:g}s, or delete it",
        )
    if server.grpc_listen == server.admin_listen and not server.grpc_listen.endswith(":0"):
        report.problem(
            ("server", "admin_listen"), "is the same as grpc_listen", "choose another port"
        )
    if len(set(server.api_key_headers)) != len(server.api_key_headers):
        report.problem(
            ("server", "api_key_headers"), "names a header twice", "list each header once"
        )


def _learning(config: AdmissionControl, report: Report) -> None:
    learning = config.learning
    if not report.whole("learning"):
        return
    if "response_tap_share" in learning.model_fields_set and not learning.response_tap:
        report.warn(
            ("learning", "response_tap_share"),
            "is of no use while the tap is off",
            "write `response_tap: true`, or delete it",
        )
    if learning.state_file is not None:
        _state_file(learning.state_file, report)
    elif "save_every" in learning.model_fields_set:
        report.warn(
            ("learning", "save_every"),
            "is of no use without a file",
            "write `state_file:`, or delete it",
        )


def _state_file(name: str, report: Report) -> None:
    """Warnings only: the server may run on another machine, and serves without the file."""
    # Of os.path, which takes what it may not look at for nothing there.
    path = os.path.realpath(Path(report.file).parent / name)
    folder = os.path.dirname(path)
    trouble = None
    if not os.path.isdir(folder):
        trouble = ("is in a folder that does not exist", "make the folder, or name another")
    elif not os.access(folder, os.W_OK | os.X_OK):
        trouble = ("is in a folder that cannot be written", "let the gate write there")
    elif os.path.exists(path) and not os.path.isfile(path):
        trouble = ("is no regular file", "name a file that the gate may write")
    if trouble is not None:
        report.warn(("learning", "state_file"), *trouble)


_RULES: tuple[Callable[[AdmissionControl, Report], None], ...] = (
    check_modes,
    check_enforcing,
    check_hold,
    check_sources,
    _slos,
    _type_rules,
    _pools,
    _demotion,
    check_pipelines,
    _listeners,
    _learning,
    check_journal,
)
