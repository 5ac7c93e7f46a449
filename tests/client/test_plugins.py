"""Somebody else's mechanism at a client: what its own folder names it knows; what a server names it never imports."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from client.app import NODES, release
from client.node import NODE, load_node
from client.policy import Policy
from mechanisms import catalogue
from mechanisms.messages.wire import reply_from_record, request_to_record
from tests.support.answers import ledger_rows, reason
from tests.support.clients import OPEN, context, make_node, message, request
from tests.support.own_package import write_package

LABEL = {"mechanism": "quiet-coin", "epsilon": 2.0, "classes": 3}
ALLOWED = replace(OPEN, mechanisms=("purkayastha", "quiet-coin"))
#: Modules whose import would be seen, since nothing else here needs them.
HARMFUL = ("quiet", "quiet.noise")


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """A folder of nodes, on a machine on which the package `quiet` is installed, and nothing of it imported."""
    monkeypatch.setenv(NODES, str(tmp_path))
    monkeypatch.setattr(catalogue, "_ADMITTED", {})
    monkeypatch.syspath_prepend(str(write_package(tmp_path / "installed")))
    forget()
    yield tmp_path
    forget()


def forget():
    for name in [name for name in sys.modules if name.partition(".")[0] in HARMFUL]:
        del sys.modules[name]


def asking(label):
    """A request as it travels whose label's mechanism is described so, whatever that is: the sender is hostile."""
    content = request_to_record(request(arm=""))
    content["request.about"]["label"] = json.dumps(label)
    return message(content)


@pytest.mark.parametrize("name", ["os:system", "quiet.noise:Coin", "quiet-coin", "quiet", "../quiet:Coin", ":", ""])
def test_a_server_that_names_a_module_has_nothing_imported(nodes, name, monkeypatch):
    """Though it is installed: nobody at this device has said that it may be asked for."""
    make_node(nodes / "0", seed=None)
    asked = []
    monkeypatch.setattr("mechanisms.plugin.import_module", lambda module: asked.append(module))
    assert reason(release(asking({"mechanism": name, "epsilon": 1.0, "classes": 3}), context(0))) == "malformed"
    assert asked == [] and not {*HARMFUL} & set(sys.modules)
    assert not ledger_rows(nodes / "0")


def test_what_is_installed_and_allowed_answers_under_its_name_and_is_charged(nodes):
    make_node(nodes / "0", seed=None, policy=ALLOWED)
    answer = release(asking(LABEL), context(0))
    label = next(r for r in reply_from_record(answer.content).releases if r.channel == "label")
    assert label.guarantee.worst_case() == 2.0
    assert {row.guarantee.epsilon for row in ledger_rows(nodes / "0") if row.channel == "label"} == {2.0}
    make_node(nodes / "1", seed=None)  # whose policy does not allow it, in the same process
    assert reason(release(asking(LABEL), context(1))) == "mechanism"
    # and its place, as good a name for it elsewhere, is none in a message
    assert reason(release(asking(LABEL | {"mechanism": "quiet.noise:Installed"}), context(0))) == "malformed"


@pytest.mark.parametrize("name", ["quiet.noise:Coin", "os:system"])
def test_a_devices_policy_takes_no_place(nodes, name):
    """A policy may have come in a bundle: a place in it is as good as a server's."""
    make_node(nodes / "0", seed=None, policy=replace(OPEN, mechanisms=("purkayastha", name)))
    with pytest.raises(ValueError, match=f"policy: '{name}'"):
        load_node(nodes / "0")
    assert reason(release(asking(LABEL), context(0))) == "failed"
    assert not {*HARMFUL} & set(sys.modules)


def test_a_device_goes_on_under_a_policy_that_lists_what_is_gone(nodes):
    """As policies of earlier versions do, whose ledgers must be counted: what nobody knows here cannot be asked for."""
    make_node(nodes / "0", seed=None, policy=replace(OPEN, mechanisms=("purkayastha", "randomized-response", "gone")))
    assert release(message(request_to_record(request(arm=""))), context(0)).has_content()
    assert reason(release(asking(LABEL | {"mechanism": "gone"}), context(0))) == "malformed"


def test_a_simulation_takes_what_its_own_folder_names(nodes):
    make_node(nodes / "0", policy=replace(OPEN, mechanisms=("purkayastha", "quiet.noise:Coin")))
    assert "quiet.noise:Coin" in json.loads((nodes / "0" / NODE).read_text())["simulation"]["arms"]["a"]["mechanisms"]
    content = request_to_record(request())
    content["request.about"]["label"] = json.dumps(LABEL | {"mechanism": "quiet.noise:Coin"})
    assert release(message(content), context(0)).has_content()


def test_nothing_but_the_catalogue_is_allowed_by_default(nodes):
    catalogue.admit("quiet-coin")
    assert "quiet-coin" not in Policy().mechanisms
