"""Plans in TOML and configurations of NeMo Gym in YAML: what is read, and what each mistake is told."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from otel_pool.capacity.errors import BadInputError, UnreadableError
from otel_pool.capacity.plan import build
from otel_pool.capacity.plan_files import MAX_BYTES, read_plan
from otel_pool.capacity.report import figures
from otel_pool.capacity.sizing import size
from tests.capacity.support import ROOMY

GYM = """
global_aiohttp_connector_limit: 4096
global_aiohttp_connector_limit_per_host: ${per_host}
per_host: 2048
num_samples_in_parallel: 8192
policy_base_url: [http://a:8000/v1, http://b:8000/v1, "http://a:8000/v1"]
policy_api_key: secret
policy_model:
  responses_api_models:
    vllm_model:
      entrypoint: app.py
      base_url: ${policy_base_url}
      num_workers: 16
my_tool:
  resources_servers:
    my_tool: {entrypoint: app.py, num_workers: 64}
"""


def write(folder: Path, name: str, text: str | bytes) -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_a_plan_in_toml_is_given(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "plan.toml",
        'workers = 16\nlimit = 4096\nengines = ["http://a:1", "http://b:1"]\nweights = [3, 1]\nconnect-timeout = 5.5\n'
        'prompt_tokens = ["65000x2", "8000x15"]\nprefill_rate = 262\nretries = "unbounded"\n',
    )
    plan = build(read_plan(path))
    assert (plan.workers, plan.limit, plan.engines, plan.connect_timeout) == (16, 4096, 2, 5.5)
    assert plan.weights == (3, 1)
    assert sum(plan.prompt_tokens) == 250_000
    assert plan.retries == math.inf
    assert plan.source("limit") == "given"


def test_nemo_gyms_keys_are_read_and_its_defaults_assumed(tmp_path: Path) -> None:
    plan = build(read_plan(write(tmp_path, "gym.yaml", GYM)))
    assert (plan.limit, plan.limit_per_host, plan.workers, plan.scope) == (4096, 2048, 16, "aggregate")
    assert plan.destinations == ("http://a:8000", "http://b:8000")
    assert plan.concurrency == 512  # 8,192 samples over 16 workers
    assert (plan.keepalive, plan.retries, plan.total_timeout) == (15.0, math.inf, 0.0)
    assert (plan.source("limit"), plan.source("keepalive")) == ("read", "assumed")


def test_a_derived_figure_is_as_good_as_the_weakest_that_it_comes_from(tmp_path: Path) -> None:
    text = "global_aiohttp_connector_limit: 4096\nnum_samples_in_parallel: 512\n"
    plan = build(read_plan(write(tmp_path, "gym.yaml", text)))
    sources = {figure.name: figure.source for figure in figures(size(plan, ROOMY))}
    assert sources["demand"] == "read"
    assert sources["connections"] == "assumed"  # the limit per host is Gym's default


def test_nemo_gyms_defaults_stand_where_its_configuration_says_nothing(tmp_path: Path) -> None:
    text = "policy_model:\n  responses_api_models:\n    vllm_model: {num_workers: 16}\n"
    plan = build(read_plan(write(tmp_path, "gym.yml", text)))
    assert (plan.limit, plan.limit_per_host, plan.workers) == (102_400, 1_024, 16)
    assert plan.source("limit") == "assumed"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("plan.toml", "limt = 4096", "unknown key 'limt', did you mean limit?"),
        ("plan.toml", "zzz = 1", "unknown key 'zzz'"),
        ("plan.toml", "workers = -1", "workers: '-1' is not usable, expected a whole number from 1, or auto"),
        ("plan.toml", "concurrency = 'many'", "concurrency: 'many' is not usable"),
        ("plan.toml", "concurrency = true", "concurrency: 'True' is not usable"),
        ("plan.toml", "limit = 1000000000000000000", "limit: '1000000000000000000' is not usable"),
        ("plan.toml", "service = nan", "service: 'nan' is not usable"),
        ("plan.toml", "limit = 1.5", "limit: '1.5' is not usable"),
        ("plan.toml", "engines = 'ftp://a'", "engines: 'ftp://a' is not usable"),
        ("plan.toml", "[workers]\na = 1", "workers: "),
        ("plan.toml", "\x00\x01nonsense", "is not TOML"),
        ("plan.toml", b"\xff\xfe\x00", "is not text in UTF-8"),
        ("plan.toml", "a = " + "[" * 5000, "is not TOML"),
        ("plan.toml", "#" * (MAX_BYTES + 1), "larger than"),
        ("plan.json", "{}", "expected a plan in .toml"),
        ("gym.yaml", "a: [1", "is not YAML"),
        ("gym.yaml", "- 1\n- 2\n", "expected a mapping"),
        ("gym.yaml", "hello: world\n", "holds none of NeMo Gym's keys"),
        ("gym.yaml", "global_aiohttp_connector_limit_per_hst: 4\nnum_samples_in_parallel: 1\n", "did you mean"),
        ("gym.yaml", "global_aiohttp_connector_limit: lots\n", "global_aiohttp_connector_limit: 'lots'"),
        ("gym.yaml", "global_aiohttp_connector_limit: ${oc.env:LIMIT}\n", "is the interpolation"),
        ("gym.yaml", "[" * 1500, "is not YAML"),
    ],
)
def test_a_mistake_in_a_file_gets_one_line_that_names_it(
    tmp_path: Path, name: str, text: str | bytes, says: str
) -> None:
    with pytest.raises(BadInputError) as error:
        build(read_plan(write(tmp_path, name, text)))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="No such file"):
        read_plan(str(tmp_path / "absent.toml"))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(UnreadableError, match="directory"):
        read_plan(str(tmp_path / "folder.toml"))


def test_the_strongest_layer_wins_figure_by_figure() -> None:
    plan = build([("given", {"limit": 10}), ("read", {"limit": 20, "workers": 4})])
    assert (plan.limit, plan.workers) == (10, 4)
    assert (plan.source("limit"), plan.source("workers"), plan.source("limit", "workers")) == ("given", "read", "read")


def test_auto_workers_take_the_cpus() -> None:
    plan = build([("given", {"workers": "auto"})], cpus=6)
    assert (plan.workers, plan.source("workers")) == (6, "read")


@pytest.mark.parametrize(
    "figures", [{"engines": 3, "weights": (1.0, 2.0)}, {"prompt_tokens": (1, 2)}], ids=["weights", "prefill_rate"]
)
def test_figures_that_contradict_each_other_are_refused(figures: dict[str, object]) -> None:
    with pytest.raises(BadInputError):
        build([("given", figures)])
