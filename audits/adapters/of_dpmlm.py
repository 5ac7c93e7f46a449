"""dpmlm: `dpmlm_rewrite` of one word by a masked language model of a few random weights."""

import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path
from unittest.mock import MagicMock

from speak import each, nltk_data, speak

sys.modules["presidio_analyzer"] = MagicMock()  # finds names to leave out, which is not asked for here
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
EPSILON = 1.0
WORDS = ["apple", "bread", "candle", "door"]
INPUTS = {"lower": WORDS, "capital": [WORDS[0], WORDS[0].capitalize()]}[sys.argv[1]]


def made(folder):
    import torch
    from dpmlm import DPMLM
    from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

    torch.set_num_threads(1)
    torch.manual_seed(0)
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (Path(folder) / "vocab.txt").write_text("\n".join(names))
    BertTokenizerFast(str(Path(folder) / "vocab.txt"), model_max_length=64).save_pretrained(folder)
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = BertForMaskedLM(BertConfig(vocab_size=len(names), max_position_embeddings=64, **shape))
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight *= 100.0  # logits as far apart as the clipping lets them
    model.save_pretrained(folder)
    return DPMLM(MODEL=folder, calibration={"clip_min": -1.0, "clip_max": 1.0, "sensitivity": 2.0})


with tempfile.TemporaryDirectory() as folder:
    os.environ |= {"NLTK_DATA": nltk_data(folder), "HF_HUB_OFFLINE": "1"}
    mechanism = made(folder)
    claim = {"epsilon": EPSILON, "inputs": INPUTS, "releases": "category"}
    speak(claim, each(lambda x: mechanism.dpmlm_rewrite(x, EPSILON)[0]))
