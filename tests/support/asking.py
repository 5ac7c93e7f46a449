"""A device with a tiny encoder, a deployed model that it may ask, and servers that misbehave."""

from __future__ import annotations

import json
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from client.device.ask import Predictions
from client.device.ask import ask as ask_model
from client.models.encoder import Encoder
from client.node import write_node
from client.policy import Policy
from mechanisms.messages.request import Request
from mechanisms.messages.sealed import generate_keys
from mechanisms.messages.wire import record_to_bytes, request_to_record
from server.maps import Maps
from server.predict import Predictor
from sottovoce.deployment import certificates
from tests.support.devices import DIM, encoder_folder, request_for

CLASSES = ("bad", "good", "so so")
SENTENCE = "the film was good"
#: What it costs to ask about it, at worst.
COST = 31.415926
POLICY = Policy(embedding=32.0, total=10_000.0, mechanisms=("purkayastha",))


@dataclass(frozen=True)
class World:
    """A place with an encoder, an authority and a server's certificate, a stranger's, and keys to seal to. address: of
    a model that is served, if one is."""

    place: Path
    encoder: Encoder
    private: bytes
    public: bytes
    address: str = ""

    @property
    def ca(self) -> Path:
        return self.place / "ca" / "ca.pem"

    @property
    def pair(self) -> dict[str, Path]:
        return {"certificate": self.place / "server" / "cert.pem", "key": self.place / "server" / "cert.key"}

    def request(self, **changes: Any) -> Request:
        maps = self.maps()
        fixed = {"stage": "ask", "split": "test", "mean": maps.mean, "m1": maps.m1, "label": None}
        return request_for(self.encoder, **fixed | {"classes": len(CLASSES), "minimum_users": 0} | changes)

    def maps(self) -> Maps:
        rng, m = np.random.default_rng(5), self.encoder.dim
        return Maps(
            mean=np.zeros(m),
            m1=rng.normal(size=(m, DIM)),
            m2=rng.normal(size=(DIM, m)),
            head_w=rng.normal(size=(m, len(CLASSES))),
            head_b=np.zeros(len(CLASSES)),
        )

    def model(self, *, sealed: bool = False, **changes: Any) -> Predictor:
        return Predictor(self.request(**changes), self.maps(), CLASSES, (self.private,) if sealed else ())

    def device(self, folder: Path, policy: Policy = POLICY, *, sealed: bool = False) -> Path:
        write_node(folder, encoder=self.encoder.folder, policy=policy, model_seal=self.public if sealed else None)
        return folder


def make_world(place: Path) -> World:
    certificates.make_authority(place / "ca")
    certificates.issue(place / "ca", place / "server", "model")
    certificates.issue(place / "ca", place / "elsewhere", "model", hosts=("elsewhere.example",))
    certificates.make_authority(place / "stranger")
    return World(place, Encoder(encoder_folder(place), threads=1), *generate_keys())


@dataclass
class Raw:
    """A server of bytes: what it was sent, and where it is."""

    address: str
    received: list[bytes]


@contextmanager
def raw_server(world: World, answer: Callable[[bytes], bytes | None], *, tls: bool = True) -> Iterator[Raw]:
    """Answers each request (head and body) with these bytes, as they are, and then hangs up; None: hangs up at once."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(world.pair["certificate"], world.pair["key"])
    received: list[bytes] = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.settimeout(10)
            with (
                suppress(OSError),
                context.wrap_socket(self.request, server_side=True) if tls else self.request as talk,
            ):
                received.append(_received(talk) if tls else talk.recv(65536))
                talk.sendall(answer(received[-1]) or b"")

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield Raw(f"https://127.0.0.1:{server.server_address[1]}", received)
        finally:
            server.shutdown()
            thread.join(5)


def _received(talk: socket.socket) -> bytes:
    with talk.makefile("rb") as file:
        head = b"".join(takewhile(bytes.strip, file))
        length = next((int(line[15:]) for line in head.splitlines() if line.lower().startswith(b"content-length:")), 0)
        return head + b"\r\n" + file.read(length)


def http(body: bytes, status: str = "200 OK", *, more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{more}\r\n".encode() + body


def question(request: Request) -> bytes:
    return record_to_bytes(request_to_record(request))


def ask(world: World, node: Path, sentences: list[str], address: str, **more: Any) -> Predictions:
    return ask_model(node, sentences, server=address, root_certificates=world.ca, **more)


def answered(n: int = 1, classes: tuple[str, ...] = CLASSES) -> bytes:
    rows = [[1.0, *[0.0] * (len(classes) - 1)]] * n
    return json.dumps({"classes": list(classes), "probabilities": rows}).encode()


def honest(world: World, then: Callable[[bytes], bytes | None] = lambda body: http(answered())) -> Any:
    """A server of bytes that asks honestly, and then does something with what it is sent."""

    def answer(request: bytes) -> bytes | None:
        if request.startswith(b"GET"):
            return http(question(world.request()))
        return then(request.partition(b"\r\n\r\n")[2])

    return raw_server(world, answer)
