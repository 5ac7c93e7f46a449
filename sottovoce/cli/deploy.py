"""Commands `sottovoce deploy`: a study's arm on real processes, all at once, or each party by itself."""

from __future__ import annotations

import logging
import sys
from contextlib import redirect_stdout
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from sottovoce.cli.options import (
    AsJson,
    Authority,
    Data,
    File,
    OneArm,
    Set,
    SuperLink,
    end_undelivered,
    overrides,
    show_progress,
)

log = logging.getLogger(__name__)

# This file must not import NumPy, torch or Flower, because `--help` and the error for a mistyped file must come fast.

app = typer.Typer(help="Run an experiment on real processes, on one machine or several.", no_args_is_help=True)
keys_app = typer.Typer(help="Make keys and certificates, and register devices.", no_args_is_help=True)
app.add_typer(keys_app, name="keys")

Certificate = Annotated[Path, typer.Option("--certificate", metavar="FILE", help="This party's certificate (PEM).")]
Key = Annotated[Path, typer.Option("--key", metavar="FILE", help="Private key of this party.")]
Port = Annotated[int, typer.Option("--port", help="Port to listen on.")]
Host = Annotated[str, typer.Option("--host", help="Address to listen on.")]


@app.command("up", epilog="Example: sottovoce deploy up labelled-demo --nodes 4 --out deployed")
def up_(
    file: File,
    arm: OneArm = None,
    nodes: Annotated[int, typer.Option("--nodes", help="Number of devices; user u is on device u mod NODES.")] = 4,
    out: Annotated[
        Path | None, typer.Option("--out", help="Results folder, new or empty (default: runs/deploy-NAME-DATE).")
    ] = None,
    data: Data = None,
    set_: Set = None,
    stay: Annotated[
        bool, typer.Option("--stay", help="Keep devices and shuffler running, and serve the trained model.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run one arm on this machine: SuperLink, devices, shuffler, server."""
    from simulations.experiment import load, slug

    experiment = load(file, overrides(set_, data))
    out = out or Path("runs") / f"deploy-{slug(experiment.name)}-{datetime.now():%Y%m%d-%H%M%S}"
    with redirect_stdout(sys.stderr):  # for libraries that load a checkpoint
        from simulations.experiment.result import arms_of
        from simulations.run import report
        from sottovoce.deployment import local as deploy

        show_progress()
        results, hint = deploy.up(
            experiment,
            arm,
            out,
            nodes=nodes,
            stay=stay,
            show=lambda command: print(f"$ {command}", file=sys.stderr, flush=True),
        )
    report.say(results, out, "Results, ledgers and logs", as_json=as_json)
    if hint is not None:
        print(f"Everything but the training server is up.\n{hint}", file=sys.stderr if as_json else sys.stdout)
    end_undelivered(arms_of(results))


@app.command("down", epilog="Example: sottovoce deploy down deployed")
def down(folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of `deploy up`.")]) -> None:
    """Stop the remaining processes of a deployment."""
    from sottovoce.deployment import processes as parties

    names = parties.down(folder)
    print(f"{folder}: stopped {', '.join(names)}" if names else f"{folder}: nothing is running")


@keys_app.command("make", epilog="Example: sottovoce deploy keys make keys --nodes 2")
def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty; a folder for each party comes into it.")],
    nodes: Annotated[int, typer.Option("--nodes", min=0, help="Number of devices.")] = 4,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="PARTY=HOST", help="Where superlink, shuffler or model is reached."),
    ] = None,
) -> None:
    """Make the keys and certificates of all parties at once.

    `deploy up` makes its own.
    """
    from sottovoce.deployment import certificates
    from sottovoce.deployment import local as deploy

    hosts = certificates.hosts_by_party(host or ())
    with deploy.folder_of(folder):
        certificates.make_keys(folder, nodes=nodes, hosts=hosts)
    print(f"{folder}: each party is given its own folder of these and no other, and ca/ca.pem; they last for 30 days")


@keys_app.command(
    "register",
    epilog="Example: sottovoce deploy keys register node.pub --superlink HOST:9096 --root-certificates ca.pem",
)
def register(
    public_key: Annotated[Path, typer.Argument(metavar="NODE.pub", help="A device's public key.")],
    superlink: SuperLink,
    root_certificates: Authority,
) -> None:
    """Register a device with a SuperLink, and print its node id."""
    from sottovoce.deployment import superlink as operator

    print(operator.register(superlink, root_certificates, public_key))


@app.command("enrol", epilog="Example: sottovoce deploy enrol users.json --sign-key enrol.pem --out tokens.json")
def enrol(
    table: Annotated[
        Path,
        typer.Argument(
            metavar="TABLE.json",
            help='Each device: {"<node id>": {"key": "<its device.pub>", "users": {"<user>": records}}}.',
        ),
    ],
    sign_key: Annotated[
        Path, typer.Option("--sign-key", metavar="FILE", help="The enrolment authority's private key.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The tokens, for the shuffler.")],
) -> None:
    """Sign tokens of users as the enrolment authority.

    A shuffler accepts rows of no other users.
    """
    from simulations.output.atomic import whole
    from simulations.shuffler import enrolment
    from sottovoce.deployment.keys import read_key

    people = enrolment.read_table(table)
    tokens = enrolment.tokens(people, read_key(sign_key))
    with whole(out) as file:
        file.write(tokens.encode())
    count = sum(len(person["users"]) for person in people.values())
    print(f"{out}: {count:,} user{'s' * (count != 1)} on {len(people):,} device{'s' * (len(people) != 1)}")


@app.command(
    "shuffler",
    epilog="Example: sottovoce deploy shuffler batches --superlink HOST:9093 --users tokens.json ...",
)
def shuffler(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the batches.")],
    superlink: SuperLink,
    root_certificates: Authority,
    secret: Annotated[Path, typer.Option("--secret", metavar="FILE", help="Secret of the SuperLink.")],
    certificate: Certificate,
    key: Key,
    port: Port,
    users: Annotated[Path, typer.Option("--users", metavar="FILE", help="Tokens made by `deploy enrol`.")],
    enrolment_key: Annotated[
        Path, typer.Option("--enrolment-key", metavar="FILE", help="Public key of the authority.")
    ],
    seal_key: Annotated[Path, typer.Option("--seal-key", metavar="FILE", help="Key that devices seal to.")],
    origins: Annotated[
        bool, typer.Option("--origins", help="Write the user of each row into DIR/origins; for simulated users only.")
    ] = False,
    host: Host = "127.0.0.1",
) -> None:
    """Run the shuffler: store sealed releases, and remove their users."""
    from sottovoce.deployment import shuffler as shuffler_service

    show_progress()
    shuffler_service.run(
        folder,
        superlink=superlink,
        root_certificates=root_certificates,
        secret=secret,
        certificate=certificate,
        key=key,
        users=users,
        enrolment_key=enrolment_key,
        seal_key=seal_key,
        port=port,
        host=host,
        origins=origins,
    )


@app.command("public", epilog="Example: sottovoce deploy public mine/experiment.toml --out public")
def public(
    file: File,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The public part; new or empty.")],
    data: Data = None,
    set_: Set = None,
) -> None:
    """Write the public data of an experiment for a training server."""
    from simulations.experiment import load

    experiment = load(file, overrides(set_, data))
    with redirect_stdout(sys.stderr):
        from simulations.artifacts.public import prepare_public, save_public
        from simulations.run.prepare import parts

        show_progress()
        corpus = parts(experiment)[0].public
        save_public(experiment.name, prepare_public(experiment, corpus), out)
    print(f"{out}: {len(corpus):,} public texts, and what a training server needs beside them")


@app.command(
    "train",
    epilog="Example: sottovoce deploy train mine/experiment.toml --public public --out model ...",
)
def train(
    file: File,
    public: Annotated[Path, typer.Option("--public", metavar="DIR", help="Public part, by `deploy public`.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The model; new or empty.")],
    shuffler: Annotated[str, typer.Option("--shuffler", metavar="HOST:PORT", help="Address of the shuffler.")],
    root_certificates: Authority,
    certificate: Certificate,
    key: Key,
    seal_key: Annotated[
        list[Path],
        typer.Option("--seal-key", metavar="FILE", help="Private key that releases are sealed to; again: the last."),
    ],
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle",
            metavar="DIR",
            help="What the devices were given; other requests wait for its publisher.",
        ),
    ] = None,
    arm: OneArm = None,
) -> None:
    """Train one arm on the batches that the shuffler delivers."""
    from simulations.experiment import load, to_toml

    experiment = load(file)
    with redirect_stdout(sys.stderr):
        from client.device.bundle import open_bundle
        from simulations.artifacts.encoder import training_of
        from simulations.artifacts.public import load_public
        from sottovoce.deployment.devices.bundle import chosen
        from sottovoce.deployment.keys import ids_of, read_key
        from sottovoce.deployment.shuffler_client import Shuffler
        from sottovoce.deployment.training_server import RemoteShuffler
        from sottovoce.deployment.training_server import train as train_arm

        show_progress()
        setup = chosen(experiment, arm)
        log.info(f"opens what is sealed to {ids_of(map(read_key, seal_key))}")
        with Shuffler(shuffler, root_certificates=root_certificates, certificate=certificate, key=key) as line:
            users = RemoteShuffler(
                line,
                seal_keys=seal_key,
                timeout=experiment.population.timeout,
                bundle=None if bundle is None else open_bundle(bundle),
            )
            corpus = load_public(experiment, public)
            training = training_of(experiment)
            result = train_arm(setup, training, corpus, out, experiment=to_toml(experiment), users=users)
    print(f"{out}: {result.name}: trained on what {result.delivered:,} users delivered; the model is in {result.model}")
    end_undelivered([result])


@app.command(
    "sign", epilog="Example: sottovoce deploy sign question.bin --bundle bundle --sign-key sign.pem --out signed.bin"
)
def sign(
    question: Annotated[Path, typer.Argument(metavar="QUESTION", help="What a training server would ask.")],
    bundle: Annotated[Path, typer.Option("--bundle", metavar="DIR", help="What the devices were given.")],
    sign_key: Annotated[Path, typer.Option("--sign-key", metavar="FILE", help="The publisher's private key.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The signed question, for devices and server.")],
) -> None:
    """Sign a request as the publisher, so that devices may answer it."""
    from client.device.bundle import open_bundle
    from sottovoce.deployment import questions

    lines = questions.sign_question(question, sign_key, out, open_bundle(bundle))
    print(f"{out}: signed; devices allow it with `sottovoce device allow NODE --question {quote(str(out))}`:")
    print("\n".join(lines))


@app.command(
    "predict", epilog="Example: sottovoce deploy predict model --certificate model.pem --key model.key --port 9443"
)
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A trained model: models/ARM of a run.")],
    certificate: Certificate,
    key: Key,
    port: Port,
    seal_key: Annotated[
        list[Path] | None,
        typer.Option("--seal-key", metavar="FILE", help="Private key that questions are sealed to; again: the last."),
    ] = None,
    host: Host = "127.0.0.1",
) -> None:
    """Serve a trained model: answer sanitized embeddings."""
    from sottovoce.deployment import predict as predict_service

    show_progress()
    predict_service.run(model, certificate=certificate, key=key, port=port, host=host, seal_keys=seal_key or ())
