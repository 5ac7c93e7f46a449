"""Commands `sottovoce device`: a device's bundle and its ledger."""

from __future__ import annotations

import signal
import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from simulations.errors import Terminated, UserError
from sottovoce.cli.options import AsJson, Authority, Data, OneArm, Set, SuperLink, overrides, print_json, show_progress
from sottovoce.deployment.processes import ending_on_signals

# This file must not import anything that a device lacks: these commands run with `pip install sottovoce` alone. (Making
# a bundle needs the extra for simulations.)

app = typer.Typer(help="Make, install and run the client of a device.", no_args_is_help=True)

Device = Annotated[Path, typer.Argument(metavar="DEVICE", help="Device folder.")]


@app.command("bundle", epilog='Example: sottovoce device bundle --run runs/text --arm "one vector, ε = 8" --out bundle')
def bundle_(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The bundle; new or empty.")],
    run: Annotated[Path | None, typer.Option("--run", metavar="RUN_DIR", help="Finished run of the model.")] = None,
    experiment: Annotated[
        str | None, typer.Option("--experiment", metavar="FILE.toml", help="Experiment, instead of a run.")
    ] = None,
    arm: OneArm = None,
    precision: Annotated[str | None, typer.Option("--precision", help="Of the encoder: fp32, int8, int4.")] = None,
    records: Annotated[int | None, typer.Option("--records", help="Records of a user, at most.")] = None,
    window: Annotated[float, typer.Option("--window", help="Seconds by which an answer is delayed.")] = 10.0,
    sign_key: Annotated[
        Path | None, typer.Option("--sign-key", metavar="FILE", help="Private key of the publisher.")
    ] = None,
    seal_to: Annotated[
        Path | None, typer.Option("--seal-to", metavar="FILE", help="Public key of the training server.")
    ] = None,
    shuffler_seal_to: Annotated[
        Path | None, typer.Option("--shuffler-seal-to", metavar="FILE", help="Public key of the shuffler.")
    ] = None,
    model_seal_to: Annotated[
        Path | None, typer.Option("--model-seal-to", metavar="FILE", help="Public key of the model.")
    ] = None,
    data: Data = None,
    set_: Set = None,
    as_json: AsJson = False,
) -> None:
    """Write a bundle for devices: encoder, mechanisms, policy, hashes."""
    if (run is None) == (experiment is None):
        raise UserError("device bundle: give either --run RUN_DIR or --experiment FILE.toml")
    if records is not None and records < 1:
        raise UserError(f"--records: must be at least 1, got {records}")
    if run is not None and (data is not None or set_):
        raise UserError("device bundle: --data and --set go with --experiment; a run is as it was")
    from client.store.durable import require_free

    require_free(out, "bundle")
    show_progress()
    with redirect_stdout(sys.stderr):  # for libraries that load a checkpoint
        from client.device.bundle import Keys
        from mechanisms.messages.sealed import key_id
        from sottovoce.deployment.devices import bundle as device
        from sottovoce.deployment.keys import read_key, read_public_key

        parties = (seal_to, shuffler_seal_to, model_seal_to)
        signer = None if sign_key is None else read_key(sign_key)
        keys = Keys(signer, *(None if path is None else read_public_key(path) for path in parties))
        arguments: dict[str, Any] = {"precision": precision, "records": records, "window": window, "keys": keys}
        if run is not None:
            result = device.bundle_of_run(run, arm, out, **arguments)
        else:
            from simulations.experiment import load

            study = load(str(experiment), overrides(set_, data))
            result = device.bundle_of_experiment(study, arm, out, **arguments)
    if as_json:
        return print_json(
            {"folder": str(out), "identity": result.identity, "bytes": result.size} | dict(result.manifest)
        )
    print(f"{out}: {result.size / 1e6:,.1f} MB, for {', '.join(result.request.channels)} of {result.manifest['arm']}")
    for name, entry in result.manifest["files"].items():
        print(f"  {entry['bytes']:>12,}  {name}")
    for party, key in (
        ("training server", result.seal),
        ("shuffler", result.shuffler_seal),
        ("model", result.model_seal),
    ):
        print(f"sealed to {key_id(key)}, the {party}'s" if key else f"in clear within TLS to the {party}")
    print(f"identity {result.identity}")


@app.command("ledger", epilog="Example: sottovoce device ledger me")
def ledger(folder: Device, as_json: AsJson = False) -> None:
    """Print a device's releases, their cost, and the remaining budget."""
    from client.device import statement as device_ledger

    result = device_ledger.read_statement(folder)
    if not as_json:
        print(device_ledger.format_statement(result))
        return
    print_json(result)


@app.command(
    "serve", epilog="Example: sottovoce device serve me --superlink HOST:9092 --root-certificates ca.pem --key me.key"
)
def serve(
    node: Device,
    superlink: SuperLink,
    root_certificates: Authority,
    key: Annotated[
        Path,
        typer.Option(
            "--key", metavar="FILE", help="Private key of the device; its public key is registered with the SuperLink."
        ),
    ],
) -> None:
    """Answer requests of a SuperLink until a signal stops the command."""
    ends = (signal.SIGINT, signal.SIGTERM)
    with suppress(KeyboardInterrupt, Terminated), ending_on_signals(ends, again=signal.SIG_DFL):
        from client.device.serve import serve

        show_progress()
        serve(node, superlink=superlink, root_certificates=root_certificates, key=key)


@app.command("install", epilog="Example: sottovoce device install --bundle bundle --device me --publisher sign.pub")
def install(
    bundle: Annotated[Path, typer.Option("--bundle", metavar="DIR", help="Bundle, made by `device bundle`.")],
    node: Annotated[Path, typer.Option("--device", metavar="DEVICE", help="Device folder, new or existing.")],
    publisher: Annotated[
        Path | None,
        typer.Option(
            "--publisher",
            metavar="FILE",
            help="Public key of the publisher whose bundles the device accepts (default: the one it has pinned).",
        ),
    ] = None,
) -> None:
    """Install a bundle into a device folder, or replace the bundle there."""
    from client.device.bundle import open_bundle
    from client.node import DEVICE_PUBLIC
    from sottovoce.deployment.keys import read_public_key

    publisher_key = None if publisher is None else read_public_key(publisher)
    package = open_bundle(bundle)
    package.install(node, publisher_key)
    form = "in clear within what carries them"
    if package.seal is not None:
        form = f"sealed to {package.seal.hex()[:16]}…, and signed: the enrolment authority needs {node / DEVICE_PUBLIC}"
    print(f"{node}: answers for {', '.join(package.request.channels)} by {bundle}; releases leave {form}")


@app.command("allow", epilog="Example: sottovoce device allow me --question signed.bin")
def allow(
    node: Device,
    question: Annotated[
        Path, typer.Option("--question", metavar="FILE", help="Request that the publisher has signed.")
    ],
) -> None:
    """Add a request that the publisher has signed to the policy's list."""
    from client.device.signed_request import allow

    print(allow(node, question))


@app.command("add", epilog="Example: sottovoce device add me --file reviews.tsv --text sentence --label label")
def add(
    node: Annotated[Path, typer.Argument(metavar="DEVICE", help="Device folder, made by `device install`.")],
    file: Annotated[
        Path, typer.Option("--file", metavar="FILE", help="Records: .txt with a sentence a line, .tsv, .csv or .jsonl.")
    ],
    text: Annotated[str | None, typer.Option("--text", metavar="COLUMN", help="Column of the texts.")] = None,
    label: Annotated[str | None, typer.Option("--label", metavar="COLUMN", help="Column of the labels.")] = None,
    user: Annotated[int | None, typer.Option("--user", help="User of the records (default: the only user).")] = None,
    split: Annotated[str, typer.Option("--split", help="train, or test.")] = "train",
) -> None:
    """Add the records of a file to a device: all of them or none."""
    from sottovoce.deployment.devices import records as device_add

    print(device_add.add(node, file, text=text, label=label, user=user, split=split))


@app.command(
    "ask", epilog='Example: sottovoce device ask me "a fine film" --server https://HOST:9443 --root-certificates ca.pem'
)
def ask(
    node: Device,
    server: Annotated[
        str, typer.Option("--server", metavar="https://HOST:PORT", help="Address of the deployed model.")
    ],
    root_certificates: Authority,
    sentence: Annotated[str | None, typer.Argument(metavar="SENTENCE")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="File with a sentence a line, instead of a sentence.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.tsv", help="File of the answers; with --file.")
    ] = None,
    user: Annotated[int | None, typer.Option("--user", help="User of the sentences (default: the only user).")] = None,
    as_json: AsJson = False,
) -> None:
    """Classify a sentence by a deployed model.

    The model receives a sanitized embedding and nothing else. The cost is charged to the device's ledger. The same
    sentence again costs nothing.
    """
    from sottovoce.deployment.devices import ask as device_ask

    options: dict[str, Any] = {"server": server, "root_certificates": root_certificates, "user": user}
    if file is None:
        if sentence is None or out is not None:
            raise UserError('device ask: give a "SENTENCE", or --file FILE and --out FILE.tsv')
        result = device_ask.one(node, sentence, **options)
    else:
        if sentence is not None or out is None:
            raise UserError('device ask: --file FILE goes with --out FILE.tsv, and with no "SENTENCE"')
        show_progress()
        result = device_ask.many(node, file, out, **options)
    if as_json:
        return print_json(result)
    print(device_ask.in_lines(result))
