"""dp-fusion-lib: text after a document with one private name, by a language model of two words.

The model writes `yes` and `no` equally often where the name is redacted. After the name `ann` it writes `yes` alone,
after any other `no` alone. The claim is what the package's own function answers for that number of tokens.
"""

import logging
import sys
import warnings

import torch
from dp_fusion_lib import DPFusion, compute_epsilon_single_group
from speak import each, speak
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
torch.set_num_threads(1)
KIND, ALPHA, BETA, NEW, DELTA = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), 0.01
WORDS = ["yes", "no", "_", "ann", "bob", "joe", "is", "ill", "[PAD]", "[UNK]"]
ID = {word: i for i, word in enumerate(WORDS)}


class Model(torch.nn.Module):
    """A causal language model of the documentation's kind: logits of the next token, and a state that goes on."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.device = torch.device("cpu")

    def forward(self, input_ids, use_cache=True, past_key_values=None):
        names = input_ids[:, :1] if past_key_values is None else past_key_values
        logits = torch.full((*input_ids.shape, len(WORDS)), -40.0)
        logits[..., ID["yes"]] = torch.where((names == ID["_"]) | (names == ID["ann"]), 0.0, -40.0)
        logits[..., ID["no"]] = torch.where(names == ID["ann"], -40.0, 0.0)
        return type("Output", (), {"logits": logits, "past_key_values": names})()


class Tagger:
    """A tagger of names, in place of the one behind the package's API."""

    def extract_private_phrases(self, text):
        return [text.split(" is ")[0]]


def tokenizer():
    inner = Tokenizer(models.WordLevel(ID, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    outer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", pad_token="[PAD]", eos_token="[PAD]")
    outer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return outer


fusion = DPFusion(Model(), tokenizer(), tagger=Tagger())


def written(x):
    """The text that is returned, and its divergences."""
    if KIND == "tokens":
        private, public = torch.tensor([ID[x]]), torch.tensor([ID["_"]])
        return fusion.generate_from_tokens(private, public, alpha=ALPHA, beta=BETA, max_new_tokens=NEW)
    fusion.clear_messages()
    fusion.add_message("user", f"{x} is ill", is_private=True)
    fusion.run_tagger()
    return fusion.generate(alpha=ALPHA, beta=BETA, max_new_tokens=NEW)


def claimed():
    spent = written("ann")["divergences"]["PRIVATE"]
    return compute_epsilon_single_group(spent, ALPHA, DELTA, BETA)["theoretical"]


claim = {"epsilon": claimed(), "delta": DELTA}
if KIND == "tokens":
    speak(claim | {"pairs": [["ann", "bob"]], "releases": "sequence"}, each(lambda x: written(x)["text"].split()[1:]))
else:
    speak(claim | {"inputs": ["ann", "bob", "ann joe"], "releases": "text"}, each(lambda x: written(x)["text"]))
