"""Description of an experiment: frozen, validated, read from TOML and written back.

Keys of the file are the field names with "-" for "_"; `[[arm]]` tables become `Experiment.arms`. Every check is made
on construction, so an existing `Experiment` is consistent. Checks that depend on the data or the encoder (a missing
column, m' above the encoder's width) are made when the run reads them. Folders in `data.path` and `encoder.model` are
relative to the working directory, not to the file.

The cost of an arm is in `simulations.experiment.ladder`, which is not imported here: its import is slow.
"""

from simulations.experiment.arm import (
    ANY_MODEL,
    BOTH,
    DEFAULT_DIM,
    Arm,
    ArmSetup,
    answer_of,
    curator_of,
    embedding_mechanism,
    label_of,
    released_text,
    stand_in,
    text_mechanism,
    trial_text_of,
)
from simulations.experiment.experiment import Experiment
from simulations.experiment.names import slug
from simulations.experiment.sections import BUNDLED_LM, CHECKPOINT, NONE, EncoderConfig, PolicyConfig
from simulations.experiment.toml import bundled, from_table, load, to_toml

__all__ = [
    "ANY_MODEL",
    "BOTH",
    "BUNDLED_LM",
    "CHECKPOINT",
    "DEFAULT_DIM",
    "NONE",
    "Arm",
    "ArmSetup",
    "EncoderConfig",
    "Experiment",
    "PolicyConfig",
    "answer_of",
    "bundled",
    "curator_of",
    "embedding_mechanism",
    "from_table",
    "label_of",
    "load",
    "released_text",
    "slug",
    "stand_in",
    "text_mechanism",
    "to_toml",
    "trial_text_of",
]
