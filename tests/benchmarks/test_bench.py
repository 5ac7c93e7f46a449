"""`python -m benchmarks`: what it refuses, the shapes of its figures, and its tables. No speeds are asserted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import deployment as bench_deployment
from benchmarks import encoder as bench_encoder
from benchmarks import rows
from benchmarks import run as bench
from benchmarks.__main__ import main
from benchmarks.deployment import Size
from benchmarks.run import BenchOptions
from simulations.errors import UserError

pytestmark = pytest.mark.xdist_group("ray")  # Ray takes all cores: one of these at a time


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (BenchOptions(sections=("encodr",)), "'encodr' is no section"),
        (BenchOptions(users=3), "--users 3: must be at least 1000"),
        (BenchOptions(data="no/such/folder"), "there is no such folder"),
        (BenchOptions(sections=("pfl",)), "needs --pfl PYTHON"),
    ],
)
def test_what_cannot_be_measured_is_refused_first(options: BenchOptions, said: str) -> None:
    with pytest.raises(UserError, match=said):
        bench.check(options)


def test_sizes_grow_tenfold_up_to_the_largest() -> None:
    assert bench.sizes(BenchOptions(users=1_000_000)) == [10_000, 100_000, 1_000_000]
    assert bench.sizes(BenchOptions(users=200_000)) == [10_000, 100_000, 200_000]
    assert bench.sizes(BenchOptions(users=2000)) == [2000]
    assert bench.sizes(BenchOptions(users=1_000_000, quick=True)) == [10_000]


def test_the_command_measures_mechanisms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bench"
    assert main(["mechanisms", "--quick", "--json", "--out", str(out)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((out / "bench.json").read_text())
    assert set(found["machine"]) >= {"cores", "processor", "versions"} and found["seed"] == 1
    speeds = found["sections"]["mechanisms"]["mechanisms"]
    assert set(speeds) == {"purkayastha", "planar-laplace", "gaussian", "randomized-response"}
    assert all(len(s["per_second"]) == 3 and s["median"] in s["per_second"] for s in speeds.values())
    assert "| purkayastha |" in (out / "bench.md").read_text() and "rough figures" in (out / "bench.md").read_text()


def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rounds"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and '"round"' in said.replace("'", '"')


@pytest.mark.parametrize("script", ["import sys; sys.exit('no pfl here')", None])
def test_a_peer_that_cannot_run_is_one_line(tmp_path: Path, script: str | None) -> None:
    python = tmp_path / "python"
    if script is not None:
        python.write_text(f"#!{sys.executable}\n{script}\n")
        python.chmod(0o755)
    with pytest.raises(UserError, match="--pfl ") as caught:
        bench.pfl(BenchOptions(pfl=str(python)))
    assert "\n" not in str(caught.value)


def test_a_section_that_fails_in_its_process_is_the_users_line() -> None:
    with pytest.raises(UserError, match=r"--pfl no-such-python: No such file"):
        bench.run(BenchOptions(sections=("pfl",), pfl="no-such-python"))


def test_tables_of_every_section() -> None:
    per = {"per_second": [2.0], "median": 2.0}
    ways = {
        k: per | {"ratio": 1.5, "cosine": 0.99, "least_cosine": 0.9, "sha256": None} for k in ("plain", "fp32", "int8")
    }
    rounds = [
        {"users": n, "nodes": 2, "seconds": {"round": 0.5}, "users_per_second": 600.0, "memory": {"peak": 2**30}}
        for n in (10, 100)
    ]
    links = {"nodes": 7, "held": 6, "register": 5.0, "come": 4.0, "polls": 3.0, "memory": {"SuperLink": 2e3}}
    sections = {
        "mechanisms": {"mechanisms": {"gaussian": per}},
        "encoder": ways
        | {
            "texts": 5,
            "cores": 2,
            "plain_batch": 256,
            "source": "built-in",
            "round": {"users": 5, "round_per_second": 1.0, "share": 0.75},
        },
        "round": {"rounds": rounds, "exponent": 1.01, "bytes_of_memory_per_user": 150.0},
        "statistic": {"rounds": rounds},
        "flower": {"nodes": 50, "per_second": 300.0},
        "deployment": {
            "steps": {
                "sealing": {"rows": 9, "per_second": {"seal": [1234.5, 2000.0]}, "memory": 3e6},
                "shuffling": {"rows": 9, "per_second": {"close": [2.0, 3.0]}, "memory": 2e6, "disk": 5e6},
            },
            "asked": links
            | {
                "stages": {"one-row": {"rows": 7, "seconds": 1.0, "per_second": 7.0}},
                "busy": {"polls": {"a": 0.1}, "one-row": {"a": 0.25, "b": 0.5}},
            },
            "held": links | {"held": 5},
        },
        "pfl": per | {"users": 9, "version": "0.6.0"},
    }
    text = bench.table({"machine": bench.machine(), "seed": 1, "quick": False, "sections": sections})
    for piece in (
        "75% of the encoder alone",
        "| flower | 2.0 |",
        "| pfl | 300.0 |",
        "power 1.010",
        "| int8 | 2 | 1.50 | 0.9900 |",
        "| seal | 9 | 1,234 | 2,000 |",
        "| shuffling | 2 MB | 5 MB |",
        "held 6 of 7 nodes",
        "2 kB in the SuperLink",
        "| one-row | 7 | 7 | b 0.50, a 0.25 |",
    ):
        assert piece in text
    assert set(sections) == set(bench.SECTIONS)


def test_the_texts_of_the_encoders_figures(tmp_path: Path) -> None:
    texts, source = bench_encoder.phrases(None, 40, seed=1)
    assert source == "built-in" and len(texts) == 40 and texts == bench_encoder.phrases(None, 40, seed=1)[0]
    for name in ("train.tsv", "dev.tsv"):
        rows = "".join(f"{i % 2}\tphrase {i}\n" for i in range(30))
        (tmp_path / name).write_text(f"label\tsentence\n{rows}")
    texts, source = bench_encoder.phrases(tmp_path, 20, seed=1)
    assert source == "SST-2" and len(set(texts)) == 20
    with pytest.raises(UserError, match="ask for fewer"):
        bench_encoder.phrases(tmp_path, 50, seed=1)


@pytest.mark.slow
@pytest.mark.soak  # that it is MiniLM: tests/server/test_model.py
def test_the_encoder_beside_plain_transformers() -> None:
    texts, _ = bench_encoder.phrases(None, 48, seed=1)
    found = bench_encoder.run(texts, seed=1, repeats=1)
    assert found["fp32"]["least_cosine"] > 0.9999 and found["int8"]["cosine"] > 0.98
    assert found["fp32"]["sha256"] != found["int8"]["sha256"]
    assert np.isfinite([found[k]["ratio"] for k in ("plain", "fp32", "int8")]).all()


@pytest.mark.slow
def test_named_encoders_and_their_share_of_the_processor(capsys: pytest.CaptureFixture[str]) -> None:
    bench_encoder.main(["minilm", "--texts", "32", "--repeats", "1"])
    head, fp32, int8 = capsys.readouterr().out.splitlines()
    assert head.startswith("32 texts (built-in)") and "GFLOPS" in fp32 and "minilm      int8" in int8
    assert "cosine 1.0000, least 1.0000" in fp32
    assert float(int8.split("cosine ")[1].split(",")[0]) > 0.98
    texts, _ = bench_encoder.phrases(None, 2, seed=1)  # by hand: six layers of 4·384² + 8·384² weights, two operations
    folder = bench_encoder.exported("fp32")
    tokens = sum(rows.size * len(each[0]) for rows, each in bench_encoder.Encoder(folder)._batches(texts))
    assert bench_encoder.operations(folder, texts) == 2 * tokens * 6 * 12 * 384**2


@pytest.mark.slow
@pytest.mark.soak  # a round without an encoder: test_round.py
def test_a_round_whose_users_encode(tmp_path: Path) -> None:
    texts, _ = bench_encoder.phrases(None, 200, seed=1)
    found = bench_encoder.round_with_encoding([t[:40] for t in texts], seed=1, folder=tmp_path)
    assert found["delivered"] == 200 and found["share"] > 0


@pytest.mark.slow
def test_what_a_row_takes() -> None:
    """Each step on a thousand rows, beside two hundred."""
    steps = {step: rows.measured(step, (200, 1000), 1) for step in rows.STEPS}
    assert {name for step in steps.values() for name in step["per_second"]} == {
        "seal",
        "take one by one",
        "take",
        "close",
        "give",
        "open",
    }
    assert steps["shuffling"]["disk"] > 112e6  # bytes of a million sealed rows, at least


@pytest.mark.slow
@pytest.mark.soak  # two deployments of real processes, as tests/system/test_deployment.py has one
def test_what_a_deployment_carries(tmp_path: Path) -> None:
    """Four nodes on a SuperLink, which answer both stages, and six on another; every step on a thousand rows."""
    sizes = Size(sealing=(200, 1000), shuffling=(200, 1000), opening=(200, 1000), asked=4, held=6)
    found = bench_deployment.run(sizes, counted=0.5, seed=1, folder=tmp_path)
    assert {name for step in found["steps"].values() for name in step["per_second"]} == {
        "seal",
        "take one by one",
        "take",
        "close",
        "give",
        "open",
    }
    assert found["steps"]["shuffling"]["disk"] > 112e6  # bytes of a million sealed rows, at least
    for name, nodes in (("asked", 4), ("held", 6)):
        assert (found[name]["nodes"], found[name]["held"]) == (nodes, nodes) and found[name]["polls"] > 0
    links = found["asked"]
    assert {stage: of["rows"] for stage, of in links["stages"].items()} == {"one-row": 4, "many-rows": 400}
    parties = {"SuperLink", "shuffler", "simulated nodes"}
    assert all(set(of) == parties and max(of.values()) > 0 for of in links["busy"].values())
    assert "held 6 of 6 nodes" in "\n".join(bench_deployment.table(found))
