"""Benchmark of a deployment on this machine.

It measures rows a second through each party and through all of them, the resources for a million rows, and the number
of nodes that one SuperLink holds. SuperLink and shuffler are real processes with TLS and node authentication.
Nodes are simulated (`benchmarks.nodes`), some hundreds in a process.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import rows as bench_rows
from benchmarks.nodes import Crowd
from client.node import DEVICE_KEY
from mechanisms.messages import signature
from mechanisms.messages.sealed import sealed_bytes
from mechanisms.messages.wire import record_to_bytes, request_to_record
from simulations.shuffler import enrolment
from sottovoce.deployment import certificates, superlink
from sottovoce.deployment.keys import read_key
from sottovoce.deployment.party_keys import make_keys
from sottovoce.deployment.processes import Parties, answers, command_of, free_port
from sottovoce.deployment.shuffler_client import Shuffler

log = logging.getLogger(__name__)

#: Processes of simulated nodes, and stages that all nodes answer, with the rows that each node sends.
_PROCESSES, _STAGES = 2, {"one-row": 1, "many-rows": 100}
#: Seconds for a party to start, and for nodes to answer.
_STARTING, _TIMEOUT = 120.0, 600.0
_HOST = "127.0.0.1"
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Size:
    """Size of the benchmark.

    Args:
        sealing: Rows of the sealing step, each size in its own process, less and more.
        shuffling: Rows of the shuffling step.
        opening: Rows of the opening step.
        asked: Nodes that receive requests for rows.
        held: Nodes that are connected and receive no request.
    """

    sealing: tuple[int, int] = (10_000, 50_000)
    shuffling: tuple[int, int] = (50_000, 500_000)
    opening: tuple[int, int] = (10_000, 50_000)
    asked: int = 100
    held: int = 1000


#: Small size, to see that it works.
QUICK = Size(sealing=(500, 1000), shuffling=(2000, 4000), opening=(500, 1000), asked=10, held=20)


def run(size: Size, *, counted: float = 10.0, seed: int, folder: Path) -> dict[str, Any]:
    """Return {"steps": {step: `bench_rows.measured`}, "asked", "held": `links`}.

    Args:
        size: Size of the benchmark.
        counted: Seconds for which the nodes' calls are counted.
        seed: Seed of the rows.
        folder: Empty folder.
    """
    steps = {}
    for step in bench_rows.STEPS:
        log.info(f"bench: deployment: {step}")
        steps[step] = bench_rows.measured(step, getattr(size, step), seed)
    asked = links(folder / "asked", size.asked, seed, stages=True, counted=counted)
    held = links(folder / "held", size.held, seed, stages=False, counted=counted)
    return {"steps": steps, "asked": asked, "held": held}


def links(folder: Path, nodes: int, seed: int, *, stages: bool, counted: float) -> dict[str, Any]:
    """Measure nodes on one SuperLink, with or without stages that all of them answer.

    Args:
        folder: Folder to make.
        nodes: Number of nodes.
        seed: Seed of the rows.
        stages: Whether nodes receive requests.
        counted: Seconds for which the nodes' calls are counted.

    Returns:
        {"nodes", "held": nodes answered within the last minute, "register", "come": nodes a second, "polls": answered
        calls a second, "memory": bytes of each node, by party, "busy": {"polls" or stage: {party: share of a core}},
        "stages": {stage: rows a second}}
    """
    folder.mkdir()
    parties = Parties(folder, show=lambda _line: None)
    try:
        return _Links(folder, nodes, seed, parties).measure(_STAGES if stages else {}, counted)
    finally:
        parties.stop()


class _Links:
    def __init__(self, folder: Path, nodes: int, seed: int, parties: Parties) -> None:
        self._folder, self._nodes, self._seed, self._parties = folder, nodes, seed, parties
        self._ports = {name: free_port() for name in ("superlink", "shuffler")}
        self._ca = folder / "ca" / "ca.pem"
        self._pids: dict[str, list[int]] = {}

    def measure(self, stages: dict[str, int], counted: float) -> dict[str, Any]:
        make_keys(self._folder, nodes=0, hosts={})
        found: dict[str, Any] = {"nodes": self._nodes, "stages": {}, "busy": {}, "memory": {}}
        self._start_links()
        found["register"] = self._nodes / self._registered()
        self._start_shuffler()
        before = _memory(self._pids["SuperLink"])
        with self._crowd() as crowds:
            log.info(f"bench: deployment: {self._nodes:,} nodes come")
            first = _told(crowds)
            found["come"] = self._nodes / max(one["seconds"] for one in first)
            with self._busy(found["busy"], "polls"):
                start, polls = time.perf_counter(), sum(one["polls"] for one in _told(crowds))
                time.sleep(counted)
                told = _told(crowds)
                found["polls"] = (sum(one["polls"] for one in told) - polls) / (time.perf_counter() - start)
                found["held"] = sum(one["held"] for one in told)
            found["memory"]["SuperLink"] = (_memory(self._pids["SuperLink"]) - before) / self._nodes
            for stage, rows in stages.items():
                log.info(f"bench: deployment: stage {stage}: {self._nodes * rows:,} rows")
                with self._busy(found["busy"], stage):
                    start = time.perf_counter()
                    got = self._stage(stage)
                    seconds = time.perf_counter() - start
                found["stages"][stage] = {"rows": got, "seconds": seconds, "per_second": got / seconds}
        return found

    # -- the parties

    def _start(self, party: str, place: str, command: Sequence[str], **environment: str) -> subprocess.Popen[bytes]:
        process = self._parties.start(party, place, command, environment)
        self._pids[party] = [process.pid]
        return process

    def _start_links(self) -> None:
        place, port = self._folder / "superlink", self._ports["superlink"]
        process = self._start(
            "SuperLink", "superlink", superlink.command(place, port=port), FLWR_HOME=str(place / "home")
        )
        superlink.wait_until_up(f"{_HOST}:{port}", self._ca, process=process, seconds=_STARTING)

    def _registered(self) -> float:
        """Make and register a key for each node, and return the seconds of all registrations."""
        enrolled, seconds = {}, 0.0
        for i in range(self._nodes):
            certificates.node_keys(self._node(i))
            start = time.perf_counter()
            number = superlink.register(f"{_HOST}:{self._ports['superlink']}", self._ca, self._node(i) / "node.pub")
            seconds += time.perf_counter() - start
            private, public = signature.generate_keys()
            (self._node(i) / DEVICE_KEY).write_text(private.hex())
            enrolled[str(number)] = {"key": public.hex(), "users": {str(i): max(_STAGES.values())}}
        signed = enrolment.tokens(enrolled, read_key(self._folder / "enrolment" / "sign.key"))
        (self._folder / "enrolment.jsonl").write_text(signed, encoding="utf-8")
        return seconds

    def _start_shuffler(self) -> None:
        place = self._folder / "shuffler"
        self._start(
            "shuffler",
            "shuffler",
            command_of(
                "sottovoce",
                "deploy",
                "shuffler",
                place,
                "--superlink",
                f"{_HOST}:{self._ports['superlink']}",
                "--root-certificates",
                self._ca,
                "--secret",
                self._folder / "superlink" / "secret",
                "--certificate",
                place / "cert.pem",
                "--key",
                place / "cert.key",
                "--port",
                self._ports["shuffler"],
                "--users",
                self._folder / "enrolment.jsonl",
                "--enrolment-key",
                self._folder / "enrolment" / "sign.pub",
                "--seal-key",
                place / "seal.key",
            ),
        )
        self._up("shuffler")

    def _up(self, party: str) -> None:
        self._parties.until(lambda: answers(self._ports[party]), what=f"the {party} is not up", seconds=_STARTING)

    def _node(self, i: int) -> Path:
        return self._folder / "nodes" / str(i)

    @contextmanager
    def _crowd(self) -> Iterator[list[subprocess.Popen[str]]]:
        """Run the nodes' processes."""
        share = -(-self._nodes // _PROCESSES)
        with ExitStack() as block:
            crowds = []
            for first in range(0, self._nodes, share):
                mine = [str(self._node(i)) for i in range(first, min(first + share, self._nodes))]
                crowd = Crowd(
                    f"{_HOST}:{self._ports['superlink']}",
                    str(self._ca),
                    mine,
                    first,
                    _STAGES,
                    read_key(self._folder / "shuffler" / "seal.pub").hex(),
                )
                process = block.enter_context(
                    subprocess.Popen(
                        [sys.executable, "-m", "benchmarks.nodes"],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        text=True,
                        env=os.environ | {"OMP_NUM_THREADS": "1"},
                    )
                )
                block.callback(process.kill)
                assert process.stdin is not None
                process.stdin.write(json.dumps(asdict(crowd)) + "\n")
                crowds.append(process)
            self._pids["simulated nodes"] = [process.pid for process in crowds]
            yield crowds

    # -- the work

    def _stage(self, stage: str) -> int:
        """Run a stage from its request to its batch, and return its number of rows."""
        asked, server = bench_rows.request(stage, self._seed, users=self._nodes), self._folder / "server"
        with Shuffler(
            f"{_HOST}:{self._ports['shuffler']}",
            root_certificates=self._ca,
            certificate=server / "cert.pem",
            key=server / "cert.key",
        ) as line:
            got = line.batch(
                stage, record_to_bytes(request_to_record(asked)), row_bytes=sealed_bytes(asked), timeout=_TIMEOUT
            )
        return len(got.rows)

    @contextmanager
    def _busy(self, found: dict[str, Any], what: str) -> Iterator[None]:
        """Record each party's share of a core during the context."""
        start, before = time.perf_counter(), {name: _seconds(pids) for name, pids in self._pids.items()}
        yield
        wall = time.perf_counter() - start
        found[what] = {name: (_seconds(pids) - before[name]) / wall for name, pids in self._pids.items()}


def _told(crowds: Sequence[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    """Return the counts of each of the nodes' processes."""
    for process in crowds:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return [json.loads(process.stdout.readline()) for process in crowds if process.stdout is not None]


def _seconds(pids: Sequence[int]) -> float:
    """Return the CPU seconds that processes have used."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(of[11]) + int(of[12]) for of in fields) / _TICKS


def _memory(pids: Sequence[int]) -> int:
    """Return the bytes of private memory of processes."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def table(found: dict[str, Any]) -> list[str]:
    """Return the figures as Markdown."""
    lines = ["| step | rows | rows/s | rows for a second of a core's work |", "| --- | ---: | ---: | ---: |"]
    for step in found["steps"].values():
        for name, (speed, work) in step["per_second"].items():
            lines.append(f"| {name} | {step['rows']:,} | {speed:,.0f} | {work:,.0f} |")
    lines += ["", "| of each million rows | memory | disk |", "| --- | ---: | ---: |"]
    for name, step in found["steps"].items():
        lines.append(f"| {name} | {_megabytes(step['memory'])} | {_megabytes(step.get('disk'))} |")
    for link in (found["asked"], found["held"]):
        memory = ", ".join(f"{size / 1000:,.0f} kB in the {name}" for name, size in link["memory"].items())
        lines += [
            "",
            f"One SuperLink held {link['held']:,} of {link['nodes']:,} nodes: {link['register']:,.0f} registered "
            f"and {link['come']:,.0f} come a second, {link['polls']:,.0f} questions for messages answered a second; of "
            f"each node {memory}.",
        ]
    lines += [
        "",
        "| through SuperLink and shuffler | rows | rows/s | share of a core |",
        "| --- | ---: | ---: | --- |",
    ]
    busy = found["asked"]["busy"]
    for name, stage in found["asked"]["stages"].items():
        lines.append(f"| {name} | {stage['rows']:,} | {stage['per_second']:,.0f} | {_shares(busy[name])} |")
    return [*lines, f"| none, questions alone | 0 | 0 | {_shares(busy['polls'])} |"]


def _megabytes(size: float | None) -> str:
    """Return a size as text; growth below the memory before the first row is not seen."""
    return "–" if size is None else f"{size / 1e6:,.0f} MB" if size else "not seen"


def _shares(of: dict[str, float]) -> str:
    return ", ".join(f"{name} {share:.2f}" for name, share in sorted(of.items(), key=lambda one: -one[1]))


def in_a_folder(*, quick: bool, seed: int) -> dict[str, Any]:
    """Call `run` in a temporary folder.

    Args:
        quick: Whether to use the small size.
        seed: Seed of the rows.
    """
    with tempfile.TemporaryDirectory(prefix="sottovoce-bench-") as folder:
        return run(QUICK if quick else Size(), seed=seed, folder=Path(folder))
