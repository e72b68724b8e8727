"""From a YAML file to `Settings`: strict, everything wrong reported at once."""

from __future__ import annotations

from ext_authz.config.compile import Loaded, load

__all__ = ["Loaded", "load"]
