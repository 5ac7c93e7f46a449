"""A SuperLink that makes things up."""

from __future__ import annotations

import hashlib
import ssl
import threading
import time
from collections import Counter
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto, run_from_proto
from flwr.proto.fab_pb2 import Fab, GetFabResponse
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.run_pb2 import GetRunRequest, GetRunResponse, Run
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from client.device.serve import serve
from simulations.progress import lines_to
from sottovoce.deployment import superlink

NODE = 77
FAB = hashlib.sha256
bundle = cache(superlink.app_bundle)


def objects(asked):
    return {name: part.deflate() for name, part in get_all_nested_objects(asked).items()}


def grid_of(address, ca):
    """A run's Grid at a SuperLink, as the operator has it."""
    grid = superlink._grid(address, ca, "token")
    grid.set_run(run_from_proto(Run(run_id=7)))
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 7, 1
    return grid


class Fake:
    """A SuperLink of TLS and HTTP that says whatever a test puts into `says`: bytes of an answer, by its path, or a
    function of the request's bytes. Every other path is an empty answer, which is an empty message."""

    def __init__(self, folder, *, tls=True):
        self.says = {"activate-node": ActivateNodeResponse(node_id=NODE).SerializeToString()}
        self.asked = Counter()
        self.replies = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 2**16  # or each answer would wait for an acknowledgement of its headers

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                name = self.path.rpartition("/")[2]
                fake.asked[name] += 1
                fake.headers = self.headers
                if name == "push-messages":
                    fake.replies += PushMessagesRequest.FromString(body).messages_list
                said = fake.says.get(name, b"")
                said = said(body) if callable(said) else said
                status, headers, data = said if isinstance(said, tuple) else (200, {}, said)
                self.send_response(status)
                for key, value in ({"content-length": str(len(data))} | headers).items():
                    if value:
                        self.send_header(key, value)
                self.end_headers()
                try:
                    self.wfile.write(data)
                except OSError:
                    self.close_connection = True

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(folder / "cert.pem", folder / "cert.key")
            self.server.socket = context.wrap_socket(
                self.server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def send(self, *messages, fab=None, tree=None, damage=None):
        """Pass messages on, and the app of their run, and then nothing more. damage: what becomes of an object."""
        fab = bundle() if fab is None else fab
        parts = {name: part for asked in messages for name, part in objects(asked).items()}
        waiting = [
            PullMessagesResponse(
                messages_list=[message_to_proto(remove_content_from_message(asked))],
                message_object_trees=[get_object_tree(asked) if tree is None else tree],
            ).SerializeToString()
            for asked in messages
        ]

        def pull(body):
            found = parts.get(PullObjectRequest.FromString(body).object_id, b"")
            found = found if damage is None else damage(found)
            return PullObjectResponse(
                object_found=True, object_available=True, object_content=found
            ).SerializeToString()

        def run(body):
            asked = GetRunRequest.FromString(body).run_id
            return GetRunResponse(run=Run(run_id=asked, fab_hash=FAB(fab).hexdigest())).SerializeToString()

        self.says["pull-object"] = pull
        self.says["get-run"] = run
        self.says["get-fab"] = GetFabResponse(fab=Fab(content=fab)).SerializeToString()
        # last, for a device may be asking meanwhile
        self.says["pull-messages"] = lambda _: waiting.pop(0) if waiting else b""

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class Served:
    """A device that is served in a thread of this process."""

    def __init__(self, node, *, stop=None, **options):
        self.lines, self.failure, self.stop = [], None, stop or threading.Event()

        def work():
            try:
                with lines_to(self.lines.append, thread=threading.get_ident()):
                    serve(node, stop=self.stop, **options)
            except BaseException as error:
                self.failure = error

        self.thread = threading.Thread(target=work, daemon=True)
        self.thread.start()

    def until(self, done, seconds=30.0):
        end = time.monotonic() + seconds
        while not done():
            assert self.thread.is_alive(), self.failure
            assert time.monotonic() < end, self.lines
            time.sleep(0.01)

    def end(self):
        self.stop.set()
        self.thread.join(30)
        assert not self.thread.is_alive()
