"""The prediction head that comes with Sottovoce: what is kept of a training, and that no other file passes for it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from client.models import tokens
from client.models import vocabulary as vocabularies
from client.models.masked_lm import MaskedLM
from server.masked_lm import ALIGNED, read
from simulations.artifacts import bundled_head, text_channel
from simulations.artifacts.bundled_head import compress, restore
from simulations.artifacts.vocabulary import vocabulary_folder
from simulations.errors import UserError
from simulations.experiment.sections import TextChannel
from tests.support.tiny_models import bert

__all__ = ["bert"]  # a fixture


def moved(bert, rank):
    """A model, and one whose matrices moved in so many directions, whose vectors and whose head moved anyhow."""
    base, trained = read(bert)[0], read(bert)[0]
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in trained.named_parameters():
            if "word_embeddings" in name:
                continue
            if p.ndim == 2 and not name.startswith("cls."):
                p += 0.1 * torch.randn(p.shape[0], rank, generator=rng) @ torch.randn(rank, p.shape[1], generator=rng)
            else:
                p += 0.1 * torch.randn(p.shape, generator=rng)
    return base, trained


def test_what_moved_in_few_directions_comes_back_and_the_rest_as_well_as_any(bert):
    base, trained = moved(bert, rank=4)
    arrays = compress(dict(base.named_parameters()), dict(trained.named_parameters()), 4)
    assert not any("word_embeddings" in name for name in arrays)  # what did not change is not carried
    fresh = read(bert)[0]
    restore(fresh, arrays | {"bounds": np.zeros(2)})
    assert getattr(fresh.config, ALIGNED)
    for (name, a), (_, b) in zip(fresh.named_parameters(), trained.named_parameters(), strict=True):
        np.testing.assert_allclose(a.detach(), b.detach(), rtol=0, atol=4e-3, err_msg=name)
    one = compress(dict(base.named_parameters()), dict(trained.named_parameters()), 1)
    name = next(n for n in arrays if n.endswith("query.weight.left")).removesuffix(".left")
    change = (dict(trained.named_parameters())[name] - dict(base.named_parameters())[name]).detach().numpy()
    left_out = np.linalg.norm(change - one[f"{name}.left"].astype(float) @ one[f"{name}.right"].astype(float))
    assert left_out == pytest.approx(np.linalg.norm(np.linalg.svd(change)[1][1:]), rel=0.02)


def test_a_head_of_another_model_is_refused(bert):
    with pytest.raises(ValueError, match="of another model; nowhere is not"):
        restore(read(bert)[0], {"nowhere": np.zeros(3, np.float16)})


def test_what_is_shipped_is_small_known_by_its_hash_and_nothing_else_passes_for_it(tmp_path, monkeypatch):
    arrays = bundled_head._shipped()
    assert bundled_head.HEAD.stat().st_size < 2e6
    assert arrays["bounds"][0] < arrays["bounds"][1] and all(np.isfinite(a).all() for a in arrays.values())
    damaged = bytearray(bundled_head.HEAD.read_bytes())
    damaged[1000] ^= 1
    (tmp_path / "head.npz").write_bytes(damaged)
    for path, words in ((tmp_path / "head.npz", "is not the prediction head"), (tmp_path / "no.npz", "cannot be read")):
        monkeypatch.setattr(bundled_head, "HEAD", path)
        with pytest.raises(UserError, match=words) as caught:
            bundled_head._shipped()
        assert "\n" not in str(caught.value)


def test_an_experiment_that_names_the_bundled_model_trains_no_head(monkeypatch):
    """As the command line does under the same name; a checkpoint without a head is trained."""
    monkeypatch.setattr(text_channel, "bundled_masked_lm", lambda: Path("shipped"))
    monkeypatch.setattr(text_channel, "masked_lm_folder", lambda source, public, *, seed: Path(source))
    for source, folder in (("bundled", "shipped"), ("minilm", "minilm")):
        made = text_channel._made(TextChannel(masked_lm=source), "masked-lm", source, ["a fine film"], 1)
        assert made == Path(folder)


@pytest.mark.slow
def test_dp_mlm_needs_no_training_on_a_new_machine(tmp_path, monkeypatch, capsys):
    """The whole way, with an empty cache: no head is trained, and a second time nothing is made."""
    from server.training import pretrain
    from sottovoce.cli.main import main

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(pretrain, "pretrain", lambda *_, **__: pytest.fail("a head is trained"))
    (tmp_path / "in.txt").write_text("a fine film with a dull plot\n")
    given = ["text", "sanitize", "--mechanism", "dp-mlm:epsilon=400,length=kept", "--seed", "1"]
    for out in ("one.txt", "two.txt"):
        assert main([*given, "--in", str(tmp_path / "in.txt"), "--out", str(tmp_path / out)]) == 0
    (line,) = (tmp_path / "one.txt").read_text().splitlines()
    assert line == (tmp_path / "two.txt").read_text().splitlines()[0] and len(line.split()) == 7
    (made,) = (tmp_path / "cache" / "sottovoce" / "masked-lms").iterdir()
    vocabulary = vocabularies.load(vocabulary_folder("minilm"))
    x = np.array([tokens.word_ids("a fine film with a dull plot", vocabulary)])
    model = MaskedLM(made / "files")
    scores = model.scores(x, vocabulary)(np.arange(7), np.repeat(x, 7, axis=0), np.zeros(7, int))
    assert (scores.argmax(axis=1) == x[0]).sum() >= 4  # it reads the text beside the mask; by chance, none
    others = np.concatenate([x, np.random.default_rng(0).integers(0, len(vocabulary), (5, 7))])
    assert (model.importance(others, vocabulary)[0] == model.importance(x, vocabulary)[0]).all()  # whoever is beside it
