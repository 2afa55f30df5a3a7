"""Finds the app of a command: by `--app module:app`, `$HOLDFAST_APP`, or `[tool.holdfast]` in pyproject.toml."""

from __future__ import annotations

import importlib
import os
import sys
import tomllib
from pathlib import Path

from holdfast.app import Holdfast
from holdfast.errors import ConfigError

HOW = 'give --app module:app, set $HOLDFAST_APP, or write [tool.holdfast] app = "module:app" in pyproject.toml'


def find_target(given: str | None) -> str | None:
    """What names the app, if anything does."""
    return given or os.environ.get("HOLDFAST_APP") or _from_pyproject()


def load_app(given: str | None) -> Holdfast:
    """Import the app. The current folder is on the path."""
    target = find_target(given)
    if not target:
        raise ConfigError(f"which app? {HOW}")
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigError(f"{target!r} doesn't name an app: write it as module:app, like shop.tasks:app")
    here = str(Path.cwd())
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise _broken(module_name, error) from error
        raise ConfigError(f"there is no module {error.name!r} here ({here}) or installed") from None
    except Exception as error:
        raise _broken(module_name, error) from error
    app: object = module
    for part in attribute.split("."):
        app = getattr(app, part, None)
    if not isinstance(app, Holdfast):
        found = "nothing" if app is None else f"a {type(app).__name__}"
        raise ConfigError(f"{target!r} should be a Holdfast app, but {attribute!r} in {module_name} is {found}")
    return app


def _broken(module: str, error: Exception) -> ConfigError:
    why = f"{type(error).__name__}: {error}"
    return ConfigError(f"the app's module {module} can't be imported: {why}; --debug shows where")


def _from_pyproject() -> str | None:
    try:
        settings = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"pyproject.toml can't be read: {error}") from None
    ours = settings.get("tool", {}).get("holdfast")
    app = ours.get("app") if isinstance(ours, dict) else None
    return app if isinstance(app, str) else None
