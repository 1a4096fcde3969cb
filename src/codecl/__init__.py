"""codecl: communication-efficient decentralized continual learning."""

__version__ = "0.1.0"
