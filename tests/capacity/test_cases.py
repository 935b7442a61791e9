"""Configurations that people ran, each with the finding and the number that it must get. Through the front door."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from click.testing import CliRunner

from otel_pool.cli.check import command

#: Descriptors and ports of a machine that is not the subject of a case.
ROOMY = "--nofile 1000000 --port-range 32768-60999"


@dataclass(frozen=True)
class Case:
    """`options`; what must be said as code -> (have, need, ratio to two places); codes that must not be said.

    `severity` is that of the gravest finding, empty when there must be none at all.
    """

    options: str
    says: dict[str, tuple[float | None, float | None, float | None]] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    host: str = ROOMY
    severity: str = "warning"
    figures: dict[str, float | None] = field(default_factory=dict)
    words: str = ""


CASES = {
    "case_01_total_2_to_1": Case(
        "--workers 16 --limit 4096 --engines 1 --concurrency 512", {"TOTAL": (256, 512, 2.0)}, ("HOST", "ZERO", "FD")
    ),
    "case_02_sixteen_engines_total_2_to_1_and_soft": Case(
        "--workers 16 --limit 4096 --engines 16 --concurrency 512 --aiohttp-version 3.14.5",
        {"TOTAL": (256, 512, 2.0), "SOFT": (256, None, None)},
        words="the hard bound is unlimited",
    ),
    "case_02_before_3_10_11_the_total_is_hard": Case(
        "--workers 16 --limit 4096 --engines 16 --concurrency 512 --aiohttp-version 3.10.10",
        {"TOTAL": (256, 512, 2.0)},
        ("SOFT",),
    ),
    "case_03_host_8_to_1": Case(
        "--workers 16 --limit 102400 --limit-per-host 1024 --engines 1 --concurrency 512",
        {"HOST": (64, 512, 8.0)},
        ("TOTAL",),
    ),
    "case_04_zero_trap_is_an_error": Case("--workers 16 --limit 10", {"ZERO": (10, 16, 1.6)}, severity="error"),
    "case_05_zero_is_unlimited_and_no_error": Case(
        "--workers 16 --limit 0 --concurrency 2000",
        {"FD": (1024, 4050, 3.96), "PORT": (28232, 32000, 1.13)},
        ("TOTAL", "HOST", "STRANDED"),
        host="--nofile 1024:524288 --port-range 32768-60999",
        figures={"effective_limit": None},
    ),
    "case_06_division_strands_16": Case(
        "--workers 17 --limit 4096", {"STRANDED": (4080, 4096, 1.0)}, severity="info", figures={"effective_limit": 240}
    ),
    "case_07_default_100_5_12_to_1": Case("--concurrency 512", {"DEFAULT": (100, 512, 5.12)}, ("TOTAL",)),
    "case_08_default_100_3_to_1": Case("--concurrency 300", {"DEFAULT": (100, 300, 3.0)}, ("TOTAL",)),
    "case_08_after_the_fix_fd_and_port_are_judged": Case(
        "--concurrency 300 --limit 0",
        {"FD": (512, 650, 1.27), "PORT": (256, 300, 1.17)},
        ("TOTAL", "DEFAULT", "HOST"),
        host="--nofile 512:524288 --port-range 40000-40255",
    ),
    "case_09_total_1_3_to_1_and_connect_timeout_9_s": Case(
        "--limit 100 --concurrency 130 --connect-timeout 5 --service 30",
        {"TOTAL": (100, 130, 1.3), "CONNECT_TIMEOUT": (5, 9.0, 1.8)},
        figures={"mean_wait": 9.0},
    ),
    "case_10_host_10_to_1_binds_before_the_total": Case(
        "--limit 300 --limit-per-host 50 --engines 1 --concurrency 500",
        {"HOST": (50, 500, 10.0)},
        words="it binds before the total",
    ),
    "case_11_host_20_to_1": Case(
        "--limit 20 --limit-per-host 10 --engines 1 --concurrency 200", {"HOST": (10, 200, 20.0)}
    ),
    "case_12_retain_54_reconnects_per_burst": Case(
        "--client urllib3 --retain 10 --concurrency 64",
        {"RETAIN": (10, 64, 6.4)},
        ("TOTAL", "HOST", "DEFAULT", "PORT"),
        words="54 reconnects per burst",
    ),
    "case_12_urllib3_pool_size_is_what_it_keeps": Case(
        "--client urllib3 --limit 10 --concurrency 64", {"RETAIN": (10, 64, 6.4)}, ("TOTAL", "PORT")
    ),
    "case_12_a_blocking_urllib3_pool_queues_and_keeps_all_it_opens": Case(
        "--client urllib3 --limit-per-host 10 --concurrency 64", {"HOST": (10, 64, 6.4)}, ("RETAIN", "TOTAL")
    ),
    "case_13_retain_6": Case(
        "--retain 2 --concurrency 8 --limit 8", {"RETAIN": (2, 8, 4.0)}, words="6 reconnects per burst"
    ),
    "case_14_burst_of_128_on_100": Case(
        "--burst 128 --limit 100 --service 0.5", {"TOTAL": (100, 128, 1.28)}, figures={"burst_time": 1.0}
    ),
    "case_14_burst_of_128_on_128": Case(
        "--burst 128 --limit 128 --service 0.5", {}, ("TOTAL",), figures={"burst_time": 0.5}, severity=""
    ),
    "case_15_port_28232_and_fd": Case(
        "--concurrency 32000 --limit 32000 --engines 1 --inbound 0",
        {"PORT": (28232, 32000, 1.13), "FD": (1024, 32050, 31.3)},
        ("TOTAL",),
        host="--nofile 1024:524288 --port-range 32768-60999",
    ),
    "case_16_fd_1060_on_1024": Case(
        "--concurrency 1000 --limit 1000 --inbound 0 --base-descriptors 60",
        {"FD": (1024, 1060, 1.04)},
        host="--nofile 1024:524288 --port-range 32768-60999",
    ),
    "case_17_fd_raise_the_soft_limit": Case(
        "--concurrency 1000 --limit 1000 --inbound 0",
        {"FD": (1024, 1050, 1.03)},
        host="--nofile 1024:524288 --port-range 32768-60999",
        words="raise the soft limit to 2048",
    ),
    "case_18_the_cure_of_case_1_needs_1074_descriptors": Case(
        "--workers 16 --limit 8192 --concurrency 512",
        {"FD": (1024, 1074, 1.05)},
        ("TOTAL",),
        host="--nofile 1024:524288 --port-range 32768-60999",
    ),
    "case_19_timewait_470_a_second": Case(
        "--rate 600 --retain 0 --engines 1", {"TIMEWAIT": (470, 600, 1.28)}, ("RETAIN",)
    ),
    "case_20_keepalive_15_above_5": Case("--keepalive 15 --server-keepalive 5", {"KEEPALIVE": (5, 15, 3.0)}),
    "case_20_aiohttp_keeps_15_by_default": Case("--server-keepalive 5", {"KEEPALIVE": (5, 15, 3.0)}),
    "case_21_three_replicas_of_4_slots_on_4_seats": Case(
        "--replicas 3 --limit 4 --scope process --engine-seats 4", {"MULT": (4, 12, 3.0), "ENGINE": (4, 12, 3.0)}
    ),
    "case_22_256_per_process_is_4096": Case(
        "--workers 16 --limit 256 --scope process --engine-seats 1024",
        {"MULT": (256, 4096, 16.0), "ENGINE": (1024, 4096, 4.0)},
    ),
    "case_23_zero_is_explained_not_refused": Case(
        "--limit 0 --concurrency 8", {"ZERO": (None, 8, None)}, severity="info", words="limit 0 means unlimited"
    ),
    "case_24_retries_without_a_bound": Case("--retries unbounded", {"RETRY": (None, None, None)}),
    "case_24_two_retries_are_bounded": Case("--retries 2", {}, ("RETRY",), severity=""),
    "case_25_hottest_of_16_engines_gets_46": Case(
        "--sessions 512 --engines 16 --limit-per-host 32 --limit 0", {"HOST": (32, 46, 1.44)}
    ),
    "case_26_open_loop_rho_1_56": Case(
        "--rate 100 --service 2 --limit 128",
        {"TOTAL": (128, 200, 1.56)},
        figures={"utilisation": 1.5625, "mean_wait": None},
        words="the wait is unbounded",
    ),
    "case_27_open_loop_rho_0_78_fits": Case(
        "--rate 50 --service 2 --limit 128", {}, figures={"utilisation": 0.78125, "mean_wait": 0}, severity=""
    ),
    "case_28_everything_fits": Case(
        "--workers 4 --limit 512 --engines 1 --concurrency 128 --service 8 --connect-timeout 5 --keepalive 4 "
        "--server-keepalive 5 --engine-seats 512 --max-inflight 512 --burst 128 --retries 2 --cpus 4",
        {},
        severity="",
    ),
    "case_30_gate_that_can_never_close": Case(
        "--workers 4 --limit 16 --engine-seats 8 --max-inflight 64", {"GATE": (16, 64, 4.0), "ENGINE": (8, 16, 2.0)}
    ),
    "case_31_park_time_of_the_long_prompts": Case(
        # 2 x 65,000 + 15 x 8,000 = 250,000 tokens, 8,000 of them the last one's own: 242,000 / 262
        "--engine-seats 4 --prompt-tokens 65000x2,8000x15 --prefill-rate 262",
        {"PARK": (120, 242_000 / 262, 7.7)},
        figures={"prefill_ahead": 242_000 / 262, "first_token": 250_000 / 262},
    ),
    "case_31_a_park_time_that_is_long_enough": Case(
        "--engine-seats 4 --limit 4 --prompt-tokens 65000x2,8000x15 --prefill-rate 262 --park-seconds 924",
        {},
        figures={"prefill_ahead": 242_000 / 262, "first_token": 250_000 / 262},
        severity="",
    ),
    "case_31_prompts_that_all_have_a_seat": Case(
        "--engine-seats 4 --data-parallel 5 --limit 20 --prompt-tokens 65000x2,8000x15 --prefill-rate 262",
        {},
        figures={"prefill_ahead": 0, "first_token": 250_000 / 262},
        severity="",
    ),
    "case_32_four_workers_on_a_quota_of_two": Case("--workers 4 --cpus 2", {"CPU": (2, 4, 2.0)}),
    "case_33_burst_above_the_backlog": Case(
        "--workers 4 --limit 4000 --burst 1000 --backlog 2048", {"BACKLOG": (2048, 4000, 1.95)}
    ),
}


def run(options: str) -> tuple[int, dict[str, object]]:
    result = CliRunner().invoke(command, [*options.split(), "--format", "json"], catch_exceptions=False)
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_a_configuration_must_be_told(case: Case) -> None:
    code, report = run(f"{case.options} {case.host}")
    findings = {finding["code"]: finding for finding in report["findings"]}  # type: ignore[attr-defined]
    for name, (have, need, ratio) in case.says.items():
        said = findings[name]
        assert said["have"] == have
        assert said["need"] == (need if need is None else pytest.approx(need))
        assert said["ratio"] == (ratio if ratio is None else pytest.approx(ratio, abs=0.0051))
        assert said["remedy"]
    assert not findings.keys() & set(case.silent)
    figures = {figure["name"]: figure["value"] for figure in report["figures"]}  # type: ignore[attr-defined]
    for name, value in case.figures.items():
        assert figures[name] == value if value is not None else figures.get(name) is None
    assert any(case.words in f["message"] + f["remedy"] for f in findings.values()) or not case.words
    assert next(iter(finding["severity"] for finding in findings.values()), "") == case.severity
    assert code == (1 if case.severity in ("warning", "error") else 0)


def test_the_binding_limit_is_named_first() -> None:
    _, report = run(f"--limit 300 --limit-per-host 50 --engines 1 --concurrency 500 {ROOMY}")
    assert [finding["code"] for finding in report["findings"]] == ["HOST", "TOTAL"]  # type: ignore[attr-defined]
