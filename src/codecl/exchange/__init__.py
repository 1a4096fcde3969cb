"""How agents' messages travel. One protocol (base), one file an engine."""

from codecl.exchange.base import Exchange, Pending, Traffic, digest, flooded
from codecl.exchange.simulated import Simulated

__all__ = ["Exchange", "Pending", "Simulated", "Traffic", "digest", "flooded"]
