"""What some tests need and not every machine has."""

from __future__ import annotations

import importlib.util

import pytest

MLX = pytest.mark.skipif(importlib.util.find_spec("mlx_lm") is None, reason="mlx-lm is not installed")
"""Not `importorskip`: MLX that is loaded before the backend prepares it computes 30 times slower on Linux. For the same
reason modules that import MLX at their top are imported within tests."""
