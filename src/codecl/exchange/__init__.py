"""How agents' messages travel. One protocol (base), one file an engine."""

from codecl.exchange.base import Check, Exchange, Pending, Traffic, digest, flooded
from codecl.exchange.simulated import Simulated

__all__ = ["Check", "Exchange", "Pending", "Simulated", "Traffic", "digest", "flooded"]
