"""Words of the report, from one file: a language is another file with the same keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

ASSETS = Path(__file__).parent.parent / "assets"

WORDS: Mapping[str, str] = json.loads((ASSETS / "page/words.json").read_text(encoding="utf-8"))
