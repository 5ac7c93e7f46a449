"""Arms whose users' texts are written anew by models that generate, without Flower."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from client.models import language_models
from simulations.artifacts.text_channel import StudyRewriter, prepare_rewriter
from simulations.errors import UserError
from tests.simulations.run.test_text_arms import WORDS, arm, folder, run, shared
from tests.support.studies import USERS, ledger_rows, use_folder
from tests.support.texts import TOKENS, text_prepared, text_study
from tests.support.tiny_generators import tiny_generator
from tests.system.test_simulation import own_cache

__all__ = ["folder", "shared"]  # fixtures


def test_a_study_reads_a_language_model_of_each_kind(folder: Path, shared: Path, monkeypatch) -> None:
    """Each arm by its own; what is charged is every draw and the length; a node without the model refuses."""
    names = {"dp-mlm": "masked-lm", "dp-prompt": "generator", "dp-paraphrase": "paraphraser"}
    arms: list[dict[str, Any]] = [
        {"name": name, "text": {"mechanism": name, "epsilon": 40.0, "tokens": TOKENS}} for name in names
    ]
    words = ("<pad>", "</s>", "<unk>", *WORDS.words[:40])
    checkpoints = {
        "generator": str(tiny_generator(shared / "causal", "causal", words)),
        "paraphraser": str(tiny_generator(shared / "t5", "t5", words)),
    }
    study = text_study(shared, *arms, training={"epochs": 1}, text=checkpoints)
    with own_cache(shared / "cache"):
        use_folder(folder, monkeypatch)
        ready = text_prepared(study, shared)
        rewriter = ready.public.rewriter
        assert isinstance(rewriter, StudyRewriter) and rewriter.masked_lm is not None
        made = [rewriter.mechanism(each) for each in study.arms]
        assert len({rewriter.identity(text) for text in made} - {""}) == 3
        for text in made:
            model = language_models.load(rewriter.masked_lm, names[text.name])
            assert (text.word.low, text.word.high) == (model.low, model.high)
        outcomes, _ = run(study, folder, shared)
        for name in names:
            line = outcomes[name].line
            assert line["delivered"] == USERS and line["errors"] == line["dropped"] == {}
            costs = {r.epsilon for r in ledger_rows(folder, name) if r.channel == "text"}
            (worst,) = costs
            assert worst == line["budget"]["worst_case_epsilon"] == TOKENS * 40.0 + TOKENS
        for path in folder.glob("*/node.json"):  # one that has the masked model alone
            alone = str(language_models.part(rewriter.masked_lm, "masked-lm"))
            path.write_text(json.dumps(json.loads(path.read_text()) | {"masked_lm": alone}))
        again, _ = run(study, folder, shared)
        missing = "the request names a language model that this client does not have"
        assert again["dp-mlm"].line["errors"] == {}
        assert all(again[name].line["errors"] == {missing: 2 * 6} for name in names if name != "dp-mlm")


def test_a_generating_arm_without_its_checkpoint_is_refused(shared: Path) -> None:
    for name, kind in (("dp-prompt", "generator"), ("dp-paraphrase", "paraphraser")):
        study = text_study(shared, {"name": "a", "text": {"mechanism": name, "epsilon": 1.0}})
        with pytest.raises(UserError, match=rf"text\.{kind} = the folder of a checkpoint that generates text$"):
            prepare_rewriter(
                study.setups, study.text, ["the film was good"], model=study.encoder.model, seed=study.seed
            )
    with pytest.raises(UserError, match=r"text\.prompt: goes with text\.generator"):
        text_study(shared, arm("random"), text={"prompt": "{text} :"})
    with pytest.raises(UserError, match=r"text\.prompt: must name \{text\} once"):
        text_study(shared, arm("random"), text={"prompt": "no place", "generator": "x"})
