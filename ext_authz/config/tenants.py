"""Rules of tenants: who may use what, and whose key is whose."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ext_authz.config import build
from ext_authz.config.files import Files
from ext_authz.config.keys import parse_digest, read_key_file
from ext_authz.config.locate import Loc
from ext_authz.config.report import Report
from ext_authz.config.schema import AdmissionControl, TenantBody
from ext_authz.errors import Problem


def check_tenants(config: AdmissionControl, report: Report) -> None:
    """Note what is wrong with names, types, models and limits of tenants."""
    if not config.tenants and report.whole("tenants"):
        report.warn((), "there are no tenants: every key is unknown", "add tenants")
    names: dict[str, int] = {}
    served = {model for pool in config.pools for model in pool.models}
    known = report.whole("pools") and bool(config.pools) and all(p.models for p in config.pools)
    for index, tenant in enumerate(config.tenants):
        loc: Loc = ("tenants", index)
        if tenant.name in names:
            report.problem(
                (*loc, "name"),
                f"the tenant on line {names[tenant.name]} has this name too",
                "rename one of them",
            )
        names.setdefault(tenant.name, report.line((*loc, "name")))
        _check_types(config, tenant, loc, report)
        _check_models(tenant, served if known else None, loc, report)
        _check_bursts(tenant, loc, report)


def _check_types(config: AdmissionControl, tenant: TenantBody, loc: Loc, report: Report) -> None:
    if tenant.type is not None and tenant.types is not None:
        report.problem(
            (*loc, "types"),
            "stands beside type",
            "keep types and put the default type first, or keep type",
        )
        return
    if not report.whole("scheduling"):
        return
    known = build.type_names(config)
    for place, name in enumerate(tenant.types or [tenant.type or build.DEFAULT_TYPE]):
        if name not in known:
            where: Loc = (*loc, "type") if tenant.types is None else (*loc, "types", place)
            report.problem(where, f"no type is named {name}", "add it to scheduling.types")


def _check_models(tenant: TenantBody, served: set[str] | None, loc: Loc, report: Report) -> None:
    """`served` None: some pool serves any model, or it is not known what pools serve."""
    places: list[tuple[Loc, str]] = [
        ((*loc, "models", place), model) for place, model in enumerate(tenant.models or ())
    ]
    if tenant.default_model is not None:
        places.append(((*loc, "default_model"), tenant.default_model))
        if tenant.models is not None and tenant.default_model not in tenant.models:
            report.problem(
                (*loc, "default_model"), "is not among the tenant's models", "add it to models"
            )
    for where, model in places:
        if served is not None and model not in served:
            report.problem(
                where, f"no pool serves {model}", "add it to the models of a pool that does"
            )


def _check_bursts(tenant: TenantBody, loc: Loc, report: Report) -> None:
    limits = tenant.limits
    pairs = (
        ("burst", limits.burst, "requests_per_second", limits.requests_per_second),
        ("token_burst", limits.token_burst, "tokens_per_minute", limits.tokens_per_minute),
    )
    if not report.whole("tenants"):
        return
    for name, burst, rate_name, rate in pairs:
        if burst is not None and rate is None:
            report.problem(
                (*loc, "limits", name),
                f"means nothing without {rate_name}",
                f"add {rate_name}, or delete {name}",
            )


def collect_keys(
    config: AdmissionControl, report: Report, files: Files, base: Path
) -> dict[bytes, str]:
    """Tenant by key digest; the same digest for two tenants is a problem, a raw key another.

    Key files are looked for relative to `base`.
    """
    keys: dict[bytes, str] = {}
    for index, tenant in enumerate(config.tenants):
        loc: Loc = ("tenants", index)
        any_key = False
        for where, value in _digests(tenant, loc, report, files, base):
            any_key = True
            owner = keys.setdefault(value, tenant.name)
            if owner != tenant.name:
                report.problem(
                    where,
                    f"tenants {owner} and {tenant.name} have the same key",
                    "give each tenant keys of its own",
                )
        if not any_key and not (tenant.api_key_sha256 or tenant.api_key_files):
            report.warn(
                loc,
                f"tenant {tenant.name} has no key: nobody can be it",
                "add api_key_sha256 or api_key_files",
            )
    return keys


def _digests(
    tenant: TenantBody, loc: Loc, report: Report, files: Files, base: Path
) -> Iterator[tuple[Loc, bytes]]:
    for place, text in enumerate(tenant.api_key_sha256):
        where: Loc = (*loc, "api_key_sha256", place)
        value = parse_digest(text)
        if value is None:
            report.problem(
                where,
                "is not 64 hexadecimal digits: it looks like a raw key",
                "run `ext-authz hash-key` and write its result; change the key if this file "
                "was shared",
            )
        else:
            yield where, value
    for place, name in enumerate(tenant.api_key_files):
        where = (*loc, "api_key_files", place)
        path = base / name
        try:
            found = read_key_file(files.read(path))
        except OSError as error:
            why = error.strerror or "not a readable file"
            report.problem(where, f"cannot be read: {why}", "mount the file, or correct the path")
            continue
        for line, message, remedy in found.faults:
            report.problems.append(Problem(str(path), line, "(key file)", message, remedy))
        for _, value in found.digests:
            yield where, value
