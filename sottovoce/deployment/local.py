"""Deployment of a study's arm on this machine: every party is its own process, with its own files and keys.

    DIR/ca          the authority of this deployment: ca.pem, ca.key
    DIR/publisher   the publisher: the key that signs bundles and requests
    DIR/bundle      the bundle of every device
    DIR/nodes/0..   the devices: settings, key, records, ledger
    DIR/superlink   Flower's SuperLink, of the shuffler's operator
    DIR/shuffler    its store, its certificate, and the users of each node
    DIR/server      the training server: its keys, in public/ the public data, in run/ the trained model
    DIR/*           results.json and the like: the score, by the operator of the study, who holds the truth
    DIR/predict     the deployed model's certificate; DIR/asker a device for queries, if they stay up

commands.txt has every command as it ran; processes.json names the processes; each party's folder has its log. The
folder holds private keys and users' texts, so only its owner may read it.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from client.device.bundle import Bundle, Keys, open_bundle
from client.device.https import MODEL, SHUFFLER
from client.device.serve import MARK as SERVED
from client.device.signed_request import allow
from client.node import DEVICE_PUBLIC
from client.shard import write_shard
from server.protocols import PROTOCOLS
from server.protocols.models import QUESTION
from simulations.artifacts.public import save_public
from simulations.errors import Interrupted, Terminated, UserError
from simulations.experiment import Arm, Experiment, slug, to_toml
from simulations.run.partition import cohorts
from simulations.run.prepare import Held, prepare
from simulations.run.report import Results, write
from simulations.shuffler import enrolment
from simulations.transport.signals import handling
from sottovoce.deployment import superlink
from sottovoce.deployment.certificates import FOLDERS, make_keys
from sottovoce.deployment.devices.bundle import bundle_of_experiment, chosen
from sottovoce.deployment.keys import read_key
from sottovoce.deployment.processes import (
    COMMANDS,
    ENDS,
    Line,
    Parties,
    answers,
    command_of,
    ending_on_signals,
    free_port,
    shown,
)
from sottovoce.deployment.questions import ASKED, SIGNED, sign_question
from sottovoce.deployment.score import score_arm
from sottovoce.deployment.shuffler_service import ORIGINS

log = logging.getLogger(__name__)

#: Seconds for a party to start. It loads libraries first, and all parties do so at once.
STARTING = 120.0
#: Seconds within which a device's answers leave: the caller of `up` waits for them.
WINDOW = 1.0
#: Most queries of the trained model that the asking user permits.
QUESTIONS = 100
_HOST = "127.0.0.1"


def up(
    experiment: Experiment,
    arm_name: str | None,
    out: Path,
    *,
    nodes: int,
    stay: bool = False,
    show: Line,
) -> tuple[Results, str | None]:
    """Run one arm of a study through SuperLink, devices, shuffler and training server, in a new folder.

    At the end, and after any error, no process is left. If users may have released something, the folder with ledgers
    and logs is left too; otherwise nothing is.

    Args:
        experiment: The study.
        arm_name: Name of the arm; None if there is only one.
        out: Folder of the deployment.
        nodes: Number of devices.
        stay: Whether everything but the training server stays up, and the trained model is served.
        show: Function that receives each command as it runs.

    Returns:
        The results, and with `stay` the next steps, as lines for people.

    Raises:
        UserError: The user can correct the error, or a party fails; the message then names the party and its log. The
            message is one line.
    """
    arm = _checked(experiment, arm_name, nodes)
    if stay and (arm.text or arm.answer or not arm.embedding):
        task = "release texts" if arm.text else "run all of it on their devices"
        raise UserError(
            f"--stay: serves the model to users who release embeddings; those of this arm {task}; leave --stay out, or "
            "name an arm with embeddings"
        )
    with ending_on_signals(), folder_of(out) as folder:
        parties = Parties(folder, show=show)
        deployment = _Deployment(experiment, arm, folder, nodes, parties)
        hint = None
        try:
            deployment.make()
            result = deployment.run(free_port())
            hint = deployment.serve() if stay else None
        except (KeyboardInterrupt, Terminated) as error:
            if not (folder / COMMANDS).exists():
                raise
            raise Interrupted(
                f"interrupted; everything is stopped; what users have released is on the ledgers in {out}", by=error
            ) from error
        finally:
            with handling(dict.fromkeys(ENDS, signal.SIG_IGN)):  # also Ctrl-C: it must be completed
                if hint is None:
                    parties.stop()
    return result, hint


def _checked(experiment: Experiment, name: str | None, nodes: int) -> Arm:
    """Return the arm to deploy; raise UserError if the study cannot be deployed."""
    arm = chosen(experiment, name).arm
    protocol, people = experiment.training.protocol, experiment.population
    if protocol.steps is None:
        names = ", ".join(f'"{name}"' for name, other in PROTOCOLS.items() if other.steps is not None)
        raise UserError(f'training.protocol: "{protocol}" cannot be deployed; these can: {names}')
    if experiment.training.self_training:
        raise UserError("training.self-training: a deployment has one encoder; set it to false")
    if people.late:
        raise UserError("population.late: a deployment's users are as late as they are; leave it out")
    if not 1 <= nodes <= people.users:
        raise UserError(f"--nodes {nodes}: must be from 1 to population.users, {people.users:,}")
    return arm


@contextmanager
def folder_of(out: Path) -> Iterator[Path]:
    """Make the deployment's folder, for its owner alone; remove it if the context fails before any party starts."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: is there already and not an empty folder; name another one")
    folders = [p for p in (out, *out.parents) if not p.exists()]
    try:
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        out.chmod(0o700)  # one that is there
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror}") from error
    umask = os.umask(0o077)
    try:
        yield out
    except BaseException:
        if not (out / COMMANDS).exists():
            for entry in list(out.iterdir()):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            for place in folders:
                if place.exists() and not any(place.iterdir()):
                    place.rmdir()
        raise
    finally:
        os.umask(umask)


class _Deployment:
    """One run of an arm's deployment."""

    def __init__(self, experiment: Experiment, arm: Arm, folder: Path, nodes: int, parties: Parties) -> None:
        self.experiment, self.arm, self.folder, self.nodes = experiment, arm, folder, nodes
        self.parties = parties
        self.ca = folder / "ca"
        self.server = folder / "server"
        self.publisher = folder / "publisher"
        self.users: list[dict[str, int]] = []
        self.superlink = ""

    # -- files

    def make(self) -> None:
        """Write keys, the bundle, and every device with its users' records, before any process starts."""
        study = self.folder / "experiment.toml"
        study.write_text(to_toml(self.experiment), encoding="utf-8")
        self.prepared = prepare(self.experiment)
        public, records = self.prepared.public, self.prepared.held
        log.info(f"keys and certificates; {self.nodes} devices with their users' records")
        make_keys(self.folder, nodes=self.nodes, hosts={})
        keys = Keys(
            signer=read_key(self.publisher / "sign.key"),
            seal=read_key(self.server / "seal.pub"),
            shuffler_seal=read_key(self.folder / FOLDERS[SHUFFLER] / "seal.pub"),
            model_seal=read_key(self.folder / FOLDERS[MODEL] / "seal.pub"),
        )
        bundle = bundle_of_experiment(
            self.experiment,
            self.arm.name,
            self.folder / "bundle",
            public=public,
            records=max(records.holders.most, records.test_holders.most),
            keys=keys,
            window=WINDOW,
        )
        log.info(f"bundle for the devices: {bundle.size / 1e6:,.1f} MB, identity {bundle.identity[:16]}…")
        save_public(self.experiment.name, public, self.server / "public")
        users = cohorts(self.experiment.population, records, self.nodes, seed=self.experiment.seed)
        for i, (train_users, test_users) in enumerate(users):
            self._device(self._node(i), records, bundle, train_users, test_users)

    def _device(self, node: Path, held: Held, bundle: Bundle, mine: Any, theirs: Any) -> None:
        """Write a device with the users of these rows; it encodes their texts itself."""
        bundle.install(node, read_key(self.publisher / "sign.pub"))
        train, test = held.holders, held.test_holders
        texts, labels = held.train.texts.take(mine), held.train.labels[mine]
        write_shard(node, "train", train.users[mine], train.records[mine], texts, labels)
        texts = held.test.texts.take(held.test_rows[theirs])
        write_shard(node, "test", test.users[theirs], test.records[theirs], texts, None)
        counts: Counter[int] = Counter()
        for users in (train.users[mine], test.users[theirs]):  # a stage is for one split
            counts |= Counter(users.tolist())
        self.users.append({str(user): counts[user] for user in sorted(counts)})

    def _node(self, i: int) -> Path:
        return self.folder / "nodes" / str(i)

    # -- processes

    def run(self, port: int) -> Results:
        """Run SuperLink, devices and shuffler; then the training server, from its start to its end."""
        self.superlink = f"{_HOST}:{port}"
        place = self.folder / "superlink"
        command = superlink.command(place, port=port)
        self.parties.start("SuperLink", "superlink", command, {"FLWR_HOME": str(place / "home")})
        self.parties.until(lambda: answers(port), what="the SuperLink is not up", seconds=STARTING)
        self._start_nodes()
        shuffler = self._start_shuffler()
        self._train(shuffler)
        result = score_arm(
            self.experiment,
            self.prepared,
            self.arm.name,
            server=self.server / "run",
            origins=self.folder / "shuffler" / ORIGINS,
        )
        write(result, self.folder)
        return result

    def _start_nodes(self) -> None:
        """Register the devices' keys, sign each device's users as the enrolment authority, and start the devices."""
        entries = {}
        for i in range(self.nodes):
            number = superlink.register(self.superlink, self.ca / "ca.pem", self._node(i) / "node.pub")
            key = read_key(self._node(i) / DEVICE_PUBLIC).hex()
            entries[str(number)] = {"key": key, "users": self.users[i]}
        tokens = enrolment.tokens(entries, read_key(self.folder / "enrolment" / "sign.key"))
        (self.folder / "shuffler" / "enrolment.jsonl").write_text(tokens, encoding="utf-8")
        threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        for i in range(self.nodes):
            serve = command_of(
                "sottovoce",
                "device",
                "serve",
                self._node(i),
                superlink=self.superlink,
                root_certificates=self.ca / "ca.pem",
                key=self._node(i) / "node.key",
            )
            self.parties.start(f"node {i}", f"nodes/{i}", serve, threads)

    def _start_shuffler(self) -> str:
        port, place = free_port(), self.folder / "shuffler"
        self._deploy(
            "shuffler",
            "shuffler",
            "shuffler",
            place,
            "--origins",
            superlink=self.superlink,
            root_certificates=self.ca / "ca.pem",
            secret=self.folder / "superlink" / "secret",
            port=port,
            users=place / "enrolment.jsonl",
            enrolment_key=self.folder / "enrolment" / "sign.pub",
        )
        for i in range(self.nodes):
            self.parties.until(partial(_has_text, self._node(i) / SERVED), what=f"node {i} is not up", seconds=STARTING)
        self.parties.until(lambda: answers(port), what="the shuffler is not up", seconds=STARTING)
        return f"{_HOST}:{port}"

    def _deploy(self, party: str, place: str, *words: Any, **options: Any) -> None:
        """Start `sottovoce deploy` for a party, with the keys in its folder."""
        names = {"certificate": "cert.pem", "key": "cert.key", "seal_key": "seal.key"}
        keys = {option: self.folder / place / name for option, name in names.items()}
        self.parties.start(party, place, command_of("sottovoce", "deploy", *words, **keys, **options))

    def _train(self, shuffler: str) -> None:
        self._deploy(
            "training server",
            "server",
            "train",
            self.folder / "experiment.toml",
            arm=self.arm.name,
            public=self.server / "public",
            out=self.server / "run",
            shuffler=shuffler,
            root_certificates=self.ca / "ca.pem",
            bundle=self.folder / "bundle",
        )
        self.parties.finish("training server", meanwhile=self._publish)

    def _publish(self) -> None:
        """Act as the publisher: sign the trained model's request once it exists, and give it to the devices."""
        place = self.server / "questions"
        question, signature = (place / f"{QUESTION}{end}" for end in (ASKED, SIGNED))
        questions = {path for path in place.glob(f"*{ASKED}") if not path.name.startswith(".")}  # without drafts
        if others := sorted(questions - {question}):
            raise UserError(
                f"{others[0]}: the training server asks training users otherwise than the bundle lists: its maps "
                "came out otherwise; run it again with one thread (OMP_NUM_THREADS=1)"
            )
        if signature.exists() or not question.exists():
            return
        draft = self.publisher / signature.name
        lines = sign_question(question, self.publisher / "sign.key", draft, open_bundle(self.folder / "bundle"))
        log.info(f"publisher: signs the model's question: {lines[0]}")
        for i in range(self.nodes):
            allow(self._node(i), draft)
        draft.rename(signature)

    def serve(self) -> str:
        """Start the trained model, and write one more device whose user accepts queries without a crowd.

        Returns:
            How to ask the model and how to stop everything, as lines for people.
        """
        port = free_port()
        bundle = open_bundle(self.folder / "bundle")
        total, releases = QUESTIONS * bundle.policy.total, QUESTIONS * bundle.policy.releases
        policy = replace(bundle.policy, minimum_users=0, total=total, releases=releases)
        replace(bundle, policy=policy).install(self.folder / "asker", read_key(self.publisher / "sign.pub"))
        question = self.server / "questions" / f"{QUESTION}{SIGNED}"
        if question.exists():  # otherwise the bundle lists it
            allow(self.folder / "asker", question)
        model = self.server / "run" / "models" / slug(self.arm.name)
        self._deploy("model", "predict", "predict", model, port=port)
        self.parties.until(lambda: answers(port), what="the model is not up", seconds=STARTING)
        where = {"server": f"https://{_HOST}:{port}", "root_certificates": self.ca / "ca.pem"}
        ask = command_of("sottovoce", "device", "ask", self.folder / "asker", "a sentence", **where)
        down = command_of("sottovoce", "deploy", "down", self.folder)
        return f"Ask the model:   {shown(ask)}\nStop everything: {shown(down)}"


def _has_text(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0
