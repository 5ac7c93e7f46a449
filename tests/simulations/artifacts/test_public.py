"""The public part of a study: which labels are public, and that a training server reads back what was written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.masked_lm import ALIGNED, read
from server.protocols.protocol import Public
from simulations.artifacts import language_models, text_channel
from simulations.artifacts.language_models import restore
from simulations.artifacts.public import load_public, public_labels, save_public
from simulations.corpora.corpus import Corpus
from simulations.errors import UserError
from simulations.experiment import Experiment
from simulations.experiment.sections import Data, TextChannel
from simulations.experiment.sections import PublicConfig as Part
from tests.support.studies import experiment
from tests.support.tiny_models import bert

CORPUS = Corpus([f"text {i}" for i in range(50)], np.arange(50) % 2, ("bad", "good"))


def study(**public: Any) -> Experiment:
    arm = {"name": "a", "vector": {"mechanism": "privunit", "epsilon": 2.0}}
    return experiment(
        arm,
        training={"protocol": "statistics"},
        policy={"vector": 2.0, "accept-unprotected": []},
        data={"public": public},
    )


def labels_of(made: Experiment) -> Any:
    return public_labels(made.data.public, CORPUS, made.seed)


def test_so_many_labels_are_public_and_fewer_are_some_of_those() -> None:
    few, more = (labels_of(study(labelled=n)) for n in (5, 20))
    assert few is not None and more is not None
    assert ((few >= 0).sum(), (more >= 0).sum()) == (5, 20)
    assert np.all(more[few >= 0] == few[few >= 0]) and np.all(more[more >= 0] == CORPUS.labels[more >= 0])
    assert labels_of(study(labels=False)) is None and labels_of(study(labelled=0)) is None
    np.testing.assert_array_equal(labels_of(study()), CORPUS.labels)
    other = labels_of(replace(study(labelled=5), seed=4))
    assert not np.array_equal(other, few)
    with pytest.raises(UserError, match=r"^data.public.labelled: 51 were asked for, and there are 50 public texts$"):
        labels_of(study(labelled=51))


def written(made: Experiment, folder: Path) -> Path:
    checkpoint = folder / "made-from"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}")
    public = Public(CORPUS.texts, labels_of(made), CORPUS.classes, checkpoint=checkpoint)
    save_public(made.name, public, folder / "public")
    return folder / "public"


@pytest.mark.parametrize("part", [{"labelled": 7}, {}, {"labels": False}])
def test_a_training_server_reads_what_was_written(part: dict[str, Any], tmp_path: Path) -> None:
    made = study(**part)
    place = written(made, tmp_path)
    again = load_public(made, place)
    assert list(again.texts) == CORPUS.texts and again.classes == CORPUS.classes
    wanted = labels_of(made)
    assert (again.labels is None) == (wanted is None)
    if wanted is not None:
        np.testing.assert_array_equal(again.labels, wanted)
    assert Path(again.checkpoint) == place / "checkpoint" and (place / "checkpoint" / "config.json").is_file()


def test_built_in_text_beside_others_sentences_is_of_another_domain(tmp_path: Path) -> None:
    files = Data("files", path="a", train="a.tsv", test="b.tsv", text="text", label="label", public=Part(fraction=0.5))
    reviews = replace(files, task="sentiment", public_size=50, public=Part(split="built-in"))
    for data, elsewhere in ((reviews, True), (files, False)):
        made, place = replace(study(), data=data), tmp_path / str(elsewhere)
        place.mkdir()
        assert load_public(made, written(made, place)).elsewhere is elsewhere
    assert not study().data.elsewhere


def test_what_is_of_another_study_or_damaged_is_one_line(tmp_path: Path) -> None:
    made = study(labelled=7)
    place = written(made, tmp_path)
    about, texts = place / "public.json", place / "texts.jsonl"
    sound, lines = json.loads(about.read_text()), texts.read_text()

    def refused(who: Experiment = made) -> None:
        with pytest.raises(UserError, match="is no public part of small; make it anew with") as caught:
            load_public(who, place)
        assert "\n" not in str(caught.value)

    refused(study(labelled=8))
    refused(study())
    for key in ("format", "classes", "labels", "checkpoint"):
        about.write_text(json.dumps({name: value for name, value in sound.items() if name != key}))
        refused()
    about.write_text(json.dumps(sound))
    for label in ("2", "-2", "-1", '"good"'):
        texts.write_text(lines.replace('"label": 1', f'"label": {label}', 1))
        refused()
    texts.write_text(lines.replace('"text 3"', '""', 1))
    refused()
    texts.write_text(lines)
    load_public(made, place)


# --- the prediction head that comes with Sottovoce

__all__ = ["bert"]  # a fixture


def test_the_head_is_set_and_the_encoder_moved(bert: Path) -> None:
    model = read(bert)[0]
    parameters = dict(model.named_parameters())
    name = next(name for name in parameters if name.endswith("query.weight"))
    before, rng = parameters[name].detach().numpy().copy(), np.random.default_rng(1)
    left, right = (rng.normal(size=shape).astype(np.float16) for shape in ((len(before), 2), (2, before.shape[1])))
    head = next(name for name in parameters if name.startswith("cls."))
    arrays = {f"{name}.left": left, f"{name}.right": right, head: np.ones(parameters[head].shape, np.float16)}
    restore(model, arrays | {"bounds": np.zeros(2)})
    expected = before + left.astype(np.float32) @ right.astype(np.float32)
    np.testing.assert_allclose(parameters[name].detach(), expected, rtol=1e-5, atol=1e-6)
    assert (parameters[head] == 1).all() and getattr(model.config, ALIGNED)
    with pytest.raises(ValueError, match="of another model; nowhere is not"):
        restore(model, {"nowhere": np.zeros(3, np.float16)})


def test_what_is_shipped_is_small_known_by_its_hash_and_nothing_else_passes_for_it(tmp_path, monkeypatch):
    arrays = language_models._shipped()
    assert arrays["bounds"][0] < arrays["bounds"][1] and all(np.isfinite(a).all() for a in arrays.values())
    damaged = bytearray(language_models.HEAD.read_bytes())
    damaged[1000] ^= 1
    (tmp_path / "head.npz").write_bytes(damaged)
    for path, words in ((tmp_path / "head.npz", "is not the prediction head"), (tmp_path / "no.npz", "cannot be read")):
        monkeypatch.setattr(language_models, "HEAD", path)
        with pytest.raises(UserError, match=words) as caught:
            language_models._shipped()
        assert "\n" not in str(caught.value)


def test_an_experiment_that_names_the_bundled_model_trains_no_head(monkeypatch):
    """As the command line does under the same name; a checkpoint without a head is trained."""
    monkeypatch.setattr(text_channel, "bundled_masked_lm", lambda: Path("shipped"))
    monkeypatch.setattr(text_channel, "masked_lm_folder", lambda source, public, *, seed: Path(source))
    for source, folder in (("bundled", "shipped"), ("minilm", "minilm")):
        made = text_channel._made(TextChannel(masked_lm=source), "masked-lm", source, ["a fine film"], 1)
        assert made == Path(folder)
