"""privfill: its DP-Prompt and DP-BART with models of a few random weights; the claims are of any model's."""

import functools
import json
import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from speak import each, speak
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
torch.set_num_threads(1)
torch.manual_seed(0)
KIND = sys.argv[1]
LETTERS = list("abcdefgh")
#: A text and a longer one; or texts of one length.
TEXTS = ["a", "a b c d e f g h"] if KIND.endswith("length") else ["a b", "c d", "e f", "g h"]


def prompt(folder):
    """DP-Prompt, logits spread over the range to which they are clipped."""
    from privfill.mechanisms import DPPrompt

    names = ["<pad>", "</s>", "<unk>", *LETTERS]
    inner = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    outer = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", pad_token="<pad>", eos_token="</s>", model_input_names=["input_ids"]
    )
    outer.save_pretrained(folder)
    shape = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    model = T5ForConditionalGeneration(T5Config(vocab_size=len(names), decoder_start_token_id=0, **shape))
    with torch.no_grad():
        model.shared.weight *= 100.0
    model.save_pretrained(folder)
    return DPPrompt(model_checkpoint=folder)


def bart(folder):
    """DP-BART over vectors of eight numbers."""
    from privfill.mechanisms import DPBart

    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "Ġ", *LETTERS]
    (Path(folder) / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    (Path(folder) / "merges.txt").write_text("#version: 0.2\n")
    shape = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
    shape |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    BartForConditionalGeneration(BartConfig(vocab_size=len(names), **shape)).save_pretrained(folder)
    made = DPBart(model=folder)
    made.delta = 0.01
    made.calibrateAnalyticGaussianMechanism_precision = functools.cache(
        made.calibrateAnalyticGaussianMechanism_precision
    )
    return made


with tempfile.TemporaryDirectory() as folder:
    os.environ["HF_HUB_OFFLINE"] = "1"
    if KIND.startswith("prompt"):
        mechanism, epsilon = prompt(folder), 0.1
        most = max(len(mechanism.tokenizer(mechanism.prompt_template_fn(text))["input_ids"]) for text in TEXTS)
        claim = {"epsilon": epsilon * most, "inputs": TEXTS, "releases": "text"}
        draws = each(lambda x: mechanism.privatize(x, epsilon))
    else:
        mechanism, tokens = bart(folder), int(KIND[-1])

        def noisy(x, n):
            rows = torch.tensor(x).reshape(tokens, -1)
            drawn = [mechanism.noise(mechanism.clip(rows), 1.0, mechanism.delta) for _ in range(n)]
            return np.stack([each.numpy().ravel() for each in drawn])

        draws = lambda x, n: (np.rint(noisy(x, n) * 2**10) / 2**10).tolist()  # noqa: E731
        claim = {"epsilon": 1.0, "delta": mechanism.delta, "releases": "vector"}
        claim["inputs"] = {"low": -1.0, "high": 1.0, "size": 8}
    speak(claim, draws)
