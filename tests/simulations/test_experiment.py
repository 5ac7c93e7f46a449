"""Experiment files: what is accepted, what is refused and how, and that a file reads back the same."""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
import unicodedata
from dataclasses import fields
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
from simulations.errors import UserError
from simulations.experiment import Arm, Experiment, bundled, from_table, load, slug, to_toml
from simulations.experiment.names import LONGEST, key
from simulations.experiment.schema import described, keys, page, schema
from simulations.experiment.sections import SECTIONS, PublicConfig
from simulations.experiment.toml import BUNDLED
from tests.support.clients import make_node, request
from tests.support.studies import PURKAYASTHA

MINIMAL = """
name = "small"
[policy]
embedding = 40.0
label = 5.0
[[arm]]
name = "a"
embedding = { mechanism = "purkayastha", epsilon = 10.0, dim = 16 }
label = { mechanism = "randomized-response", epsilon = 2.0 }
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


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "e.toml"
    path.write_text(text, encoding="utf-8")
    return path


def complaint(tmp_path: Path, text: str, *overrides: str) -> str:
    path = written(tmp_path, text)
    with pytest.raises(UserError) as caught:
        load(path, overrides)
    line = str(caught.value)
    assert line.startswith(f"{path}: ") and "\n" not in line
    return line.removeprefix(f"{path}: ")


@pytest.mark.parametrize("channel", ["embedding", "label"])
def test_a_channel_is_named_once(channel: str, tmp_path: Path) -> None:
    text = complaint(tmp_path, MINIMAL, f"arm.0.{channel}.mechanism=nothing")
    assert text.startswith(f"arm \"a\": {channel}: unknown mechanism 'nothing'")


def test_defaults_are_filled_in(tmp_path: Path) -> None:
    experiment = load(written(tmp_path, MINIMAL))
    assert (experiment.seed, experiment.data.source, experiment.data.task) == (1, "built-in", "sentiment")
    assert (experiment.data.public_size, experiment.data.test_size) == (1000, 1000)
    assert experiment.data.public.split == "built-in" and experiment.data.public.fraction is None
    assert (experiment.population.assignment, experiment.training.maps) == ("record", "learned")
    assert experiment.policy.total == math.inf
    files = load(written(tmp_path, MINIMAL + FILES + 'user = "who"\n'))
    assert files.population.assignment == "column"
    assert (files.data.public.fraction, files.data.public.split) == (0.05, "random")


@pytest.mark.parametrize(  # the frontier plans a PrivUnit for each of its arms, twice
    "name", [pytest.param(n, marks=[pytest.mark.slow, pytest.mark.soak] if n == "frontier" else []) for n in bundled()]
)
def test_bundled_experiments_load_and_read_back_the_same(name: str, tmp_path: Path) -> None:
    experiment = load(name)
    assert experiment.name == name
    assert load(written(tmp_path, to_toml(experiment))) == experiment


def test_a_resolved_file_reads_back_the_same_whatever_is_set(tmp_path: Path) -> None:
    odd = MINIMAL + '[[arm]]\nname = "no \\"noise\\" | ε"\nreference = true\nembedding = { mechanism = "identity" }\n'
    experiment = load(
        written(tmp_path, odd),
        [
            "policy.total=inf",
            'policy.accept-unprotected=["text: why"]',
            "arm.0.embedding.dim=[2, 4]",
            "policy.delta=1e-6",
        ],
    )
    assert load(written(tmp_path, to_toml(experiment))) == experiment


def test_integers_of_numpy_are_written_as_numbers() -> None:
    demo = load("demo")
    people = dataclasses.replace(demo.population, users=np.int64(600))
    result = dataclasses.replace(demo, seed=np.int64(3), population=people)
    assert to_toml(result) == to_toml(load("demo", ["seed=3", "population.users=600"]))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("population.users", "section.key=value"),
        ("population.user=3", 'did you mean "users"'),
        ("populations.users=3", 'did you mean "population"'),
        ("arm.7.name=x", "from 0 to 0"),
        ("name.x=1", "not a table"),
        ("seed=-1", "seed: must be a whole number"),
        ("seed=18446744073709551616", "seed: must be a whole number from 0 to 18446744073709551615, got 184467"),
        ("population.users=18446744073709551616", "population.users: must be a whole number from 1 to 900719925"),
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
        ("encoder.pooling=max", '"mean", "cls"'),
        ("encoder.fine-tune-lr=0.0", "above 0"),
        ("training.protocol=papers", 'did you mean "paper"'),
        ("training.protocol=paper", "acknowledge-not-private"),
        ("policy.embedding=nan", "policy.embedding"),
        ("policy.embedding=20", "worst-case ε 31.42 is above policy.embedding = 20"),
        ("policy.total=33", "policy.total = 33"),
        ('policy.accept-unprotected=["label"]', "each entry"),
        ('policy.accept-unprotected="label: x"', "must be a list"),
        ("arm.0.embedding.epsilon=-1", "epsilon: must be a finite number of at least 0, got -1"),
        ("arm.0.embedding.epsilon=nan", "epsilon: must be a finite number"),
        ("arm.0.embedding.epsilom=1.0", "did you mean 'epsilon'"),
        ("arm.0.embedding.mechanism=purkayasta", "did you mean 'purkayastha'"),
        ("arm.0.embedding.mechanism=randomized-response", 'arm "a": embedding: randomized-response'),
        ("arm.0.embedding.dim=1", "dim: must be a whole number of at least 2"),
        ("arm.0.embedding.dim=[2, 2]", "dim"),
        ("arm.0.embedding={}", "embedding.mechanism"),
        ('arm.0.embedding={mechanism="purkayastha", epsilon=1.0}', "dim: is missing"),
        ("arm.0.label.dim=4", "embeddings only"),
        ("arm.0.name=+++", "a letter or a digit"),
        ("arm.0.protocol=public-only", "takes no label"),
        ('arm.0.embedding={mechanism="identity"}', "sent unprotected"),
        ('arm.0.embedding={mechanism="gaussian", sigma=1.0, dim=4}', "policy.delta above 0"),
    ],
)
def test_mistakes_end_in_one_line(override: str, words: str, tmp_path: Path) -> None:
    assert words in complaint(tmp_path, MINIMAL, override)


def test_labels_in_clear_need_a_reason(tmp_path: Path) -> None:
    clear = MINIMAL.replace('label = { mechanism = "randomized-response", epsilon = 2.0 }', "")
    line = complaint(tmp_path, clear)
    assert 'arm "a": its labels are sent unprotected' in line and "accept-unprotected" in line
    assert load(written(tmp_path, clear), ['policy.accept-unprotected=["label: public here"]'])
    assert load(written(tmp_path, clear), ["arm.0.reference=true"])


def test_paper_runs_only_if_acknowledged(tmp_path: Path) -> None:
    way = ["training.protocol=paper", "training.acknowledge-not-private=true"]
    assert load(written(tmp_path, MINIMAL), way).training.way == "paper"
    assert "give one number" in complaint(tmp_path, MINIMAL, *way, "arm.0.embedding.dim=[2,4]")
    assert "label-stages" in complaint(tmp_path, MINIMAL, *way, "training.label-stages=2")
    prior = 'arm.0.label={mechanism="randomized-response-prior", epsilon=2.0}'
    assert "takes its prior from a model that users were sent" in complaint(tmp_path, MINIMAL, *way, prior)
    public_only = MINIMAL + '[[arm]]\nname = "b"\nprotocol = "public-only"\n'
    assert load(written(tmp_path, public_only)).arms[1].embedding is None
    line = complaint(tmp_path, public_only, *way)
    assert line.startswith('arm "b": protocol: "public-only" does not go with training.protocol = "paper"')


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["data.public.fraction=0.0"], "above 0"),
        (["data.public.fraction=1.0"], "below 1"),
        (["data.public.labels=false", "encoder.fine-tune-on-public=true"], "fine-tune-on-public"),
        (["data.public.labels=false", "training.maps=learned"], "principal-components"),
        (["data.public.labels=false", "arm.0.embedding.dim=[2,4]"], "give one number"),
        (["data.task=genre"], "built-in corpus only"),
        (["data.test-size=3"], "test-limit"),
        (["data.held-out=1.0"], "below 1"),
        (["population.assignment=column"], "data.user"),
    ],
)
def test_what_does_not_fit_together_with_files(overrides: list[str], words: str, tmp_path: Path) -> None:
    assert words in complaint(tmp_path, MINIMAL + FILES, *overrides)


STATISTICS = """
name = "small"
training = { protocol = "statistics" }
[[arm]]
name = "a"
reference = true
"""
CURATED = 'vector = {{ mechanism = "identity" }}\ncurator = {{ epsilon = 1.0, delta = 1e-6, {} }}'


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('vector = { mechanism = "privunit", central_epsilon = "x" }', "epsilon must be a number from 0 to 1000"),
        ('vector = { mechanism = "privunit", central_epsilon = true }', "epsilon must be a number from 0 to 1000"),
        (CURATED.format('mechanism = "gaussian", dim = 3'), "gaussian: unknown parameter dim; known are epsilon"),
        (CURATED.format('mechanism = "gaussian", sigma = 3.0'), "unknown parameter sigma; known are epsilon, delta"),
        (CURATED.format('mechanism = "dp-sgd", lr = 3'), "dp-sgd: unknown parameter lr; known are epsilon, delta,"),
    ],
)
def test_mistakes_in_what_a_server_is_trusted_with(line: str, words: str, tmp_path: Path) -> None:
    assert words in complaint(tmp_path, STATISTICS + line)


def test_unlabelled_public_text_means_principal_components(tmp_path: Path) -> None:
    experiment = load(written(tmp_path, MINIMAL + FILES), ["data.public.labels=false"])
    assert experiment.training.maps == "principal-components"


def test_files_that_are_none(tmp_path: Path) -> None:
    for text, words in (("name = ", "not valid TOML"), ("", "name: is missing"), ('name = "x"', "[[arm]]")):
        assert words in complaint(tmp_path, text)
    assert "two brackets" in complaint(tmp_path, 'name = "x"\n[arm]\nname = "a"\n')
    latin = tmp_path / "latin.toml"
    latin.write_bytes('name = "é"'.encode("latin-1"))
    for path, words in (
        (latin, "not valid TOML"),
        (tmp_path, f"is a folder; name the file, as {tmp_path / 'e.toml'}"),
        (tmp_path / "absent", "no such file"),
        (tmp_path / "absent.toml", "no such file"),
        ("dmo", "nor a bundled experiment ("),
    ):
        with pytest.raises(UserError) as caught:
            load(path)
        assert words in str(caught.value) and "\n" not in str(caught.value).replace(str(path), "")


def test_arms_have_names_of_their_own() -> None:
    arm = Arm("no noise", embedding={"mechanism": "identity"}, reference=True)
    with pytest.raises(UserError, match="too close"):
        Experiment("x", arms=(arm, dataclasses.replace(arm, name="No-Noise")))
    with pytest.raises(UserError, match=r"arm\.0\.name: is missing"):
        from_table({"name": "x", "arm": [{"reference": True}]})


def test_a_bundled_experiment_is_found_beside_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `deploy up ... --out demo` leaves one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "experiment.toml").write_text("no experiment")
    assert load("demo").name == "demo"


def test_a_crowd_is_stated_where_something_leaves_in_clear(tmp_path: Path) -> None:
    line = complaint(tmp_path, MINIMAL, "arm.0.smallest-crowd=100")
    assert line.startswith('arm "a": smallest-crowd: nothing leaves in clear')
    clear = MINIMAL.replace('label = { mechanism = "randomized-response", epsilon = 2.0 }', "smallest-crowd = 100")
    experiment = load(written(tmp_path, clear), ['policy.accept-unprotected=["label: public here"]'])
    assert experiment.arms[0].smallest_crowd == 100 and "smallest-crowd = 100" in to_toml(experiment)
    assert "smallest-crowd" in complaint(tmp_path, clear.replace("100", "0"))


def test_clients_accept_what_the_experiment_says_and_a_references_clients_anything(tmp_path: Path) -> None:
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


def test_a_limit_holds_for_the_file_as_for_the_client(tmp_path: Path) -> None:
    """One price: just at the client's own figure an arm is accepted, and just below it refused."""
    (arm,) = load(written(tmp_path, MINIMAL)).arms
    cost = Purkayastha(16, 10.0).guarantee.worst_case()
    for limit, total in ((cost, math.inf), (40.0, cost + 2.0)):
        study = load(tmp_path / "e.toml", [f"policy.embedding={limit!r}", f"policy.total={total!r}"])
        policy = study.setup(arm).policy
        assert policy.refusal("embedding", policy.cost(Purkayastha(16, 10.0).guarantee)) is None
    for limit, total in ((cost * (1 - 1e-8), math.inf), (40.0, (cost + 2.0) * (1 - 1e-8))):
        assert "is above policy." in complaint(
            tmp_path, MINIMAL, f"policy.embedding={limit!r}", f"policy.total={total!r}"
        )


GAUSSIAN = """
embedding = { mechanism = "gaussian", sigma = 1.0, dim = 4 }
label = { mechanism = "randomized-response", epsilon = 1.0 }
"""


@pytest.mark.parametrize(
    ("limits", "refused"),
    [
        ({}, None),
        ({"releases": 2}, None),
        ({"releases": 1}, "spent"),
        ({"total-delta": 2.1e-6}, None),
        ({"total-delta": 2e-6}, None),  # one half is the release's, and the samplers' share is below its last digit
        ({"total-delta": 1.99e-6}, "total"),
        ({"delta": 5.1e-6, "embedding": 40.0}, "total"),
        ({"embedding": 5.0}, "channel"),
        ({"delta": 0.0}, "unprotected"),
    ],
)
def test_the_file_is_priced_as_the_client_prices_it(
    tmp_path: Path, limits: dict[str, float], refused: str | None
) -> None:
    """An arm that the file refuses is refused by a client of its policy, and one that it takes is answered."""
    arm = MINIMAL.partition("[[arm]]")
    text = f'{arm[0]}[[arm]]\nname = "a"\n{GAUSSIAN}\n'
    settings = [f"policy.{k}={v!r}" for k, v in ({"delta": 1e-6, "embedding": 12.0} | limits).items()]
    said = None
    try:
        study = load(written(tmp_path, text), settings)
        own = study.setups[0].policy
        found = (own.delta, own.total_delta, own.releases)
        assert found == (1e-6, limits.get("total-delta", 1e-5), limits.get("releases", 10_000))
    except UserError as error:
        said = str(error)
    keys = {"delta": 1e-6, "embedding": 12.0, "label": 5.0} | {k.replace("-", "_"): v for k, v in limits.items()}
    asked = request(
        embedding={"mechanism": "gaussian", "sigma": 1.0}, label={"mechanism": "randomized-response", "epsilon": 1.0}
    )
    make_node(tmp_path / "node", [0], policy=ClientPolicy.from_dict(keys))
    node = load_node(tmp_path / "node")
    with node.ledger("a") as ledger:
        client = Sanitizer(node.policy("a"), ledger, node.streams)
        if refused is None:
            assert said is None and len(client.answer(asked, node.shard("train"))) == 1
            return
        with pytest.raises(Refused) as caught:
            client.answer(asked, node.shard("train"))
    words = {"spent": "policy.releases", "total": "policy.total-delta", "channel": "above policy.embedding"}
    assert caught.value.reason == refused and said is not None
    assert words.get(refused, "policy.delta above 0") in said


NAMES = (
    "高斯, ε = 4",
    "拉普拉斯, ε = 4",
    "مرحبا",
    "سلام",
    "한국어",
    "हिन्दी",
    "да 1",
    "нет 1",
    "🙂",
    "🚀",
    "🙂 a",
    "ελληνικά",
    "ß",
    "x" * 300,
    "x" * 301,
    "κ",
    "Purkayastha, ε = 10 for each radian, label by randomized response, ε = 2",
)


def test_every_name_has_a_slug_of_its_own_that_a_request_takes() -> None:
    slugs = {slug(name) for name in NAMES}
    assert len(slugs) == len(NAMES) and all(is_slug(each) and len(each) <= LONGEST for each in slugs)
    for name in (*NAMES, "né"):
        assert slug(unicodedata.normalize("NFC", name)) == slug(unicodedata.normalize("NFD", name))
    assert slug("高斯, ε = 4") == "eps-4-4522b6b4"  # run folders are called so
    assert slug("--") == slug("\u200b") == slug("") == "" and slug("naïve/../m'=16") == "naive-m-16"
    for name in NAMES:
        arm = {"name": name, "embedding": PURKAYASTHA, "label": {"mechanism": "randomized-response", "epsilon": 2.0}}
        experiment = from_table({"name": "a", "policy": {"embedding": 40.0, "label": 2.0}, "arm": [arm]})
        assert experiment.arms[0].name == name


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            [
                "data.label-range=[0.0, 1.0]",
                "data.levels=40000",
                'arm=[{name="a", reference=true, embedding={mechanism="identity"}}]',
            ],
            "40,000 classes, and a request takes 32,767 at most",
        ),
        (["training.label-stages=3000000000", "shuffle.enabled=false"], "part is out of range; its users would refuse"),
        (
            [
                "training.protocol=statistics",
                "data.label-range=[0.0, 1.0]",
                "data.levels=500",
                'arm=[{name="a", vector={mechanism="privunit", epsilon=2.0, dim=32}}]',
                "policy.vector=2.0",
            ],
            "vector: 32 features of 500 classes take 16,467 coordinates, and a vector has 8,192 at most",
        ),
    ],
)
def test_what_a_request_refuses_is_refused_when_the_file_is_read(
    overrides: list[str], words: str, tmp_path: Path
) -> None:
    """Before any data are read: `check` and `simulate` say it, and no user has released anything."""
    text = MINIMAL + ("" if "training.label-stages=3000000000" in overrides else FILES)
    assert words in complaint(tmp_path, text, *overrides)


@pytest.mark.parametrize(
    ("override", "words"),
    [("encoder.precision=int8", "they encode nothing"), ("encoder.layers=[2, 3]", "trains the last one's states")],
)
def test_what_the_published_procedure_would_pass_over_is_refused(override: str, words: str, tmp_path: Path) -> None:
    paper = ("training.protocol=paper", "training.acknowledge-not-private=true")
    assert words in complaint(tmp_path, MINIMAL, *paper, override)


# --- keys


def test_descriptions_of_classes_are_texts_and_read_back_the_same(tmp_path: Path) -> None:
    for value in ('"words"', '{ "0" = "bad" }', '{ "0" = "bad", "1" = [] }', '{ "0" = "bad", "1" = " " }', "3"):
        with pytest.raises(UserError, match=r"data\.class-descriptions"):
            load("demo", [f"data.class-descriptions={value}"])
    experiment = load("demo", ['data.class-descriptions={ negative = "bad", positive = ["good", "fine"] }'])
    assert experiment.data.class_descriptions == {"negative": ("bad",), "positive": ("good", "fine")}
    assert load(written(tmp_path, to_toml(experiment))).data == experiment.data


# --- the schema

SMALL: dict[str, Any] = {
    "name": "small",
    "policy": {"embedding": 40.0, "label": 5.0},
    "arm": [
        {
            "name": "a",
            "embedding": {"mechanism": "purkayastha", "epsilon": 10.0, "dim": 16},
            "label": {"mechanism": "randomized-response", "epsilon": 2.0},
        }
    ],
}


FORM = jsonschema.Draft202012Validator(schema())


def test_it_is_a_schema_and_every_bundled_study_fits_it() -> None:
    FORM.check_schema(schema())
    for file in BUNDLED.glob("*.toml"):
        FORM.validate(tomllib.loads(file.read_text(encoding="utf-8")))


def test_the_page_has_every_key() -> None:
    text = page()
    assert [row for row in keys() if f"| `{row[0]}` | {row[1]} |" not in text] == []


def test_every_attribute_of_a_section_is_a_key_with_a_description() -> None:
    for section in (*SECTIONS.values(), PublicConfig, Arm):
        assert list(described(section)) == [key(f.name) for f in fields(section) if "check" in f.metadata]
        assert all(text.endswith(".") and "  " not in text for text in described(section).values())


@pytest.mark.parametrize("row", list(keys()), ids=lambda row: row[0])
def test_every_key_is_read_and_a_value_of_another_kind_is_refused_by_both(row: tuple[str, str, str, str]) -> None:
    *place, last = row[0].split(".")
    table = json.loads(json.dumps(SMALL))
    at = table["arm"][0] if place == ["arm"] else table
    for part in place if place != ["arm"] else ():
        at = at.setdefault(part, {})
    at[last] = {"nobody": [{}]}
    assert FORM.is_valid(SMALL) and not FORM.is_valid(table)
    with pytest.raises(UserError, match=last):
        from_table(table)
