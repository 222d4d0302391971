"""What all tokenizers' transforms refuse."""

from __future__ import annotations

import pytest

from loader_server.transforms.tokens.token_ids import refuse_narrow_dtype
from shared.errors import SettingsError


def test_a_dtype_has_to_hold_the_largest_id() -> None:
    refuse_narrow_dtype("uint16", 2**16, "a.model")
    refuse_narrow_dtype("int32", 2**31, "a.model")
    said = r'dtype: expected a dtype that holds the 65537 ids of a\.model, got "uint16"'
    with pytest.raises(SettingsError, match=said):
        refuse_narrow_dtype("uint16", 2**16 + 1, "a.model")
