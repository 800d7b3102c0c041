"""The settings of the three run profiles; any of them can be overridden by name."""

from typing import Any

PROFILES: dict[str, dict[str, Any]] = {"smoke": {}, "cpu": {}, "gpu": {}}
