"""Card of a sanitized file in Hugging Face's layout, with the meaning and the guarantee of the texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulations.corpora.rewriting import format_of
from simulations.errors import UserError

#: Prefix in `--out hf:DIR`.
PREFIX = "hf:"
SEEDED = """
**Not private: drawn from a seed.** Whoever knows the seed knows the noise.
"""


def hub_folder(out: Path | None) -> Path | None:
    """Return the folder that `hf:DIR` names, or None for any other output.

    Raises:
        UserError: The prefix names no folder.
    """
    said = "" if out is None else str(out)
    if not said.startswith(PREFIX):
        return None
    if said == PREFIX:
        raise UserError(f"--out {PREFIX} names no folder; write one behind it, as {PREFIX}sanitized")
    return Path(said.removeprefix(PREFIX))


def data_file(source: Path | None) -> str:
    """Return the place of the rows in the folder, in the format of the source file (None: lines)."""
    return f"data/train{format_of(source) or '.txt'}"


def dataset_card(
    spec: Mapping[str, Any], cost: str, *, file: str, columns: Sequence[str], others: Sequence[str], seeded: bool
) -> str:
    """Return README.md of the folder, Markdown behind the YAML that `datasets` reads.

    Nothing in it depends on a text: neither the number of tokens read, nor the omissions.

    Args:
        spec: Description of the mechanism.
        cost: Cost of one text, in words.
        file: Result of `data_file`.
        columns: Sanitized columns; none if the file has one, or lines.
        others: Columns that passed through.
        seeded: Whether the draws come from a seed.
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
