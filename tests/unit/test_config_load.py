"""Files to settings: what loads means what it says, what does not says everything at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ext_authz.config import Loaded, load
from ext_authz.config.keys import digest
from ext_authz.errors import ConfigError
from ext_authz.overload import Demotion, MemoryRules
from ext_authz.settings import (
    CostRules,
    EdgeSettings,
    Endpoint,
    FallbackAction,
    Pipeline,
    PriorityClass,
    RequestType,
    ServerSettings,
    Slo,
    Stage,
    TelemetrySettings,
    Tenant,
    TenantLimits,
    TypeRule,
)
from ext_authz.telemetry.sources.feedback.stream import StreamSettings
from ext_authz.telemetry.sources.prometheus.settings import PrometheusSettings
from ext_authz.telemetry.sources.scrape import ScrapeSettings

DATA = Path(__file__).parent.parent / "data" / "config"
BAD = sorted(DATA.glob("bad_*.yaml"))


def written(tmp_path: Path, text: str) -> Loaded:
    """Load `text` as a file."""
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return load(path)


def problems_of(tmp_path: Path, text: str) -> list[str]:
    """What loading `text` complains of, as `line field: message; remedy`."""
    with pytest.raises(ConfigError) as caught:
        written(tmp_path, text)
    return [f"{p.line} {p.field}: {p.message}; {p.remedy}" for p in caught.value.problems]


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_broken_file_tells_every_problem(path: Path) -> None:
    """Each broken file yields exactly the expected lines, fields, messages and remedies."""
    with pytest.raises(ConfigError) as caught:
        load(path)
    told = "".join(f"{p}\n".replace(f"{DATA}/", "") for p in caught.value.problems)
    assert told == path.with_suffix(".expected").read_text()


def test_there_are_broken_files() -> None:
    """The table above is not empty."""
    assert len(BAD) >= 10


def test_skeleton_loads_as_written() -> None:
    """The published skeleton loads with warnings only, and means what it says."""
    loaded = load(DATA / "skeleton.yaml")
    admission = loaded.settings.admission
    assert admission.enabled
    assert admission.margin_s == 0.025
    assert admission.fallback is FallbackAction.DEMOTE_LOW_PRIORITY
    assert admission.default_slo == Slo(e2e_s=0.15)
    assert admission.path_slos == {
        "/v2/models/llm/versions/1/infer": Slo(e2e_s=0.2),
        "/v2/models/fraud_detect/versions/1/infer": Slo(e2e_s=0.1),
    }
    assert admission.types["realtime"] == RequestType("realtime", 3, PriorityClass.HIGH, 50)
    assert admission.types["analytics"] == RequestType("analytics", 1, PriorityClass.LOW, 200)
    assert admission.reserve_ratio == 0.1
    prometheus, stream = loaded.settings.telemetry.sources
    assert isinstance(prometheus, PrometheusSettings)
    assert prometheus.url == "http://metrics.internal:9090"
    assert (prometheus.scrape_interval_s, prometheus.interval_s) == (15.0, 5.0)
    assert stream == StreamSettings("0.0.0.0:8081")
    assert [p.message.split(":")[0] for p in loaded.warnings] == [
        "there are no pools",
        "there are no tenants",
    ]


def test_every_key_reaches_the_settings() -> None:
    """Of a file with every key away from its default, each value arrives where it belongs."""
    loaded = load(DATA / "full.yaml")
    settings = loaded.settings
    assert settings.telemetry == TelemetrySettings((ScrapeSettings(0.5, 0.25, 1_000_000),))
    assert settings.server == ServerSettings(
        "[::]:9101", "localhost:9102", ("x-api-key",), 3.0, 1 << 20
    )
    assert settings.edge == EdgeSettings(
        "127.0.0.1:8000", 2000.0, 20, 100, 10.0, 0, True, 1.5, 0.05, 6.0, False, 0.25
    )
    assert loaded.files == (DATA / "full.yaml", DATA / "keys.txt")
    foo = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
    digests = [foo, digest("key-one-of-acme"), digest("key-two-of-acme")]
    assert settings.keys == {bytes.fromhex(one): "acme" for one in digests}
    admission = settings.admission
    assert not admission.enabled
    assert admission.margin_s == 0.0125
    assert admission.fallback is FallbackAction.REJECT_ALL
    assert admission.default_slo == Slo(0.2, 0.05, 0.005)
    assert admission.path_slos == {"/v1/chat/completions": Slo(0.3), "/v2/*": Slo(0.4, 0.06)}
    assert admission.types["default"] == RequestType("default", 0.5, PriorityClass.LOW, None)
    assert admission.type_rules == (TypeRule("realtime", "/v1/*", "llama-70b", "acme"),)
    assert (admission.type_header, admission.deadline_header) == ("x-kind", "x-deadline-ms")
    assert admission.cost == CostRules(3.5, 500, 128, 1024)
    assert (admission.retry.cap_s, admission.lease_s) == (120.0, 60.0)
    stages = (Stage("primary", 1.0, 0), Stage("economy", 2.5, 10))
    rag = Pipeline("rag", frozenset({"llama-70b"}), ("/v1/rag/*",), stages)
    assert admission.pipelines == (rag,)


def test_pools_and_tenants_reach_the_settings() -> None:
    """Addresses are normalised, defaults are inherited, and mapping names stay as written."""
    admission = load(DATA / "full.yaml").settings.admission
    primary, economy = admission.pools["primary"], admission.pools["economy"]
    assert primary.endpoints == (
        Endpoint("gpu-1:8000", "http://gpu-1:8000", 8, "gpu-1:8000", None),
        Endpoint("10.0.0.2:443", "https://10.0.0.2:443", 32, "GPU-aa", "eu"),
    )
    assert (primary.engine, primary.models) == ("vllm", frozenset({"llama-70b"}))
    assert (primary.demote_to, primary.staleness.fresh_s, primary.kv_guard_ratio) == (
        "economy",
        4,
        0.9,
    )
    assert economy.endpoints[0].address == "[::1]:8001"
    assert (economy.models, economy.demote_to, economy.staleness.fresh_s) == (
        frozenset(),
        None,
        2.0,
    )
    assert (economy.kv_guard_ratio, economy.slots) == (0.85, 16)
    assert (primary.device_guard_ratio, economy.device_guard_ratio) == (0.95, 1.0)
    assert admission.memory == MemoryRules(0.5, 0.3, 10.0, 120.0)
    assert admission.tenants == {
        "acme": Tenant(
            "acme",
            3.0,
            ("realtime", "default"),
            frozenset({"llama-70b", "llama-8b"}),
            "llama-70b",
            Demotion.FORBIDDEN,
            TenantLimits(50.0, 100.0, 2e5, 3e5, 40),
        ),
        "no": Tenant("no", 1.0, ("default",), limits=TenantLimits(0.5, 1.0, 600.0, 600.0)),
    }


def test_empty_section_means_all_defaults(tmp_path: Path) -> None:
    """A file with nothing in it gives the documented defaults."""
    loaded = written(tmp_path, "admission_control: {}\n")
    assert loaded.settings.telemetry == TelemetrySettings((ScrapeSettings(1.0, 1.0, 4 << 20),))
    assert loaded.settings.edge == EdgeSettings(
        "0.0.0.0:8080", 1000.0, 200, 10_000, 100.0, 65536, False, 0.5, 0.02, 5.0
    )
    assert loaded.settings.server == ServerSettings(
        "0.0.0.0:9001", "127.0.0.1:9002", ("authorization", "x-api-key"), 10.0, 8 << 20
    )
    admission = loaded.settings.admission
    assert (admission.lease_s, admission.retry.cap_s, admission.cost) == (15.0, 60.0, CostRules())
    assert (admission.margin_s, admission.default_slo) == (0.025, Slo(0.15))
    assert dict(admission.types) == {
        "default": RequestType("default", 1.0, PriorityClass.MEDIUM, None)
    }


@pytest.mark.parametrize(
    ("body", "name", "value"),
    [
        ("hold: {limit: 800ms}", "check", 1.1),
        ("hold: {limit: 100ms}", "check", 0.5),
        ("edge: {check_timeout: 500ms}", "check", 0.5),
        ("edge: {access_log_periodic: 20s}", "lease", 60.0),
        ("metrics_source: {scrape_interval: 2s}", "stale", 6.0),
        ("metrics_source: {scrape_interval: 100ms}", "stale", 1.0),
        ("metrics_source: {scrape_interval: 100ms}", "timeout", 1.0),
        ("metrics_source: {scrape_interval: 15s}", "timeout", 1.0),
        ("metrics_sources: [{type: scrape}, {type: prometheus, url: 'http://p'}]", "stale", 3.0),
        ("metrics_sources: [{type: scrape}, {type: nvml, interval: 60s}]", "stale", 3.0),
    ],
)
def test_defaults_that_hang_on_others(tmp_path: Path, body: str, name: str, value: float) -> None:
    """Defaults follow the settings they depend on."""
    pools = "pools: [{name: p, endpoints: ['http://h']}]"
    settings = written(tmp_path, f"admission_control:\n  {body}\n  {pools}\n").settings
    scraping = settings.telemetry.sources[0]
    assert isinstance(scraping, ScrapeSettings)
    derived = {
        "check": settings.edge.check_timeout_s,
        "lease": settings.admission.lease_s,
        "stale": settings.admission.pools["p"].staleness.fresh_s,
        "timeout": scraping.timeout_s,
    }
    assert derived[name] == pytest.approx(value)


def test_tenant_names_stay_as_written(tmp_path: Path) -> None:
    """Keys that a plain loader turns into booleans, numbers and dates are names here."""
    names = ["no", "0123", "83", "0099", "1_000", "2024-01-02", "1e3", "null", "0x10"]
    body = "".join(f"    {name}: {{weight: {index + 1}}}\n" for index, name in enumerate(names))
    loaded = written(tmp_path, f"admission_control:\n  tenants:\n{body}")
    tenants = loaded.settings.admission.tenants
    assert [(t.name, t.weight) for t in tenants.values()] == [
        (name, float(index + 1)) for index, name in enumerate(names)
    ]


def test_tenants_as_list_with_unquoted_word(tmp_path: Path) -> None:
    """As a value, a name that YAML reads as a boolean must be quoted."""
    text = "admission_control:\n  tenants:\n    - name: no\n    - name: 'no'\n"
    assert problems_of(tmp_path, text) == [
        "3 admission_control.tenants[0].name: is an unquoted boolean; "
        "quote this, with double quotes"
    ]


def test_name_inside_a_mapping_of_tenants(tmp_path: Path) -> None:
    """Two names for one tenant are refused, not chosen from."""
    text = "admission_control:\n  tenants:\n    a: {name: b}\n"
    assert "names a tenant again inside" in problems_of(tmp_path, text)[0]


def test_small_weight_is_kept(tmp_path: Path) -> None:
    """A weight of 0.001 is not rounded away."""
    loaded = written(tmp_path, "admission_control: {tenants: {a: {weight: 0.001}}}")
    assert loaded.settings.admission.tenants["a"].weight == 0.001


def test_merged_pools_of_the_same_name(tmp_path: Path) -> None:
    """A name that came by a merge counts as a second use of it."""
    text = (
        "admission_control:\n  pools:\n"
        "    - &a {name: x, endpoints: ['http://a:1']}\n"
        "    - {<<: *a, endpoints: ['http://b:1']}\n"
    )
    assert any("has this name too" in told for told in problems_of(tmp_path, text))


def test_one_mistake_is_told_once(tmp_path: Path) -> None:
    """A broken name of a pool does not also make its demotions and tenants wrong."""
    text = (
        "admission_control:\n  pools:\n"
        "    - {name: a b, models: [m], endpoints: ['http://a:1']}\n"
        "    - {name: c, models: [m], demote_to: z, endpoints: ['http://b:1']}\n"
        "  tenants: {t: {models: [m2], weight: 0}}\n"
    )
    assert [told.split(":")[0] for told in problems_of(tmp_path, text)] == [
        "3 admission_control.pools[0].name",
        "5 admission_control.tenants.t.weight",
    ]


def test_lines_stay_true_beside_what_was_rejected(tmp_path: Path) -> None:
    """What is found in later entries is told at their own line, though an earlier one broke."""
    text = (
        "admission_control:\n  tenants:\n"
        "    - {name: 1}\n"
        "    - {name: a, type: x}\n"
        "    - 5\n"
        "    - {name: a, type: y}\n"
    )
    assert [told.split(";")[0] for told in problems_of(tmp_path, text)] == [
        "3 admission_control.tenants[0].name: is an unquoted number",
        "4 admission_control.tenants[1].type: no type is named x",
        "5 admission_control.tenants[2]: is not a mapping",
        "6 admission_control.tenants[3].name: the tenant on line 4 has this name too",
        "6 admission_control.tenants[3].type: no type is named y",
    ]


def test_warnings_of_what_is_not_acted_on(tmp_path: Path) -> None:
    """A promise within the margin and an unused URL are warned about."""
    text = (
        "admission_control:\n"
        "  metrics_source: {url: 'http://p:9090'}\n"
        "  slo: {requests: {/a: {ttft_ms: 5}, /b: {slo_ms: 20}}}\n"
    )
    warned = {
        (p.line, p.field.removeprefix("admission_control."))
        for p in written(tmp_path, text).warnings
    }
    assert {
        (2, "metrics_source.url"),
        (3, 'slo.requests["/b"]'),
    } <= warned
