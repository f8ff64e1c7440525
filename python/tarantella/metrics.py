"""How metrics of the user are combined over the ranks; `keras/metrics.py` does it."""

from .keras.metrics import register

__all__ = ["register"]
