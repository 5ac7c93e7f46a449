"""Speed on this machine, with peers beside it in the same run: `python -m benchmarks`.

Each section runs in its own process: `python -m benchmarks.run SECTION` reads its options as JSON on stdin, and prints
its answer as the last line on stdout. Figures are medians over repeats; a ratio is of two medians of one run.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mechanisms.catalogue import nearest
from simulations.errors import UserError
from simulations.progress import progress_lines

log = logging.getLogger(__name__)

SECTIONS = {
    "mechanisms": "draws a second of each mechanism of embeddings and labels, on one core",
    "encoder": "texts a second of the encoder in float32 and int8 beside plain transformers; a round that encodes",
    "round": "users a second of a round with cached embeddings, its memory, and how both grow with the users",
    "statistic": "the same of a round in which each user releases one vector of 64 coordinates",
    "flower": "answers a second of plain Flower with one node for each user and no work in it",
    "deployment": "sealed rows a second through each party of a deployment, and nodes that one SuperLink holds",
    "pfl": "users a second of pfl-research's simulated backend with no work in the clients",
}
PACKAGES = ("flwr", "numpy", "onnxruntime", "ray", "scipy", "tokenizers", "torch", "transformers")
DIM, EPSILON, CLASSES = 16, 10.0, 2
FIRST = 10_000
_ROWS = 100_000
_REPEATS = 3

#: Runs in the peer's environment.
PFL = Path(__file__).with_name("pfl_peer.py")


def processor() -> str:
    """Return the processor's name, as the system reports it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


@dataclass(frozen=True)
class BenchOptions:
    """Options of the benchmark.

    Args:
        sections: Names of sections; () for all that can run.
        users: Users of the largest round.
        seed: Root seed.
        data: Folder of SST-2; None for the built-in corpus.
        pfl: Interpreter of an environment with pfl.
        quick: Whether to run small sizes, to see that it works; its figures are rough.
    """

    sections: tuple[str, ...] = ()
    users: int = 1_000_000
    seed: int = 1
    data: str | None = None
    pfl: str | None = None
    quick: bool = False


def check(options: BenchOptions) -> None:
    """Check the options before any measurement.

    Raises:
        UserError: They cannot be measured.
    """
    for name in options.sections:
        if name not in SECTIONS:
            raise UserError(f"bench: {name!r} is no section; {nearest(name, SECTIONS)}")
    if options.users < 1000:
        raise UserError(f"--users {options.users}: must be at least 1000")
    if options.data is not None and not Path(options.data).is_dir():
        raise UserError(f"--data {options.data}: there is no such folder")
    if "pfl" in options.sections and options.pfl is None:
        raise UserError("bench: pfl needs --pfl PYTHON, the interpreter of an environment with: pip install pfl")


def run(options: BenchOptions) -> dict[str, Any]:
    """Return {"machine", "seed", "quick", "sections": {name: measurements}}."""
    names = options.sections or tuple(n for n in SECTIONS if n != "pfl" or options.pfl is not None)
    about, sections = machine(), {}
    for name in names:
        log.info(f"bench: {name}: {SECTIONS[name]}")
        sections[name] = _apart(["benchmarks.run", name], options)
    return {"machine": about, "seed": options.seed, "quick": options.quick, "sections": sections}


def machine() -> dict[str, Any]:
    """Return the facts about the machine that figures depend on, with its load before."""
    return {
        "cores": os.cpu_count(),
        "processor": processor(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
    }


def mechanisms(options: BenchOptions) -> dict[str, Any]:
    """Measure draws a second, with random streams."""
    import numpy as np

    from mechanisms.catalogue import build
    from mechanisms.streams import SimulationStreams

    rows = _ROWS // 10 if options.quick else _ROWS
    x = np.random.default_rng([options.seed, 1]).normal(size=(rows, DIM))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    labels, users, records = np.arange(rows) % CLASSES, np.arange(rows), np.zeros(rows, dtype=np.int64)
    found = {}
    for spec in (
        {"mechanism": "purkayastha", "epsilon": EPSILON},
        {"mechanism": "planar-laplace", "epsilon": EPSILON},
        {"mechanism": "gaussian", "sigma": 1.0},
        {"mechanism": "randomized-response", "epsilon": 2.0, "classes": CLASSES},
    ):
        channel = "label" if "classes" in spec else "embedding"
        mechanism = build(spec, channel=channel, dim=DIM)
        values, speeds = labels if channel == "label" else x, []
        for _ in range(_REPEATS + 1):  # the first warms caches
            start = time.perf_counter()
            rng = SimulationStreams(options.seed).rows(users, records, stage="bench", channel=channel)
            mechanism.sample(values, rng=rng)
            speeds.append(rows / (time.perf_counter() - start))
        found[str(spec["mechanism"])] = {"per_second": speeds[1:], "median": statistics.median(speeds[1:])}
    return {"dim": DIM, "rows": rows, "mechanisms": found}


def encoder(options: BenchOptions) -> dict[str, Any]:
    """Measure the encoder: see `bench_encoder`."""
    from benchmarks import encoder as bench_encoder

    data = None if options.data is None else Path(options.data)
    texts, source = bench_encoder.phrases(data, 256 if options.quick else bench_encoder.TEXTS, seed=options.seed)
    found = bench_encoder.run(texts, seed=options.seed, repeats=1 if options.quick else _REPEATS)
    users = min(options.users, 1000 if options.quick else FIRST)
    texts, source = bench_encoder.phrases(data, users, seed=options.seed)
    with tempfile.TemporaryDirectory(prefix="sottovoce-bench-") as folder:
        whole = bench_encoder.round_with_encoding(texts, seed=options.seed, folder=Path(folder))
    return found | {"source": source, "round": whole}


def rounds(options: BenchOptions, *, statistic: bool = False) -> dict[str, Any]:
    """Measure rounds, in a process for each number of users, so that memory is that of one round: see `bench_round`."""
    from benchmarks import round as bench_round

    found = [bench_round.in_a_process(users, seed=options.seed, statistic=statistic) for users in sizes(options)]
    results: dict[str, Any] = {"rounds": found}
    if len(found) > 1:
        results["exponent"] = bench_round.exponent([r["users"] for r in found], [r["seconds"]["round"] for r in found])
        results["bytes_of_memory_per_user"] = bench_round.growth(found)
    return results


def sizes(options: BenchOptions) -> list[int]:
    """Return 10,000 users, ten times as many, and so on up to the largest round."""
    if options.quick:
        return [min(options.users, FIRST)]
    found = [FIRST]
    while found[-1] * 10 <= options.users:
        found.append(found[-1] * 10)
    return sorted({n for n in found if n <= options.users} | {options.users})


def flower(options: BenchOptions) -> dict[str, Any]:
    """Measure plain Flower: see `bench_round.flower_per_user_rate`."""
    from benchmarks import round as bench_round

    nodes = 50 if options.quick else 1000
    with tempfile.TemporaryDirectory(prefix="sottovoce-bench-") as folder:
        return {"nodes": nodes, "per_second": bench_round.flower_per_user_rate(nodes, folder=Path(folder))}


def deployment(options: BenchOptions) -> dict[str, Any]:
    """Measure a deployment: see `bench_deployment`."""
    from benchmarks import deployment as bench_deployment

    logging.getLogger("sottovoce.deployment").setLevel(logging.WARNING)  # parties' lines are not the benchmark's
    return bench_deployment.in_a_folder(quick=options.quick, seed=options.seed)


def pfl(options: BenchOptions) -> dict[str, Any]:
    """Measure pfl-research in its own environment."""
    assert options.pfl is not None
    users = min(options.users, 1000 if options.quick else FIRST)
    try:
        done = subprocess.run(
            [options.pfl, str(PFL), str(users), str(_REPEATS), str(DIM)], capture_output=True, text=True, check=True
        )
    except OSError as error:
        raise UserError(f"--pfl {options.pfl}: {error.strerror}") from None
    except subprocess.CalledProcessError as error:
        raise UserError(f"--pfl {options.pfl}: {(error.stderr.strip().splitlines() or ['no message'])[-1]}") from None
    found = json.loads(done.stdout.splitlines()[-1])
    return {"users": users, "median": statistics.median(found["per_second"])} | found


_WORK: dict[str, Callable[[BenchOptions], dict[str, Any]]] = {
    "mechanisms": mechanisms,
    "encoder": encoder,
    "round": rounds,
    "statistic": partial(rounds, statistic=True),
    "flower": flower,
    "deployment": deployment,
    "pfl": pfl,
}


def _apart(module: Sequence[str], options: BenchOptions) -> Any:
    """Return a module's answer from its own process; raise its last error line as a UserError."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", *module],
        input=json.dumps(asdict(options)),
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    lines = done.stdout.splitlines()
    answer = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    if done.returncode:
        raise UserError(answer.get("error", f"bench: {module[-1]} failed; its own words are above"))
    return answer


def main(arguments: Sequence[str]) -> int:
    """Run one section: see this module's docstring."""
    options = json.load(sys.stdin)
    options["sections"] = tuple(options["sections"])
    try:
        with progress_lines():
            print(json.dumps(_WORK[arguments[0]](BenchOptions(**options))))
    except ValueError as error:  # an error that a user can correct
        print(json.dumps({"error": str(error)}))
        return 2
    return 0


def table(results: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    about, sections = results["machine"], results["sections"]
    versions = ", ".join(f"{k} {v}" for k, v in about["versions"].items())
    lines = [
        "# Speed",
        "",
        f"{about['cores']} cores of {about['processor']}, {about['memory'] / 2**30:.0f} GiB, "
        f"load {about['load_before']:.1f} before. Python {about['python']}, {versions}. Seed {results['seed']}.",
        "",
    ]
    if results["quick"]:
        lines += ["**A quick run: rough figures.**", ""]
    for name, found in sections.items():
        lines += [f"## {name.capitalize()}", "", f"{SECTIONS[name].capitalize()}.", "", *_TABLES[name](found), ""]
    return "\n".join([*lines, *_peers(sections)]).rstrip() + "\n"


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def _mechanisms(found: dict[str, Any]) -> list[str]:
    return _grid(["mechanism", "draws/s"], [[name, f"{m['median']:,.0f}"] for name, m in found["mechanisms"].items()])


def _encoder(found: dict[str, Any]) -> list[str]:
    names = {"plain": f"transformers, random batches of {found['plain_batch']}", "fp32": "float32", "int8": "int8"}
    rows = [
        [name, f"{found[key]['median']:,.0f}", f"{found[key]['ratio']:.2f}", f"{found[key]['cosine']:.4f}"]
        for key, name in names.items()
    ]
    whole = found["round"]
    return [
        f"{found['texts']:,} texts ({found['source']}), {found['cores']} threads.",
        "",
        *_grid(["encoder", "texts/s", "ratio", "mean cosine to plain"], rows),
        "",
        f"A round of {whole['users']:,} users who encode their own text: {whole['round_per_second']:,.0f} users/s, "
        f"{whole['share']:.0%} of the encoder alone.",
    ]


def _rounds(found: dict[str, Any]) -> list[str]:
    rows = [
        [
            f"{r['users']:,}",
            str(r["nodes"]),
            f"{r['seconds']['round']:.2f}",
            f"{r['users_per_second']:,.0f}",
            f"{r['memory']['peak'] / 2**30:.2f}",
        ]
        for r in found["rounds"]
    ]
    lines = _grid(["users", "nodes", "seconds", "users/s", "peak memory, GiB"], rows)
    if "exponent" in found:
        lines += [
            "",
            f"Time grows as users to the power {found['exponent']:.3f}; each further user takes "
            f"{found['bytes_of_memory_per_user']:,.0f} bytes of memory.",
        ]
    return lines


def _flower(found: dict[str, Any]) -> list[str]:
    return [f"{found['per_second']:,.0f} users/s at {found['nodes']:,} nodes."]


def _deployment(found: dict[str, Any]) -> list[str]:
    from benchmarks import deployment as bench_deployment

    return bench_deployment.table(found)


def _pfl(found: dict[str, Any]) -> list[str]:
    return [f"{found['median']:,.0f} users/s at {found['users']:,} users (pfl {found['version']})."]


_TABLES = {
    "mechanisms": _mechanisms,
    "encoder": _encoder,
    "round": _rounds,
    "statistic": _rounds,
    "flower": _flower,
    "deployment": _deployment,
    "pfl": _pfl,
}


def _peers(sections: dict[str, Any]) -> list[str]:
    """Return the round's rate over that of each peer."""
    if "round" not in sections:
        return []
    ours = sections["round"]["rounds"][0]["users_per_second"]
    rates = {"flower": "per_second", "pfl": "median"}
    rows = [[name, f"{ours / sections[name][key]:,.1f}"] for name, key in rates.items() if name in sections]
    return ["## Peers", "", *_grid(["the smallest round over", "ratio"], rows)] if rows else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
