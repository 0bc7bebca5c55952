"""specforge: train draft models for speculative decoding. Importing this imports nothing heavy."""

__version__ = "0.1.0"
