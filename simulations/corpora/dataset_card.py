"""A sanitized file in Hugging Face's layout: its card, which says what the texts are and what they promise."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulations.corpora.rewriting import format_of
from simulations.errors import UserError

#: `--out hf:DIR`.
PREFIX = "hf:"
SEEDED = """
**Not private: drawn from a seed.** Whoever knows the seed knows the noise.
"""


def hub_folder(out: Path | None) -> Path | None:
    """The folder that `hf:DIR` names; None for any other output. UserError where it names none."""
    said = "" if out is None else str(out)
    if not said.startswith(PREFIX):
        return None
    if said == PREFIX:
        raise UserError(f"--out {PREFIX} names no folder; write one behind it, as {PREFIX}sanitized")
    return Path(said.removeprefix(PREFIX))


def data_file(source: Path | None) -> str:
    """Where the rows lie in the folder, in the format of the file that they come from (None: lines)."""
    return f"data/train{format_of(source) or '.txt'}"


def dataset_card(
    spec: Mapping[str, Any], cost: str, *, file: str, columns: Sequence[str], others: Sequence[str], seeded: bool
) -> str:
    """README.md of the folder, Markdown behind the YAML that `datasets` reads.

    spec: the mechanism's description. cost: what one text costs, in words. file: as `data_file` has it. columns:
    those that were sanitized; none where the file has one, or lines. others: those that passed through. Nothing here
    depends on a text: neither how many tokens were read, nor what was left out.
    """
    sanitized = ", ".join(f"`{name}`" for name in columns) or "the texts"
    passed = ", ".join(f"`{name}`" for name in others)
    unprotected = f"\n**Passed through unchanged, without any protection:** {passed}.\n" if others else ""
    return f"""---
configs:
- config_name: default
  data_files:
  - split: train
    path: {file}
tags: [local-differential-privacy, sanitized-text]
---
# Sanitized texts
{SEEDED if seeded else ""}
Sanitized, row by row, by local differential privacy with Sottovoce: {sanitized}. What stands there was drawn at random,
given a true text, by the mechanism below.
{unprotected}
**Each text:** {cost}.

```json
{json.dumps(dict(spec), indent=1, ensure_ascii=False)}
```

Rows of one person add up: who wrote n of them is promised n times that ε, and n times the δ where one is named.
Read this with `datasets`:

```python
from datasets import load_dataset

rows = load_dataset("this folder", split="train")
```
"""
