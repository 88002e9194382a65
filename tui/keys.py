"""Keys that the owner changed: `keys.toml` in the configuration directory, a stable id of a binding a line."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from pathlib import Path

from sapo_edge.errors import ConfigError
from sapo_edge.plain import did_you_mean

FILE = "keys.toml"
"""Name of the file beside `config.toml`."""


def read_keys(file: Path, known: Collection[str]) -> dict[str, str]:
    """The keys by id: `"node.pause" = "space,p"`.

    Args:
        file: need not exist.
        known: the ids that there are.

    Raises:
        ConfigError: if it can't be read, is malformed, names an id that there isn't, or gives no text; nothing of it
            is to be used then.
    """
    try:
        found = tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read {file}: {error}", "correct it or move it away") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}", "correct that place, or move the file away") from error
    keys: dict[str, str] = {}
    for name, value in found.items():
        if name not in known:
            remedy = did_you_mean(name, known, "F1 in the app lists the names")
            raise ConfigError(f"{file}: no key is called {name!r}", f"write names in quotes; {remedy}")
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(f"{file}: {name!r} is not text", 'write it as "node.pause" = "space"')
        keys[name] = value.strip()
    return keys
