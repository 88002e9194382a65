"""sapo-edge: collective RL post-training of small language models on consumer hardware.

Importing this package loads no torch, mlx, llama_cpp, textual, libp2p or reasoning_gym: they load where they are used.
"""

from __future__ import annotations

__version__ = "0.1.0"
