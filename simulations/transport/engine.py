"""Start of Flower and Ray; no other module starts them."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from client.device.https import host_and_port
from simulations.errors import Terminated, UserError, in_short
from simulations.transport.quiet import QUIET, hush_flower
from simulations.transport.signals import handling

T = TypeVar("T")

#: Seconds to wait for a cluster's head: it answers at once, or does not exist. Ray itself would try for minutes.
_REACH = 5.0
#: Start of a gRPC connection, and the frame type of every server's answer (RFC 9113, sections 3.4 and 6.5).
_SETTINGS = b"\x04"
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + _SETTINGS + b"\0" * 5
#: Seconds to wait for the answer of every machine of a cluster: its first worker may have to start.
_MACHINE_SECONDS = 60.0
#: Longest path of a folder for Ray's sockets: Linux limits their names to 107 bytes. And a short folder.
_LONGEST = 107 - len("/ray/session_2000-01-01_00-00-00_000000_4194304/sockets/plasma_store.10")
_SHORT = "/tmp"
#: Packages that must agree on all machines: they determine the bits of a release.
_CLIENT_PACKAGES = ("sottovoce", "flwr", "numpy", "scipy", "onnxruntime", "tokenizers")


#: Seconds in which all nodes register, and seconds without a new node after which no more will come.
_REGISTRATION, _SETTLED = 60.0, 1.0


def wait_for_nodes(grid: Any, nodes: int) -> list[int]:
    """Return the ids of all `nodes` SuperNodes: their registration races the ServerApp's main function.

    Raises:
        RuntimeError: Not all of them have registered in time.
    """
    end = time.monotonic() + _REGISTRATION
    while len(ids := sorted(grid.get_node_ids())) < nodes:
        if time.monotonic() > end:
            raise RuntimeError(f"only {len(ids)} of {nodes} Flower nodes registered within {_REGISTRATION:.0f} s")
        time.sleep(0.05)
    return ids


def settled_nodes(grid: Any) -> int:
    """Wait until no new SuperNode has registered for a second, and return their number."""
    count, since = len(wait_for_nodes(grid, 1)), time.monotonic()
    while time.monotonic() - since < _SETTLED:
        time.sleep(0.05)
        if (now := len(grid.get_node_ids())) != count:
            count, since = now, time.monotonic()
    return count


def check_address(address: str) -> None:
    """Check within seconds that a Ray cluster's head answers at host:port.

    Raises:
        ValueError: The address is not valid, or no head of a cluster answers there. The message is one line.
    """
    place = host_and_port(address, "--ray-address")
    try:
        with socket.create_connection(place, timeout=_REACH) as head:
            head.sendall(_HELLO)
            answer = head.recv(9)
    except OSError as error:
        raise UserError(
            f"--ray-address {address}: no Ray cluster can be reached there ({error.strerror or error}); "
            f"start one with: ray start --head --port={place[1]}"
        ) from error
    if answer[3:4] != _SETTINGS:
        raise UserError(f"--ray-address {address}: the server there is not a Ray cluster's head")


def run_on_flower(
    job: Callable[[object], T],
    *,
    nodes: int,
    folder: Path,
    actors: int | None = None,
    address: str | None = None,
    app: Any | None = None,
) -> T:
    """Start `nodes` SuperNodes that run the client, each with its data under `folder`, and run job(grid).

    Ctrl-C raises KeyboardInterrupt in the job, and SIGTERM raises Terminated. Once the job has ended, nodes that are
    still at work are stopped: their answers would come too late.

    Args:
        job: Function of the grid.
        nodes: Number of SuperNodes.
        folder: Folder with the data of all nodes.
        actors: Number of processes that answer for the nodes, each on one thread so that they do not compete for the
            cores. None starts one for each core.
        address: Address host:port of a running Ray cluster, whose cores then count. Its machines need not see `folder`
            (`simulations.transport.node_store`). Otherwise Ray is started for this call, on this machine alone, and
            stopped after it.
        app: Another ClientApp, to measure the cost of Flower itself.

    Returns:
        The result of the job. Its exceptions are raised again.

    Raises:
        UserError: The cluster cannot be used.
    """
    os.environ.update(QUIET)  # what this process starts inherits it; the runtime_env takes it to other machines
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    environment = QUIET | {"SOTTOVOCE_NODES": str(folder.resolve()), "OMP_NUM_THREADS": threads}
    if address is not None:
        check_address(address)
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation
    from flwr.supercore import telemetry

    from client.app import app as local_app
    from simulations.transport.node_store import app as lent_app

    # Flower reads the variable on import. A Python caller may have imported it before this call.
    telemetry.FLWR_TELEMETRY_ENABLED = QUIET["FLWR_TELEMETRY_ENABLED"]
    client_app = app or (local_app if address is None else lent_app)
    # The job's results stay in this process: the ServerApp runs in one of its threads.
    outcome: list[T] = []
    failure: list[BaseException] = []
    thread: list[int] = []
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Any, context: Any) -> None:
        thread.append(threading.get_ident())
        try:
            wait_for_nodes(grid, nodes)
            outcome.append(job(grid))
        except BaseException as error:  # Flower would turn it into a log line and another exception
            failure.append(error)
        finally:
            thread.clear()
            _stop_actors()

    configuration: dict[str, Any] = {
        # Flower passes these to Ray as the actors' options. It puts a dead actor back into its pool, where it would
        # fail every later message at once: Ray must start it again. The message it died on is tried once more.
        # The ledgers make that safe: a charged release is sent again, and not drawn anew.
        "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0, "max_restarts": -1, "max_task_retries": 1}
    }
    # Flower logs two tracebacks a node for a worker that dies or is stopped. The outcome is in the results.
    hush_flower(logging.ERROR if os.environ.get("SOTTOVOCE_DEBUG") else logging.CRITICAL + 1)
    with warnings.catch_warnings(), _ray(environment, actors, address), _interrupting(thread):
        warnings.simplefilter("ignore")
        if address is not None:
            _check_machines()
        node_store = None if address is None else _start_node_store(folder)  # it ends with its last handle
        run_simulation(server_app, client_app, num_supernodes=nodes, backend_config=configuration)
        del node_store
    if failure:
        raise failure[0]
    if not outcome:
        raise RuntimeError("Flower ended before the server had finished; its log says why (SOTTOVOCE_DEBUG=1)")
    return outcome[0]


@contextmanager
def _ray(environment: dict[str, str], actors: int | None, address: str | None) -> Iterator[None]:
    """Start Ray and stop it after the block, or join a cluster and leave it unchanged.

    Flower uses the Ray that it finds. If Flower started Ray, Ray would join any cluster that somebody has left on this
    machine, and give its workers on other machines no environment.
    """
    import ray

    options: dict[str, Any] = {"address": address or "local", "runtime_env": {"env_vars": environment}}
    handler, folder = signal.getsignal(signal.SIGTERM), None
    if address is None:
        # Prestart no workers: Flower's actors have an environment of their own, and could not use them.
        own = {"prestart_worker_first_driver": False}
        options |= {"include_dashboard": False, "num_cpus": actors, "_system_config": own}
        if (folder := _short_folder()) is not None:
            options["_temp_dir"] = folder
    try:
        ray.init(**options, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, RuntimeError) as error:
        if address is None:
            raise
        raise UserError(f"--ray-address {address}: the Ray cluster cannot be joined: {in_short(error)}") from error
    if threading.current_thread() is threading.main_thread() and handler is not None:
        signal.signal(signal.SIGTERM, handler)  # Ray's own prints a native stack and aborts
    try:
        yield
    finally:
        ray.shutdown()  # Flower has done so already, unless it failed before it began
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _short_folder() -> str | None:
    """Return a folder for Ray's sockets if the temporary folder's path is too long for their names, otherwise None."""
    usual = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or _SHORT
    return tempfile.mkdtemp(prefix="sv-", dir=_SHORT) if len(os.fsencode(usual)) > _LONGEST else None


def _stop_actors() -> None:
    """Stop the processes that answer for nodes.

    Flower would wait for a node for as long as it takes, so for ever if the node hangs.
    """
    import ray
    from ray._private import state, worker  # Flower keeps the actors' handles to itself

    core: Any = worker.global_worker

    if not ray.is_initialized():
        return
    for actor, about in state.actors().items():
        if about["JobID"] == ray.get_runtime_context().get_job_id() and about["State"] != "DEAD":
            core.core_worker.kill_actor(ray.ActorID(bytes.fromhex(actor)), True)


@contextmanager
def _interrupting(thread: list[int]) -> Iterator[None]:
    """Raise KeyboardInterrupt for Ctrl-C, and Terminated for SIGTERM, in the job's thread while there is one.

    In the main thread it would only keep Flower from ending: Flower waits until the job has ended.
    """
    raised: dict[int, type[BaseException]] = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}

    def interrupt(number: int, frame: Any) -> None:
        if not thread:
            raise raised[number]
        for ident in list(thread):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(raised[number]))

    with handling(dict.fromkeys(raised, interrupt)):
        yield


def _start_node_store(folder: Path) -> Any:
    """Start the node store for the cluster on this machine. Raise UserError if it does not see the folder."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from simulations.transport.node_store import NAME, NodeStore

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    # A restart after its death loses nothing: its state is in the folder.
    options = {"name": NAME, "num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": here}
    node_store: Any = ray.remote(NodeStore).options(**options).remote(str(folder.resolve()))
    try:
        seen = ray.get(node_store.sees.remote(), timeout=_MACHINE_SECONDS)
    except ray.exceptions.RayError as error:
        raise UserError(f"--ray-address: the cluster's part on this machine failed: {in_short(error)}") from error
    if not seen:
        raise UserError(
            f"--ray-address: the cluster's part on this machine does not see {folder}, or may not write to it; start "
            "`ray start` where this command runs, as its user"
        )
    return node_store


def _check_machines() -> None:
    """Raise UserError unless every machine of the cluster has the packages of this one."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def look(packages: tuple[str, ...]) -> dict[str, str | None]:
        # Ray sends this function by value, so that a machine without Sottovoce can run it too.
        from importlib.metadata import PackageNotFoundError, version

        versions: dict[str, str | None] = {}
        for name in packages:
            try:
                versions[name] = version(name)
            except PackageNotFoundError:
                versions[name] = None
        return versions

    machines = {}  # their names, by the task that each was given
    for node in ray.nodes():
        if node["Alive"] and node["Resources"].get("CPU"):
            where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            answer = ray.remote(look).options(num_cpus=0, scheduling_strategy=where).remote(_CLIENT_PACKAGES)
            machines[answer] = node["NodeManagerHostname"]
    here = {name: version(name) for name in _CLIENT_PACKAGES}
    if not machines:
        raise UserError("--ray-address: no machine of the cluster offers a core; start them with --num-cpus")
    for answer, machine in machines.items():
        try:
            versions = ray.get(answer, timeout=_MACHINE_SECONDS)
        except ray.exceptions.RayError as error:
            raise UserError(f"--ray-address: the machine {machine} does not answer: {in_short(error)}") from error
        if fault := machine_fault(versions, here):
            raise UserError(f"--ray-address: the machine {machine} {fault}")


def machine_fault(there: Mapping[str, str | None], here: Mapping[str, str]) -> str | None:
    """Return the reason why a machine cannot answer for nodes, by the versions there and here; None if it can."""
    for name, release in there.items():
        if release is None:
            return f"does not have {name}; install there what is installed here: {name} {here[name]}"
        if release != here[name]:
            return f"has {name} {release}, and this one {here[name]}: install the same"
    return None
