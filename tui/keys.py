"""Keys that the user has changed: lines of `keys.toml` in the configuration directory."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from pathlib import Path

from sapo_edge.errors import ConfigError
from sapo_edge.plain import did_you_mean

FILE = "keys.toml"
"""The file's name, beside `config.toml`."""


def read_keys(file: Path, ids: Collection[str]) -> dict[str, str]:
    """Keys by the id of their binding, as in `"node.pause" = "space,p"`.

    Args:
        file: may be missing.

    Raises:
        ConfigError: if the file can't be read, or a line has an unknown id or a value that is not text.
    """
    try:
        table = tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read {file}: {error}", "correct it or move it away") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}", "correct that place, or move the file away") from error
    keys: dict[str, str] = {}
    for name, value in table.items():
        if name not in ids:
            remedy = did_you_mean(name, ids, "F1 in the app lists the names")
            raise ConfigError(f"{file}: no key is called {name!r}", f"write names in quotes; {remedy}")
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(f"{file}: {name!r} is not text", 'write it as "node.pause" = "space"')
        keys[name] = value.strip()
    return keys
