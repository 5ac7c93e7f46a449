"""Experiment files: accepted values, refusals, equality after writing, and the schema."""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
import unicodedata
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from client.node import load_node
from client.policy import Policy as ClientPolicy
from client.policy import Refused
from client.sanitizer import Sanitizer
from mechanisms import Identity, Purkayastha
from mechanisms.checks import is_slug
from simulations.experiment import Arm, Experiment, bundled, from_table, load, slug, to_toml
from simulations.experiment.names import LONGEST
from simulations.experiment.schema import keys, schema
from simulations.experiment.toml import BUNDLED
from tests.support.clients import make_node, request
from tests.support.commands import refused
from tests.support.studies import PURKAYASTHA

LABEL = 'label = { mechanism = "randomized-response", epsilon = 2.0 }'
MINIMAL = f"""
name = "small"
[policy]
embedding = 40.0
label = 5.0
[[arm]]
name = "a"
embedding = {{ mechanism = "purkayastha", epsilon = 10.0, dim = 16 }}
{LABEL}
"""
FILES = """
[data]
source = "files"
path = "d"
train = "train.tsv"
test = "dev.tsv"
text = "sentence"
label = "label"
"""
STATISTICS = """
name = "small"
training = { protocol = "statistics" }
[[arm]]
name = "a"
reference = true
"""
CURATED = 'vector = {{ mechanism = "identity" }}\ncurator = {{ epsilon = 1.0, delta = 1e-6, {} }}'
PAPER = ("training.protocol=paper", "training.acknowledge-not-private=true")
REASON = 'policy.accept-unprotected=["label: public here"]'


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "e.toml"
    path.write_text(text, encoding="utf-8")
    return path


def complaint(tmp_path: Path, text: str, *overrides: str) -> str:
    path = written(tmp_path, text)
    return refused(f"^{path}: ", load, path, overrides).removeprefix(f"{path}: ")


def test_defaults_depend_on_the_source(tmp_path: Path) -> None:
    experiment = load(written(tmp_path, MINIMAL))
    assert (experiment.seed, experiment.data.source, experiment.data.task) == (1, "built-in", "sentiment")
    assert (experiment.data.public_size, experiment.data.test_size) == (1000, 1000)
    assert experiment.data.public.split == "built-in" and experiment.data.public.fraction is None
    assert (experiment.population.assignment, experiment.training.maps) == ("record", "learned")
    files = load(written(tmp_path, MINIMAL + FILES + 'user = "who"\n'), ["data.public.labels=false"])
    assert (files.population.assignment, files.training.maps) == ("column", "principal-components")
    assert (files.data.public.fraction, files.data.public.split) == (0.05, "random")


def test_bundled_experiments_fit_the_schema_and_read_back_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demo").mkdir()  # as `--out demo` leaves one
    FORM.check_schema(schema())
    for name in bundled():
        FORM.validate(tomllib.loads((BUNDLED / f"{name}.toml").read_text(encoding="utf-8")))
        if name != "frontier":  # it plans a PrivUnit for each arm, which takes a minute
            experiment = load(name)
            assert experiment.name == name and load(written(tmp_path, to_toml(experiment))) == experiment


def test_an_experiment_reads_back_the_same_with_unusual_values(tmp_path: Path) -> None:
    assert load(written(tmp_path, MINIMAL), PAPER).training.way == "paper"
    clear = written(tmp_path, MINIMAL.replace(LABEL, "smallest-crowd = 100"))
    assert load(clear, [REASON]).arms[0].smallest_crowd == 100 and load(clear, ["arm.0.reference=true"])
    odd = MINIMAL + '[[arm]]\nname = "no \\"noise\\" | ε"\nreference = true\nembedding = { mechanism = "identity" }\n'
    settings = ["policy.total=inf", "policy.delta=1e-6", "arm.0.embedding.dim=[2, 4]"]
    settings += ['policy.accept-unprotected=["text: why"]']
    settings += ['data.class-descriptions={ negative = "bad", positive = ["good", "fine"] }']
    experiment = load(written(tmp_path, odd), settings)
    assert experiment.data.class_descriptions == {"negative": ("bad",), "positive": ("good", "fine")}
    assert load(written(tmp_path, to_toml(experiment))) == experiment
    people = dataclasses.replace(experiment.population, users=np.int64(600))
    numbers = dataclasses.replace(experiment, seed=np.int64(3), population=people)
    assert load(written(tmp_path, to_toml(numbers))) == numbers


@pytest.mark.parametrize(
    ("text", "overrides", "words"),
    [
        *(
            (MINIMAL, override, words)
            for override, words in (
                ("population.users", "section.key=value"),
                ("population.user=3", 'did you mean "users"'),
                ("populations.users=3", 'did you mean "population"'),
                ("arm.7.name=x", "from 0 to 0"),
                ("name.x=1", "not a table"),
                ("seed=-1", "seed: must be a whole number"),
                ("seed=18446744073709551616", "seed: must be a whole number of at least 0, below 2^64"),
                (
                    "population.users=18446744073709551616",
                    "population.users: must be a whole number of at least 1, below",
                ),
                ("population.users=0", "at least 1"),
                ("population.dropout=1.0", "below 1"),
                ("population.timeout=0", "population.timeout: must be a finite number above 0"),
                ("population.assignment=dirichlet", "population.alpha: is missing"),
                ("population.alpha=1.0", "dirichlet"),
                ("population.users=50", "shuffle.minimum-users: 100 is more than the 50"),
                ("data.test-size=10", "shuffle.minimum-users"),
                ("data.test-limit=10", "lower it, or raise data.test-limit or data.test-repeats"),
                ("data.public-size=1", "data.public-size: must be a whole number of at least 2"),
                ("data.source=file", 'did you mean "files"'),
                ("data.text=sentence", 'source = "built-in"'),
                ("data.public.fraction=0.1", "public-size"),
                ("data.public.lables=false", 'did you mean "labels"'),
                ('data.class-descriptions={ "0" = "bad" }', "data.class-descriptions"),
                ('data.class-descriptions={ "0" = "bad", "1" = [] }', "data.class-descriptions"),
                ("encoder.fine-tune-lr=0.0", "above 0"),
                ("training.protocol=paper", "acknowledge-not-private"),
                ("policy.embedding=nan", "policy.embedding"),
                ("policy.embedding=20", "worst-case ε 31.42 is above policy.embedding = 20"),
                ("policy.total=33", "policy.total = 33"),
                ('policy.accept-unprotected=["label"]', "each entry"),
                ('policy.accept-unprotected="label: x"', "must be a list"),
                ("arm.0.embedding.epsilon=-1", "epsilon: must be a finite number of at least 0, got -1"),
                ("arm.0.embedding.epsilon=nan", "epsilon: must be a finite number"),
                ("arm.0.embedding.epsilom=1.0", "did you mean 'epsilon'"),
                ("arm.0.embedding.mechanism=nothing", "arm \"a\": embedding: unknown mechanism 'nothing'"),
                ("arm.0.label.mechanism=nothing", "arm \"a\": label: unknown mechanism 'nothing'"),
                ("arm.0.embedding.mechanism=randomized-response", 'arm "a": embedding: randomized-response'),
                ("arm.0.embedding.dim=1", "dim: must be a whole number of at least 2"),
                ("arm.0.embedding.dim=[2, 2]", "dim"),
                ("arm.0.embedding.dim=[]", "dim: must be a whole number"),
                ("arm.0.embedding={}", "embedding.mechanism"),
                ('arm.0.embedding={mechanism="purkayastha", epsilon=1.0}', "dim: is missing"),
                ("arm.0.label.dim=4", "embeddings only"),
                ("arm.0.name=+++", "a letter or a digit"),
                ("arm.0.protocol=public-only", "takes no label"),
                ("arm.0.smallest-crowd=100", 'arm "a": smallest-crowd: nothing leaves in clear'),
                ('arm.0.embedding={mechanism="identity"}', "sent unprotected"),
                ('arm.0.embedding={mechanism="gaussian", sigma=1.0, dim=4}', "policy.delta above 0"),
            )
        ),
        (MINIMAL.replace(LABEL, ""), "data.task=sentiment", 'arm "a": its labels are sent unprotected'),
        (MINIMAL.replace(LABEL, "smallest-crowd = 0"), REASON, "smallest-crowd"),
        (MINIMAL, (*PAPER, "arm.0.embedding.dim=[2,4]"), "give one number"),
        (MINIMAL, (*PAPER, "training.label-stages=2"), "label-stages"),
        (MINIMAL, (*PAPER, "arm.0.label.mechanism=randomized-response-prior"), "takes its prior from a model"),
        (MINIMAL, (*PAPER, "encoder.precision=int8"), "they encode nothing"),
        (MINIMAL, (*PAPER, "encoder.layers=[2, 3]"), "trains the last one's states"),
        (MINIMAL + '[[arm]]\nname = "b"\nprotocol = "public-only"\n', PAPER, 'arm "b": protocol: "public-only" does'),
        (MINIMAL + FILES, "data.public.fraction=0.0", "above 0"),
        (MINIMAL + FILES, "data.public.fraction=1.0", "below 1"),
        (MINIMAL + FILES, ("data.public.labels=false", "encoder.fine-tune-on-public=true"), "fine-tune-on-public"),
        (MINIMAL + FILES, ("data.public.labels=false", "training.maps=learned"), "principal-components"),
        (MINIMAL + FILES, ("data.public.labels=false", "arm.0.embedding.dim=[2,4]"), "give one number"),
        (MINIMAL + FILES, "data.held-out=1.0", "below 1"),
        (MINIMAL + FILES, "data.task=genre", "built-in corpus only"),
        (MINIMAL + FILES, "data.test-size=3", "test-limit"),
        (MINIMAL + FILES, "population.assignment=column", "data.user"),
        (STATISTICS + 'vector = { mechanism = "privunit", central_epsilon = true }', (), "must be a number from 0 to"),
        (STATISTICS + CURATED.format('mechanism = "gaussian", sigma = 3.0'), (), "unknown parameter sigma"),
        (STATISTICS + CURATED.format('mechanism = "dp-sgd", lr = 3'), (), "dp-sgd: unknown parameter lr; known are"),
        # what a request refuses is refused before any data are read
        (
            MINIMAL + FILES,
            (
                "data.label-range=[0.0, 1.0]",
                "data.levels=40000",
                'arm=[{name="a", reference=true, embedding={mechanism="identity"}}]',
            ),
            "40,000 classes, and a request takes 32,767 at most",
        ),
        (MINIMAL, ("training.label-stages=3000000000", "shuffle.enabled=false"), "part is out of range"),
        (
            MINIMAL + FILES,
            (
                "training.protocol=statistics",
                "data.label-range=[0.0, 1.0]",
                "data.levels=500",
                'arm=[{name="a", vector={mechanism="privunit", epsilon=2.0, dim=32}}]',
                "policy.vector=2.0",
            ),
            "vector: 32 features of 500 classes take 16,467 coordinates, and a vector has 8,192 at most",
        ),
        ("name = ", (), "not valid TOML"),
        ("", (), "name: is missing"),
        ('name = "x"', (), "[[arm]]"),
        ('name = "x"\n[arm]\nname = "a"\n', (), "two brackets"),
        ('name = "x"\n[[arm]]\nreference = true\n', (), "arm.0.name: is missing"),
    ],
)
def test_mistakes_end_in_one_line(text: str, overrides: str | tuple[str, ...], words: str, tmp_path: Path) -> None:
    assert words in complaint(tmp_path, text, *((overrides,) if isinstance(overrides, str) else overrides))


def test_paths_that_are_no_experiments(tmp_path: Path) -> None:
    plain = written(tmp_path, MINIMAL)
    latin, utf16, marked = (tmp_path / f"{name}.toml" for name in ("latin", "utf16", "marked"))
    latin.write_bytes('name = "é"'.encode("latin-1"))
    utf16.write_bytes(MINIMAL.encode("utf-16"))
    for path, words in (
        (latin, "not valid TOML"),
        (utf16, "is UTF-16; convert it to UTF-8"),
        (tmp_path, f"is a folder; name the file, as {plain}"),
        (tmp_path / "absent.toml", "no such file"),
        ("dmo", "nor a bundled experiment "),
    ):
        refused(words, load, path)
    marked.write_bytes(b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode())
    assert load(marked) == load(plain)


def test_clients_accept_what_the_experiment_says_and_those_of_a_reference_anything(tmp_path: Path) -> None:
    reference = '[[arm]]\nname = "r"\nreference = true\nembedding = { mechanism = "identity" }\n'
    study = load(
        written(tmp_path, MINIMAL + reference), ["policy.delta=1e-6", 'policy.accept-unprotected=["length: why"]']
    )
    own, anything = (setup.policy for setup in study.setups)
    assert (own.embedding, own.label, own.text, own.total, own.delta) == (40.0, 5.0, 0.0, math.inf, 1e-6)
    assert own.declared == study.policy.declared == {"length": "why"} and own.minimum_users == 100
    assert load(tmp_path / "e.toml", ["shuffle.enabled=false"]).setups[0].policy.minimum_users == 0
    clear = own.cost(Identity("label", 2).guarantee)
    for channel in ("text", "embedding", "label"):
        assert anything.refusal(channel, clear) is None
        assert own.refusal(channel, clear) == "unprotected"


def test_a_limit_at_the_clients_own_price_is_kept_and_just_below_it_refused(tmp_path: Path) -> None:
    cost = Purkayastha(16, 10.0).guarantee.worst_case()
    for limit, total in ((cost, math.inf), (40.0, cost + 2.0)):
        assert load(written(tmp_path, MINIMAL), [f"policy.embedding={limit!r}", f"policy.total={total!r}"])
    for limit, total in ((cost * (1 - 1e-8), math.inf), (40.0, (cost + 2.0) * (1 - 1e-8))):
        overrides = (f"policy.embedding={limit!r}", f"policy.total={total!r}")
        assert "is above policy." in complaint(tmp_path, MINIMAL, *overrides)


@pytest.mark.parametrize(
    ("limits", "reason", "words"),
    [
        ({"releases": 2}, None, ""),
        ({"releases": 1}, "spent", "policy.releases"),
        ({"total-delta": 2e-6}, None, ""),  # one half is the release's; the samplers' share is below its last digit
        ({"total-delta": 1.99e-6}, "total", "policy.total-delta"),
        ({"delta": 5.1e-6, "embedding": 40.0}, "total", "policy.total-delta"),
        ({"embedding": 5.0}, "channel", "above policy.embedding"),
        ({"delta": 0.0}, "unprotected", "policy.delta above 0"),
    ],
)
def test_a_file_is_refused_if_and_only_if_the_client_of_its_policy_refuses(
    tmp_path: Path, limits: dict[str, float], reason: str | None, words: str
) -> None:
    embedding = 'embedding = { mechanism = "gaussian", sigma = 1.0, dim = 4 }'
    label = 'label = { mechanism = "randomized-response", epsilon = 1.0 }'
    text = f'{MINIMAL.partition("[[arm]]")[0]}[[arm]]\nname = "a"\n{embedding}\n{label}\n'
    limits = {"delta": 1e-6, "embedding": 12.0} | limits
    settings = [f"policy.{name}={value!r}" for name, value in limits.items()]
    own = {"label": 5.0} | {name.replace("-", "_"): value for name, value in limits.items()}
    query = request(
        embedding={"mechanism": "gaussian", "sigma": 1.0}, label={"mechanism": "randomized-response", "epsilon": 1.0}
    )
    make_node(tmp_path / "node", [0], policy=ClientPolicy.from_dict(own))
    node = load_node(tmp_path / "node")
    with node.ledger("a") as ledger:
        client = Sanitizer(node.policy("a"), ledger, node.streams)
        if reason is None:
            policy = load(written(tmp_path, text), settings).setups[0].policy
            assert (policy.delta, policy.total_delta) == (1e-6, limits.get("total-delta", 1e-5))
            assert policy.releases == limits.get("releases", 10_000)
            assert len(client.answer(query, node.shard("train"))) == 1
            return
        with pytest.raises(Refused) as caught:
            client.answer(query, node.shard("train"))
    assert caught.value.reason == reason and words in complaint(tmp_path, text, *settings)


NAMES = ("高斯, ε = 4", "拉普拉斯, ε = 4", "مرحبا", "سلام", "한국어", "हिन्दी", "да 1", "нет 1", "🙂", "🚀", "🙂 a")
NAMES += ("ελληνικά", "ß", "κ", "x" * 300, "x" * 301)


def test_every_name_has_a_slug_of_its_own_that_a_request_takes() -> None:
    slugs = {slug(name) for name in NAMES}
    assert len(slugs) == len(NAMES) and all(is_slug(name) and len(name) <= LONGEST for name in slugs)
    for name in (*NAMES, "né"):
        assert slug(unicodedata.normalize("NFC", name)) == slug(unicodedata.normalize("NFD", name))
    assert slug("高斯, ε = 4") == "eps-4-4522b6b4"  # run folders are called so
    assert slug("--") == slug("\u200b") == slug("") == "" and slug("naïve/../m'=16") == "naive-m-16"
    arm = {"embedding": PURKAYASTHA, "label": {"mechanism": "randomized-response", "epsilon": 2.0}}
    arms = [arm | {"name": name} for name in NAMES]
    experiment = from_table({"name": "a", "policy": {"embedding": 40.0, "label": 2.0}, "arm": arms})
    assert [arm.name for arm in experiment.arms] == [*NAMES]
    one = Arm("no noise", embedding={"mechanism": "identity"}, reference=True)
    refused("too close", Experiment, "x", arms=(one, dataclasses.replace(one, name="No-Noise")))


# --- the schema

FORM = jsonschema.Draft202012Validator(schema())


def test_a_value_of_another_kind_is_refused_for_every_key_by_the_schema_and_by_the_reader() -> None:
    small: dict[str, Any] = tomllib.loads(MINIMAL)
    assert FORM.is_valid(small)
    for name, *_ in keys():
        *place, last = name.split(".")
        table = json.loads(json.dumps(small))
        at = table["arm"][0] if place == ["arm"] else table
        for part in place if place != ["arm"] else ():
            at = at.setdefault(part, {})
        at[last] = {"nobody": [{}]}
        assert not FORM.is_valid(table), name
        refused(last, from_table, table)
