"""Textual styles widgets by the name of their class, so two classes of one name share their styles."""

from __future__ import annotations

import pkgutil
from importlib import import_module

import textual.widgets
from textual.widget import Widget

from sapo_edge import tui


def test_the_class_of_every_widget_and_screen_has_a_name_of_its_own() -> None:
    names: dict[str, type] = {name: getattr(textual.widgets, name) for name in vars(textual.widgets)["__all__"]}
    for module in pkgutil.walk_packages(tui.__path__, f"{tui.__name__}."):
        for item in vars(import_module(module.name)).values():
            if isinstance(item, type) and issubclass(item, Widget):
                assert names.setdefault(item.__name__, item) is item, (names[item.__name__], item)
    assert {"Dashboard", "OneOf", "Tick"} <= set(names)
